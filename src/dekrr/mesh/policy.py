"""A site's own policy: which studies it takes part in. Only the site writes it, and every refusal names its rule.

Whoever proposes a study may be the one who attacks. So the guards of a site's rows are the site's: its policy has a
floor or a cap for each, the defaults of a deployment unless the site writes others. A study may ask for a stricter
guard, and is refused with a weaker one. What other sites are told of a refusal names rules, what the study itself says,
and limits of the policy; it names no row, no count, and no column that the study does not name.
"""

import datetime
import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import DataError, SettingsError
from ..settings import DeKRRSettings, DifferentialPrivacy
from .checks import convert, toml_of
from .config import StudyFile

POLICY = "policy.toml"
MONTH = 30 * 86400.0  # seconds
READS_PER_RUN = 5  # runs that may read a source's rows for each that may send sums
_USUAL = DeKRRSettings()


class PolicyError(DataError):
    """A rule of the site's policy refuses a run; others may be told the names of the rules."""

    code = "policy"

    def __init__(self, site: str, broken: list[str]) -> None:
        super().__init__(f"the policy of {site} refuses the run: {'; '.join(broken)}")
        self.rules = [text.split(":", 1)[0] for text in broken]


class SourcePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one data source: [sources.NAME] of policy.toml."""

    columns: tuple[str, ...] = ()  # the columns that may be used, as targets too; all, if empty
    never: tuple[str, ...] = ()  # the columns that may never be used
    least_rows: int = 0  # fewer rows take part in no run
    # The most runs over this source in 30 days, of all studies together; 0 for any number. Every run tells other sums
    # of the same rows, and no guard adds up what many runs tell. Four are one a week. Five times as many may read the
    # rows: a refusal tells something, too.
    runs_per_month: int = 4
    # What this site knows of its columns beforehand, not from rows: the smallest and the largest value. A study may
    # give `bounds` of these columns alone, and none that are narrower: narrow bounds tell few rows from the others.
    bounds: dict[str, tuple[float, float]] = {}
    total_epsilon: float = 10.0  # the most that runs with differential privacy over this source spend together
    # whether a person's approval has a table of these rows for the other sites, as `studies.describe` makes it
    describe: bool = False


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """All of policy.toml."""

    approval: Literal["person", "policy"] = "person"  # who approves a study that breaks no rule
    proposers: tuple[str, ...] = ()  # the sites that may propose studies; all, if empty
    methods: tuple[str, ...] = ("dekrr", "allreduce")  # DKLA has no masks: each neighbour can work out a site's sums
    most_features: int = 0  # 0 for any number
    masks: bool = False  # whether sums must be masked, as they are unless a study says otherwise
    # whether a study may let the site go on where masks do not hide its sums
    lone_neighbor: Literal["refuse", "warn"] = "refuse"
    most_epsilon: float = 0.0  # demand differential privacy with at most this epsilon; 0 demands none
    # The fewest sites against which a run with shared noise must hold; 0 is half of the other sites. Without
    # `colluders` a run holds against all of them.
    least_colluders: int = 0
    most_delta: float = 0.0  # the largest `delta`; 0 is N^-2 of this site's N rows
    least_min_rows: int = _USUAL.min_rows
    least_rows_per_feature: float = _USUAL.rows_per_feature
    most_leverage: float = _USUAL.max_leverage  # of `max_leverage`
    most_maps: int = _USUAL.max_maps  # of `max_maps`, and of the maps that tuning asks for
    least_shortlist_rows: float = _USUAL.shortlist_rows
    # of `sigma`, over the largest of `column_scales`, where the study gives numbers: waves far shorter than a column's
    # span tell single rows apart
    least_sigma: float = 0.05
    longest_days: int = 0  # the most days until a study expires; 0 for any number
    accept: Literal["no-worse", "person", "any"] = (
        "no-worse"  # which new models are taken into use; see `studies.model_gate`
    )
    tolerance: float = 0.1  # the share by which the error of a new model may be larger than that of what the site has
    sources: dict[str, SourcePolicy] = {}


def read_policy(path: Path) -> Policy:
    """Read and check a policy; without a file, a person approves every study, and the usual guards hold."""
    if not path.exists():
        return Policy()
    table, mistakes = toml_of(path, path), list[str]()
    sources = table.pop("sources", {})
    rules = convert(table, Policy, "", mistakes)
    parts = {name: convert(part, SourcePolicy, f"sources.{name}.", mistakes) for name, part in sources.items()}
    if mistakes or rules is None:
        listed = "\n".join(f"  - {mistake}" for mistake in mistakes)
        raise SettingsError(f"{path} has mistakes, and no study is approved by it:\n{listed}")
    return msgspec.structs.replace(rules, sources=parts)


def source_rules(policy: Policy, study: StudyFile) -> SourcePolicy:
    """Return the rules of the data source of a study."""
    return policy.sources.get(study.source, SourcePolicy())


def refusals(policy: Policy, study: StudyFile, proposer: str, sources: Any) -> list[str]:
    """Return the rules that a study breaks, before anything is computed; an empty list if it breaks none.

    `sources`: the data sources that the site has.

    Examples
    --------
    >>> from dekrr.mesh.config import DataTable
    >>> study = StudyFile(name="air", sites=("a", "b", "c"), source="air", expires=datetime.date(2030, 1, 1),
    ...                   data=DataTable(target="pm25", columns=("temperature",)))
    >>> refusals(Policy(methods=("dkla",)), study, "a", ["air"])
    ['methods: dekrr is not among dkla']
    """
    found = []
    own = source_rules(policy, study)
    used = study.data.used
    if policy.proposers and proposer not in policy.proposers:
        found.append(f"proposers: {proposer} is not among those who may propose here")
    if study.source not in sources:
        found.append(f"this site has no data source {study.source!r}")
    if study.method not in policy.methods:
        found.append(f"methods: {study.method} is not among {', '.join(policy.methods)}")
    never = [name for name in used if name in own.never]
    if never:
        found.append(f"sources.{study.source}.never: {', '.join(never)}")
    beyond = [name for name in used if own.columns and name not in own.columns]
    if beyond:
        found.append(f"sources.{study.source}.columns: {', '.join(beyond)} not among those that may be used")
    found += _refusals_of_settings(policy, study)
    found += _refusals_of_guards(policy, study)
    days = (study.expires - datetime.datetime.now(datetime.UTC).date()).days
    if policy.longest_days and days > policy.longest_days:
        found.append(f"longest_days: it expires in {days} days, later than {policy.longest_days}")
    return found


def _refusals_of_settings(policy: Policy, study: StudyFile) -> list[str]:
    """Return the rules that a study's settings break: as they hold in a run, defaults included."""
    settings, n_features, most = study.method_settings(), study.features().n_features, policy.most_features
    found = []
    privacy = getattr(settings, "privacy", None)
    if most and n_features > most:
        found.append(f"most_features: {n_features} is more than {most}")
    elif most and study.method == "dekrr" and not 0 < settings.max_features <= most:
        found.append(
            f'most_features: with allocation = "{settings.allocation}" and max_features = {settings.max_features}, a '
            f"site may have more than {most}; set max_features to at most {most}"
        )
    shared = settings.shared if study.method == "dekrr" else None
    if most and shared is not None and (isinstance(shared, str) or shared > most):
        found.append(f"most_features: the shared part has {shared!r}; set shared to at most {most}")
    is_open = privacy is None and not getattr(settings, "masks", True)
    if (policy.masks or is_open) and (why := _why_no_masks(study.method, settings)):
        found.append(f"masks: {why}")
    if (
        policy.lone_neighbor != "warn"
        and not _why_no_masks(study.method, settings)
        and settings.lone_neighbor == "warn"
    ):
        found.append(
            'lone_neighbor: the study sets "warn": it goes on where masks do not hide sums. Leave it out, or write '
            'lone_neighbor = "warn" into policy.toml if this may be'
        )
    if policy.most_epsilon and (privacy is None or privacy.epsilon > policy.most_epsilon):
        epsilon = "no differential privacy" if privacy is None else privacy.epsilon
        found.append(f"most_epsilon: {epsilon}, and at most {policy.most_epsilon:g}")
    return found


