"""A site's own policy: which studies it takes part in. Only the site writes it, and every refusal names its rule."""

import datetime
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import SettingsError
from ..settings import FeatureSettings
from .checks import convert
from .studies.study import StudyFile
from .tables import parts_of_run

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
        Whether sums must be masked.
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
    n_features = study.settings.get("n_features", FeatureSettings().n_features)
    if policy.most_features and n_features > policy.most_features:
        found.append(f"most_features: {n_features} is more than {policy.most_features}")
    shared = parts_of_run(study.settings)["shared"] if study.method == "dekrr" else None
    if policy.most_features and shared is not None and (isinstance(shared, str) or shared > policy.most_features):
        found.append(f"most_features: the shared part has {shared!r}; set shared to at most {policy.most_features}")
    if policy.masks and not study.settings.get("masks"):
        found.append("masks: the study must set masks = true")
    epsilon = (study.settings.get("privacy") or {}).get("epsilon")
    if policy.most_epsilon and (epsilon is None or epsilon > policy.most_epsilon):
        found.append(f"most_epsilon: {epsilon or 'no differential privacy'}, and at most {policy.most_epsilon:g}")
    rows_per_feature = study.settings.get("rows_per_feature", 1.5)
    if rows_per_feature < policy.least_rows_per_feature:
        found.append(f"least_rows_per_feature: {rows_per_feature:g} is less than {policy.least_rows_per_feature:g}")
    days = (study.expires - datetime.datetime.now(datetime.UTC).date()).days
    if policy.longest_days and days > policy.longest_days:
        found.append(f"longest_days: it expires in {days} days, later than {policy.longest_days}")
    return found


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
