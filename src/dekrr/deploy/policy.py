"""A site's own policy: which studies it takes part in. Only the site writes it, and every refusal names its rule."""

import datetime
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import SettingsError
from .checks import convert
from .studies.study import StudyFile

POLICY = "policy.toml"


class SourcePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one data source: [sources.NAME] of policy.toml.

    Parameters
    ----------
    columns : tuple of str
        The columns that may be used, as targets too; all, if empty.
    never : tuple of str
        The columns that may never be used.
    least_rows : int
        Fewer rows take part in no run.
    runs_per_month : int
        The most runs over this source in 30 days, of all studies together; 0 for any number.
    """

    columns: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    least_rows: int = 0
    runs_per_month: int = 0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """All of policy.toml.

    Parameters
    ----------
    approval : {"person", "policy"}
        Who approves a study that breaks no rule.
    proposers : tuple of str
        The sites that may propose studies; all, if empty.
    methods : tuple of str
    most_features : int
        0 for any number.
    masks : bool
        Whether sums must be masked, as they are unless a study says otherwise.
    most_epsilon : float
        Demand differential privacy with at most this epsilon; 0 demands none.
    least_rows_per_feature : float
        The least that `rows_per_feature` may be.
    longest_days : int
        The most days until a study expires; 0 for any number.
    sources : dict of str to SourcePolicy
    """

    approval: Literal["person", "policy"] = "person"
    proposers: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("dekrr", "dkla", "allreduce")
    most_features: int = 0
    masks: bool = False
    most_epsilon: float = 0.0
    least_rows_per_feature: float = 0.0
    longest_days: int = 0
    sources: dict[str, SourcePolicy] = {}


def read_policy(path: Path) -> Policy:
    """Read and check a policy; without a file, a person approves every study, and no other rule holds."""
    if not path.exists():
        return Policy()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    mistakes: list[str] = []
    sources = table.pop("sources", {})
    rules = convert(table, Policy, "", mistakes)
    parts = {name: convert(part, SourcePolicy, f"sources.{name}.", mistakes) for name, part in sources.items()}
    if mistakes or rules is None:
        listed = "\n".join(f"  - {mistake}" for mistake in mistakes)
        raise SettingsError(f"{path} has mistakes, and no study is approved by it:\n{listed}")
    return msgspec.structs.replace(rules, sources=parts)


def refusals(policy: Policy, study: StudyFile, proposer: str, sources: Any) -> list[str]:
    """Return the rules that a study breaks, before anything is computed; an empty list if it breaks none.

    Parameters
    ----------
    policy : Policy
    study : StudyFile
    proposer : str
    sources : collection of str
        The data sources that the site has.

    Examples
    --------
    >>> from dekrr.deploy.tables import DataTable
    >>> study = StudyFile(name="air", sites=("a", "b"), source="air", expires=datetime.date(2030, 1, 1),
    ...                   data=DataTable(target="pm25", columns=("temperature",)))
    >>> refusals(Policy(methods=("dkla",)), study, "a", ["air"])
    ['methods: dekrr is not among dkla']
    """
    found = []
    own = policy.sources.get(study.source, SourcePolicy())
    used = study.data.used
    if policy.proposers and proposer not in policy.proposers:
        found.append(f"proposers: {proposer} is not among {', '.join(policy.proposers)}")
    if study.source not in sources:
        found.append(f"this site has no data source {study.source!r}")
    if study.method not in policy.methods:
        found.append(f"methods: {study.method} is not among {', '.join(policy.methods)}")
    never = [name for name in used if name in own.never]
    if never:
        found.append(f"sources.{study.source}.never: {', '.join(never)}")
    beyond = [name for name in used if own.columns and name not in own.columns]
    if beyond:
        found.append(f"sources.{study.source}.columns: {', '.join(beyond)} not among {', '.join(own.columns)}")
    found += _refusals_of_settings(policy, study)
    days = (study.expires - datetime.datetime.now(datetime.UTC).date()).days
    if policy.longest_days and days > policy.longest_days:
        found.append(f"longest_days: it expires in {days} days, later than {policy.longest_days}")
    return found


def _refusals_of_settings(policy: Policy, study: StudyFile) -> list[str]:
    """Return the rules that a study's settings break: as they hold in a run, defaults included."""
    config, found = study.site_file(study.name, study.sites[0], {}, "rows"), []
    settings, n_features, most = config.method_settings(), config.features().n_features, policy.most_features
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
    if policy.masks and (why := _why_no_masks(study.method, settings)):
        found.append(f"masks: {why}")
    if policy.most_epsilon and (privacy is None or privacy.epsilon > policy.most_epsilon):
        epsilon = "no differential privacy" if privacy is None else privacy.epsilon
        found.append(f"most_epsilon: {epsilon}, and at most {policy.most_epsilon:g}")
    least = policy.least_rows_per_feature
    if settings.rows_per_feature < least:
        found.append(f"least_rows_per_feature: {settings.rows_per_feature:g} is less than {least:g}")
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

    Parameters
    ----------
    policy : Policy
    study : StudyFile
    n_rows : int
        The rows of the data source.
    times : list of float
        When earlier runs over the data source began, in seconds since 1970.
    now : float
    """
    own, found = policy.sources.get(study.source, SourcePolicy()), []
    if n_rows < own.least_rows:
        found.append(f"sources.{study.source}.least_rows: {n_rows} is less than {own.least_rows}")
    recent = sum(now - time < 30 * 86400 for time in times)
    if own.runs_per_month and recent >= own.runs_per_month:
        found.append(f"sources.{study.source}.runs_per_month: {recent} in 30 days, at most {own.runs_per_month}")
    return found