def _refusals_of_guards(policy: Policy, study: StudyFile) -> list[str]:
    """Return the site's floors and caps that a study's settings pass, each with what to write instead."""
    settings, found = study.method_settings(), []
    for rule, name, least in (
        ("least_min_rows", "min_rows", policy.least_min_rows),
        ("least_rows_per_feature", "rows_per_feature", policy.least_rows_per_feature),
        ("least_shortlist_rows", "shortlist_rows", policy.least_shortlist_rows),
    ):
        if (given := getattr(settings, name, math.inf)) < least:
            found.append(f"{rule}: {given:g} is less than {least:g}; leave {name} out, or give at least {least:g}")
    for rule, name, most in (
        ("most_leverage", "max_leverage", policy.most_leverage),
        ("most_maps", "max_maps", policy.most_maps),
    ):
        if (given := getattr(settings, name, -math.inf)) > most:
            tuned = " and tune over fewer values of sigma or fewer folds" if name == "max_maps" else ""
            found.append(f"{rule}: {given:g} is more than {most:g}; leave {name} out{tuned}, or give at most {most:g}")
    if not getattr(settings, "verify_features", True):
        found.append("verify_features: the study sets verify_features = false; leave it out")
    tuning = study.tuning()
    smallest = min(tuning.sigmas) if tuning is not None else study.features().sigma
    scales = getattr(settings, "column_scales", None)
    most = max(scales) if isinstance(scales, tuple | list) else 1.0
    if smallest / max(most, 1.0) < policy.least_sigma:
        over = f", over a column scale of {most:g}," * (most > 1)
        found.append(f"least_sigma: {smallest:g}{over} is less than {policy.least_sigma:g}; give a larger sigma")
    if settings.scale != "quantiles" and getattr(settings, "bounds", None) is None:
        found.append(f"scale: {settings.scale!r} tells values of single rows; leave scale out")
    own = source_rules(policy, study)
    found += [f"sources.{study.source}.bounds: {why}" for why in _narrow_bounds(own, study, settings)]
    privacy = getattr(settings, "privacy", None)
    return found if privacy is None else found + _refusals_of_promise(policy, study, privacy)


def _narrow_bounds(own: SourcePolicy, study: StudyFile, settings: Any) -> list[str]:
    """Return where the bounds of a study are not at least as wide as those that the site wrote itself."""
    if getattr(settings, "bounds", None) is None:
        return []
    names = *study.data.columns, *study.data.targets
    unknown = [name for name in names if name not in own.bounds]
    if unknown:
        return [
            f"this site's policy has none of {', '.join(unknown)}; leave bounds out, or ask the site to write them, "
            "from what is known without its rows"
        ]
    narrow = [
        f"{name} within {own.bounds[name][0]:g} and {own.bounds[name][1]:g}"
        for name, lower, upper in zip(names, *settings.bounds, strict=True)
        if not (lower <= own.bounds[name][0] and upper >= own.bounds[name][1])
    ]
    return [f"narrower than this site's: it has {'; '.join(narrow)}"] if narrow else []


def _refusals_of_promise(policy: Policy, study: StudyFile, privacy: DifferentialPrivacy) -> list[str]:
    """Return what of a promise of differential privacy is weaker than the site demands."""
    found, total = [], source_rules(policy, study).total_epsilon
    if privacy.epsilon > total:
        found.append(f"sources.{study.source}.total_epsilon: {privacy.epsilon:g} is more than {total:g}")
    least = policy.least_colluders or math.ceil((len(study.sites) - 1) / 2)
    if privacy.colluders is not None and privacy.colluders < least:
        found.append(f"least_colluders: {privacy.colluders} is less than {least}; give more, or leave colluders out")
    if policy.most_delta and (privacy.delta or 0.0) > policy.most_delta:
        found.append(f"most_delta: {privacy.delta:g} is more than {policy.most_delta:g}; leave delta out")
    return found


def _why_no_masks(method: str, settings: Any) -> str:
    """Return why the sums of a run are not masked; an empty string if they are."""
    if not hasattr(settings, "masks"):
        return f"{method} has no masks; use dekrr or allreduce"
    if not settings.masks:
        return "the study sets masks = false; leave it out, or set masks = true"
    privacy = getattr(settings, "privacy", None)
    if privacy is not None and privacy.colluders is None:
        return "with differential privacy, noise takes the place of masks; set colluders in privacy to have both"
    return ""


def refusals_of_run(policy: Policy, study: StudyFile, n_rows: int, times: list[float], now: float) -> list[str]:
    """Return the rules that a run breaks, before anything leaves.

    `n_rows`: the rows of the data source. `times`: when earlier runs over the data source began, in seconds since 1970.
    """
    own, found = source_rules(policy, study), []
    if n_rows < own.least_rows:
        found.append(f"sources.{study.source}.least_rows: {n_rows} is less than {own.least_rows}")
    recent = sum(now - time < MONTH for time in times)
    if own.runs_per_month and recent >= own.runs_per_month:
        found.append(f"sources.{study.source}.runs_per_month: {recent} in 30 days, at most {own.runs_per_month}; wait")
    privacy = getattr(study.method_settings(), "privacy", None)
    most = policy.most_delta or float(max(n_rows, 2)) ** -2.0
    if privacy is not None and privacy.delta_for(n_rows) > most * (1 + 1e-9):
        found.append(f"most_delta: {privacy.delta:g} is more than {most:g}; leave delta out")
    return found
