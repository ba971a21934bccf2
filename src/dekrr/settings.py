"""What a run is, said once: every setting with its type, what it may be, its default, and a line of documentation."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import numpy as np

from . import rules
from .errors import SettingsError
from .kernels import KERNELS, is_kernel
from .rules import FLAG, POSITIVE, Rule, number, one_of, whole_number
from .scaling import NAMES as RESPONSES
from .selection import CHOOSERS, MAPPINGS, Chooser
from .solvers import SOLVERS

_ANYTHING = Rule("anything", lambda value: True)
_PARAMETERS = re.compile(r"^Parameters\n-+\n(.*?)(?=^\w+\n-{3,}$|\Z)", re.M | re.S)


@dataclass(frozen=True)
class Setting:
    """What is known of a setting beside its type and default."""

    rule: Rule = _ANYTHING
    in_process: Any = msgspec.UNSET  # the estimators' default, where it differs from a deployment's
    objects: Rule | None = None  # what an estimator takes in the place of a name or number
    agreed: bool = True  # whether all sites of a run must have the same value
    text: str = ""  # what it is; where it is empty, the docstring of its class says so


@dataclass(frozen=True)
class Entry:
    """A row of the table of settings."""

    name: str
    default: Any  # a deployment's; `msgspec.NODEFAULT` where it must be given
    setting: Setting

    @property
    def in_process(self) -> Any:
        """The estimators' default."""
        return self.default if self.setting.in_process is msgspec.UNSET else self.setting.in_process

    def mistake(self, value: Any, *, objects: bool = False) -> str | None:
        """Return what is wrong with a value, in words; `objects` may take the place of a name or number."""
        more = self.setting.objects if objects else None
        if self.setting.rule.allows(value) or (more is not None and more.allows(value)):
            return None
        return f"{self.name} is {value!r}; it must be {self.words(objects=objects)}"

    def words(self, *, objects: bool = False) -> str:
        """Return what the setting may be; nothing where it may be anything."""
        rule, more = self.setting.rule, self.setting.objects if objects else None
        words = "" if rule is _ANYTHING else rule.words
        return words if more is None else f"{words}; or {more.words}"


@cache
def entries(kind: type[msgspec.Struct]) -> Mapping[str, Entry]:
    """Return the settings in a struct, by name."""
    hints = get_type_hints(kind, include_extras=True)
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = _PARAMETERS.search(inspect.cleandoc(base.__doc__ or ""))
        texts |= re.findall(r"^(\w+)\n((?: .*\n?)+)", section[1] if section else "", flags=re.M)
    found = {}
    for field in msgspec.structs.fields(kind):
        setting = next((part for part in get_args(hints[field.name]) if isinstance(part, Setting)), Setting())
        setting = replace(setting, text=setting.text or " ".join(texts.get(field.name, "").split()))
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory
        found[field.name] = Entry(field.name, default() if callable(default) else default, setting)
    return MappingProxyType(found)


def check(owner: str, values: msgspec.Struct) -> None:
    """Refuse settings that are not what they may be, all of them at once."""
    found = [entry.mistake(getattr(values, name), objects=True) for name, entry in entries(type(values)).items()]
    mistakes = [mistake for mistake in found if mistake]
    if mistakes:
        raise SettingsError(f"{owner}: " + "; ".join(mistakes))


_CHANCE = Rule("a number between 0 and 1, or None", lambda value: value is None or 0 < value < 1)


class DifferentialPrivacy(msgspec.Struct, frozen=True):
    """The promise: (epsilon, delta) for one row of one site, against everyone outside it, over a whole run.

    With `colluders`, the promise is against any so many sites together.

    Neighbouring data sets differ in one row of one site, replaced by any other; row counts are public. Site j has N_j
    rows. An epsilon above `max_epsilon` promises next to nothing.

    Parameters
    ----------
    epsilon
        The privacy budget: how much one row may change what others see.
    delta
        The chance that the promise fails; None is N_j^-2.
    max_epsilon
        A larger epsilon is refused.
    colluders
        The most sites that may pool what they see. Sites then share the noise, which masks allow, and have one model.
        None allows any number, and every site adds the full noise.

    Examples
    --------
    >>> from dekrr import DifferentialPrivacy
    >>> round(DifferentialPrivacy(epsilon=4.0).delta_for(n_rows=1000), 6)
    1e-06
    """

    epsilon: Annotated[float, Setting(POSITIVE)]
    delta: Annotated[float | None, Setting(_CHANCE)] = None
    max_epsilon: Annotated[float, Setting(POSITIVE, agreed=False)] = 10.0
    colluders: Annotated[int | None, Setting(whole_number(1).or_none())] = None

    def __post_init__(self) -> None:
        check("differential privacy", self)
        if self.epsilon > self.max_epsilon:
            raise SettingsError(
                f"epsilon={self.epsilon:g} promises next to nothing; raise max_epsilon if you want it all the same"
            )

    @classmethod
    def of(cls, given: "DifferentialPrivacy | float | None") -> "DifferentialPrivacy | None":
        """Return the promise that is given; a number is its epsilon."""
        return cls(given) if isinstance(given, float | int) else given

    def delta_for(self, n_rows: int) -> float:
        """Return delta at a site with `n_rows` rows."""
        return self.delta if self.delta is not None else float(max(n_rows, 2)) ** -2.0


# Of the choices that the estimators have, a deployment has only these.
DEPLOYED = {"exchange": ("sums",), "allocation": ("equal", "sqrt")}
# What "auto" chooses from; docs/accuracy.md has the evidence.
GRIDS = {
    "sigma": (0.125, 0.25, 1.0, 4.0),
    "alpha": (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3),
    "consensus": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
}
# What "auto" is for a site alone. Columns span 1: at sigma 16 a model is close to linear, and its level costs next to
# nothing, so that a larger alpha goes from least squares over ridge regression to the mean.
GRIDS_ALONE = {"sigma": (0.25, 1.0, 4.0, 16.0), "alpha": (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)}
# DeKRR without the other parts of a model.
ALONE: dict[str, Any] = dict.fromkeys(("shared", "site_effect", "local", "column_scales"))
# What "auto" is for the agreed part where there is a shared part: what is left for it varies less. Alpha is the least.
WITH_SHARED = {"alpha": 1e-4, "consensus": 1.0, "own_weight": 1 / 3}
# What "auto" is in a private run, which must not look at rows; docs/how-to/differential-privacy.md has the evidence.
PRIVATE = {"alpha": 1e-6, "consensus": 3.0}
GONE = {"allocation": "gain", "precision": "mixed", "self_penalty": "bound"}
WIRE_PRECISIONS = ("double", "single", "int8")
# Values of release 0.2 that an estimator takes until release 0.4, as its default and with a warning.
_GONE = {name: Rule(f'"{value}", which is deprecated', value.__eq__) for name, value in GONE.items()}
_NOT_NEGATIVE = number(0)
_COUNT = whole_number(1)
_PART = rules.or_auto(_COUNT)
_SCALES = rules.or_auto(rules.POSITIVES)
_MAKES = rules.with_methods("chooser")
_CHOOSER = Rule("a Chooser or a transformer of one", lambda value: isinstance(value, Chooser) or _MAKES.allows(value))
_KERNEL = Rule("a Kernel or its class", is_kernel)
_SOLVER = rules.with_methods("start", "update")
_TRANSFORMER = rules.with_methods("transform", "inverse_transform")
_LEARNER = rules.with_methods("fit", "predict", "get_params")


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """How coefficients travel; see `dekrr.protocols.dekrr`.

    Parameters
    ----------
    precision
        Precision of coefficients on the wire: 8, 4 or 1 bytes each.
    censor_start
        Coefficients that moved by less than this are not sent in the first round.
    censor_decay
        Factor by which that threshold falls in every round.
    """

    precision: Annotated[str, Setting(one_of(*WIRE_PRECISIONS))] = "double"
    censor_start: Annotated[float, Setting(_NOT_NEGATIVE)] = 0.0
    censor_decay: Annotated[float, Setting(number(0, 1))] = 0.8

    def __post_init__(self) -> None:
        check("the wire", self)


class FeatureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How features are drawn and chosen, and what all methods share besides.

    Parameters
    ----------
    n_features
        Features of a site (the paper's D). Greedy selection takes no more than a site has rows. "auto" is one for every
        two rows of the site, but no more than 0.7 MB of sums to its neighbours are for. With privacy, in a deployment
        or where an allocation shares them out, it is 100.
    features
        How a site chooses its features. "auto" is greedy; with a shared or local part or column scales, greedy from
        smooth and rough candidates. An object may bring n_features, kernel, sigma and mapping. Each counts where it is
        not the default; where both places give it and the values differ, the fit is refused.
    kernel
        The kernel that frequencies are drawn for.
    sigma
        The kernel's bandwidth, in scaled columns.
    mapping
        A cosine with a phase per feature, or cos/sin pairs.
    seed
        Seed of all random numbers of a run.
    prediction
        Predict with a site's own model and its neighbours', weighted by own_weight, or with its own alone.
    """

    n_features: Annotated[int, Setting(_COUNT, objects=rules.or_auto(rules.COUNTS))] = 100
    features: Annotated[str, Setting(one_of(*CHOOSERS), objects=_CHOOSER)] = "auto"
    kernel: Annotated[str, Setting(one_of(*KERNELS), objects=_KERNEL)] = "gaussian"
    sigma: Annotated[float, Setting(POSITIVE)] = 1.0
    mapping: Annotated[str, Setting(one_of(*MAPPINGS))] = "cos"
    seed: Annotated[int, Setting(whole_number(0, 2**63 - 1))] = 0
    prediction: Annotated[str, Setting(one_of("neighborhood", "own"))] = "neighborhood"


class TuningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What DeKRR may tune before it trains; with a shared part, as by default, "auto" tunes nothing.

    Parameters
    ----------
    sigma
        The kernel's bandwidth, in scaled columns. With a shared part, "auto" derives it from the spread of the rows.
        Otherwise, and from several values, all sites together choose it by cross-validation. With privacy, "auto" in an
        estimator is sqrt(p / 6) for p columns.
    alpha
        Regularisation (the paper's lambda). With a shared part "auto" is the ridge of its small models, at least 1e-4;
        otherwise, it is chosen like sigma. With privacy, "auto" in an estimator is 1e-6.
    consensus
        Weight of the agreement with neighbours (c of the authors' code). With a shared part, "auto" is 1; otherwise it
        is chosen like sigma. With privacy, "auto" in an estimator is 3.
    folds
        Folds of each site's own rows, for tuning.
    objective
        Deprecated, and without effect: tuning minimises the error of sites' own predictions on held-out rows. It goes
        in release 0.4.
    """

    sigma: Annotated[Any, Setting(POSITIVE.or_several())] = "auto"
    alpha: Annotated[Any, Setting(POSITIVE.or_several())] = "auto"
    consensus: Annotated[Any, Setting(_NOT_NEGATIVE.or_several())] = "auto"
    folds: Annotated[int, Setting(whole_number(2))] = 5
    objective: Annotated[Any, Setting(one_of("mean", "own", "union").or_none())] = None

    def grids(self) -> dict[str, tuple[float, ...]]:
        """Return the values to choose from."""
        return {name: grid_of(name, getattr(self, name)) for name in GRIDS}


class AloneSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a site alone may tune before it trains.

    Parameters
    ----------
    sigma
        The kernel's bandwidth, in scaled columns. From "auto" and from several values, each site chooses by folds of
        its own rows.
    alpha
        Regularisation (the paper's lambda); chosen like sigma.
    """

    sigma: Annotated[Any, Setting(POSITIVE.or_several())] = "auto"
    alpha: Annotated[Any, Setting(POSITIVE.or_several())] = "auto"


_MASKS = Setting(
    FLAG,
    in_process=False,
    text="A site learns sums over the rows of its neighbourhood, but not the sums of a single neighbour: pairwise "
    "masks hide them. Under differential privacy noise does this instead.",
)
_LONE = Setting(
    one_of("warn", "refuse"),
    agreed=False,
    in_process="warn",
    text="What a site does if masks do not hide its sums: it is a site's only neighbour, tuning tries too many values, "
    'or a site is lost after masked sums. "refuse" does without the run.',
)


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all methods share about rows: their regularisation, scale, and what a site refuses to send.

    Parameters
    ----------
    alpha
        Regularisation (the paper's lambda).
    scale
        Whether columns are scaled to [0, 1] and the response to [-1, 1], by bounds that sites agree on. "quantiles"
        agrees on bounds by rounded counts, and clips columns near them; "minmax" tells extreme values.
    weighted
        Rows have weights: N is the sum of them. A row without one counts once.
    min_rows
        The fewest rows that a site sends sums over. Rows with weights count as (sum w)^2 / sum w^2 rows. In one process
        every site with a row takes part.
    rows_per_feature
        The fewest rows of a site for each feature that it sends sums of. In an estimator a value above 0 also keeps
        rows that stand alone out of all sums between sites, as a deployment does by max_leverage.
    max_leverage
        Rows with a higher leverage among reference features are in no sum over features that leaves their site. What
        sites tell about raw columns before (categories, medians, spreads) still counts them. 1 admits all rows.
    """

    alpha: Annotated[float, Setting(POSITIVE)] = 1e-6
    scale: Annotated[str | None, Setting(one_of("quantiles", "minmax").or_none(), in_process="minmax")] = "quantiles"
    weighted: Annotated[bool, Setting(FLAG)] = False
    min_rows: Annotated[int, Setting(_COUNT, in_process=1)] = 10
    rows_per_feature: Annotated[float, Setting(_NOT_NEGATIVE, in_process=0.0)] = 1.5
    max_leverage: Annotated[float, Setting(number(0, 1), in_process=1.0)] = 0.999


_PROMISE = Rule("a DifferentialPrivacy", lambda value: isinstance(value, DifferentialPrivacy))


class DeKRRSettings(GuardSettings, frozen=True, kw_only=True):
    """What all sites of a DeKRR run must agree on, beside the features.

    Parameters
    ----------
    alpha
        Regularisation (the paper's lambda). None follows from the ridge of the shared part.
    consensus
        Weight of the agreement with neighbours (c of the authors' code).
    solver
        "chebyshev" needs about the square root of the number of rounds that the paper's "jacobi" needs.
    self_penalty
        Damping of jacobi, in units of c~_j.
    tol
        Relative residual at which all sites stop; 0 runs max_rounds.
    max_rounds
        The most rounds.
    exchange
        "features" is the paper's exchange, for comparison: it gives the rows away.
    allocation
        Features per site: all the same; or, at the same mean, in proportion to the square root of its rows.
    own_weight
        Weight of a site's own agreed model in its prediction; its neighbours share the rest. It is 1/3 with a shared
        part, unless it is given. Without one, tuning chooses it; where nothing is tuned, it is 1/2.
    wire
        How coefficients travel.
    shortlist_rows
        Rows of all neighbours together for each feature that a site asks them about before it chooses; 0 means no
        limit. A lower number gives better features, but makes it easier to tell whether a known row is among the rows.
    intervals
        Train a second time without a fifth of the rows, for predict_interval.
    shared
        A part of the model that is the same at all sites: its number of features; "auto" derives it from the rows of
        all sites; None leaves the part out.
    site_effect
        A level of its own for each site, beside a shared part: the random intercept of a mixed model. It stays at the
        site. "auto" agrees on how far levels are shrunk; a number is the ratio of the variances of noise and levels;
        None leaves them out.
    local
        A part that is fitted to the site's own rows and is sent to nobody. "auto" is boosted trees; None leaves the
        part out.
    transform
        How the response is changed for training; predictions, intervals and errors are changed back. Predictions are
        then medians rather than means. "nonnegative" and "share" change nothing, and cut predictions to 0 and above, or
        to 0 to 1. A transformer must not learn from rows; it is not kept in model files.
    column_scales
        How much the response depends on each column; features are drawn in these scales. "auto" has all sites learn
        them; or give a number for each column. None treats all columns alike.
    exclude
        "harmful" leaves out, and names, a site without which nearly all others have a clearly lower error on held-out
        rows: other units, codes for missing values, a changed sign. "warn" names such a site, and "stop" ends the run
        before training. Between organisations nobody can be left out, and a site is named for what it finds in its own
        rows beside all. It needs a shared part. None does not look.
    max_maps
        The most feature maps that a neighbour may have sums for in a run.
    max_features
        The most features that a neighbour may choose; 0 means no limit.
    verify_features
        Sites prove that their features come from the agreed pool.
    bounds
        Public bounds of the columns and, last, of the response, instead of agreed ones.
    privacy
        Differential privacy: a guarantee for every row. It needs public bounds or no scaling, and plain features at all
        sites. A number is short for DifferentialPrivacy with this epsilon.
    """

    alpha: Annotated[float | None, Setting(POSITIVE.or_none())] = 1e-6  # type: ignore[assignment]
    consensus: Annotated[float, Setting(_NOT_NEGATIVE)] = 1.0
    solver: Annotated[Any, Setting(one_of(*SOLVERS), objects=_SOLVER)] = "chebyshev"
    self_penalty: Annotated[float, Setting(_NOT_NEGATIVE, objects=_GONE["self_penalty"])] = 5.0
    tol: Annotated[float, Setting(_NOT_NEGATIVE)] = 1e-6
    max_rounds: Annotated[int, Setting(_COUNT)] = 1500
    exchange: Annotated[str, Setting(one_of("sums", "features"))] = "sums"
    allocation: Annotated[str, Setting(one_of("equal", "sqrt"), objects=_GONE["allocation"])] = "equal"
    own_weight: Annotated[float, Setting(number(0, 1))] = 0.5
    wire: Annotated[Wire, Setting()] = Wire()
    shortlist_rows: Annotated[float, Setting(_NOT_NEGATIVE, in_process=0.0)] = 30.0
    masks: Annotated[bool, _MASKS] = True
    lone_neighbor: Annotated[str, _LONE] = "refuse"
    intervals: Annotated[bool, Setting(FLAG)] = False
    shared: Annotated[Any, Setting(_PART.or_none())] = "auto"
    site_effect: Annotated[Any, Setting(rules.or_auto(POSITIVE).or_none())] = "auto"
    local: Annotated[Any, Setting(one_of("auto").or_none(), objects=_LEARNER, agreed=False)] = "auto"
    transform: Annotated[str | None, Setting(one_of(*RESPONSES).or_none(), objects=_TRANSFORMER)] = None
    column_scales: Annotated[Any, Setting(_SCALES.or_none())] = "auto"
    exclude: Annotated[str | None, Setting(one_of("harmful", "warn", "stop").or_none(), in_process="harmful")] = "warn"
    max_maps: Annotated[int, Setting(_COUNT)] = 64
    max_features: Annotated[int, Setting(whole_number(0))] = 0
    verify_features: Annotated[bool, Setting(FLAG, in_process=False)] = True
    bounds: Annotated[tuple[tuple[float, ...], tuple[float, ...]] | None, Setting(rules.PAIR.or_none())] = None
    privacy: Annotated[DifferentialPrivacy | None, Setting(_PROMISE.or_none(), objects=POSITIVE)] = None


class SharedSettings(GuardSettings, frozen=True, kw_only=True):
    """What the methods that share features (AllReduce, DKLA, COKE) have besides.

    Parameters
    ----------
    selecting_site
        The site that chooses features where they depend on rows; None means the site with the most rows.
    """

    selecting_site: Annotated[str | None, Setting()] = None


class AllReduceSettings(SharedSettings, frozen=True, kw_only=True):
    """What all sites of an AllReduce run must agree on, beside the features."""

    masks: Annotated[bool, _MASKS] = True
    lone_neighbor: Annotated[str, _LONE] = "refuse"


class DKLASettings(SharedSettings, frozen=True, kw_only=True):
    """What all sites of a DKLA or COKE run must agree on, beside the features.

    Parameters
    ----------
    rho
        Penalty of the augmented Lagrangian.
    rho_period
        Rounds after which rho doubles.
    censor_start
        COKE's threshold in the first round; 0 is DKLA.
    censor_decay
        Factor by which that threshold falls in every round.
    tol
        Relative change and disagreement to stop at; 0 runs max_rounds.
    max_rounds
        The most rounds.
    """

    rho: Annotated[float, Setting(POSITIVE)] = 1e-4
    rho_period: Annotated[int, Setting(_COUNT)] = 200
    censor_start: Annotated[float, Setting(_NOT_NEGATIVE)] = 0.0
    censor_decay: Annotated[float, Setting(number(0, 1))] = 0.99
    tol: Annotated[float, Setting(_NOT_NEGATIVE)] = 1e-4
    max_rounds: Annotated[int, Setting(_COUNT)] = 1500


def parts_of(given: Mapping[str, Any], *, possible: bool = True, private: bool = False) -> dict[str, Any]:
    """Return which parts a run's models have; "auto" is none where the run cannot have it.

    A run that sends no sums has none (`possible`). One that promises privacy can have the local part, which is sent to
    nobody.

    Examples
    --------
    >>> from dekrr.settings import parts_of
    >>> parts_of({"shared": None})
    {'shared': None, 'site_effect': None, 'local': 'auto', 'column_scales': 'auto'}
    >>> parts_of({"shared": 20}, possible=False)
    {'shared': 20, 'site_effect': 'auto', 'local': None, 'column_scales': None}
    >>> parts_of({}, private=True)
    {'shared': None, 'site_effect': None, 'local': 'auto', 'column_scales': None}
    """
    wanted = {name: given.get(name, entries(DeKRRSettings)[name].default) for name in ALONE}
    can = dict.fromkeys(ALONE, possible and not private) | {"local": possible}
    parts = {name: None if is_auto(part) and not can[name] else part for name, part in wanted.items()}
    parts["site_effect"] = wanted["site_effect"] if parts["shared"] is not None else None  # a shared part has levels
    return parts


def private_sigma(n_columns: int) -> float:
    """Return what "auto" is for the bandwidth in a private run: the distance of rows that fill their bounds evenly."""
    return float(np.sqrt(n_columns / 6))


def is_auto(given: Any) -> bool:
    """Return whether a setting is left to be found."""
    return isinstance(given, str) and given == "auto"


def grid_of(name: str, given: Any, *, shared: Any = None, private: bool = False) -> tuple[float, ...]:
    """Return the values of a setting to choose from: those of "auto", those given, or the only one given.

    Beside a shared part, and in a private run, "auto" is one value.

    Examples
    --------
    >>> from dekrr.settings import grid_of
    >>> grid_of("alpha", "auto", shared="auto"), len(grid_of("alpha", "auto"))
    ((0.0001,), 7)
    """
    if mistake := entries(TuningSettings)[name].mistake(given):
        raise SettingsError(mistake)
    if isinstance(given, str):
        one = PRIVATE if private else {} if shared is None else WITH_SHARED
        return (one[name],) if name in one else GRIDS[name]
    return tuple(float(value) for value in np.atleast_1d(np.asarray(given, dtype=float)))


class EstimatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the estimators take besides.

    Parameters
    ----------
    topology
        The graph of sites. auto is a ring of up to 20 sites and, of more, rings in random orders on top of each other
        (cycles), whose diameter grows with the logarithm of their number.
    n_neighbors
        Neighbours of a site, where the topology leaves it open.
    n_sites
        Number of sites among which rows are divided, where rows have no site labels.
    classes
        All classes, with or without rows. None takes those of the rows. With privacy they must be named: a class that
        one row alone has would show in the models.
    unknown_sites
        What predicts a row of a site that was not in fit: nothing, or the mean of all sites' models.
    random_state
        Seed of all random numbers of a fit.
    store_rows
        Keep the rows, or where they are read from, in the fitted estimator and in its pickles. A site can join later,
        or an edge be added, only where they are kept.
    store_sums
        Keep the sums over rows, so that `partial_fit` and `remove_site` can go on from the fit. Without them a fit of
        very many sites takes a third less memory.
    precision
        Deprecated: sums are in double precision.
    deployment
        Fit with the guards of a deployment, and with its defaults for settings that are left at the estimators'
        defaults. Sites that a deployment would refuse are named, with the reason.
    verbose
        Above 0, show the progress of a fit: on a terminal, or else in the logger "dekrr" of the module logging.
    callbacks
        Functions that are called with a dekrr.estimators.network.FitEvent whenever sites exchange messages.
    intervals
        Train a second time without a fifth of the rows, for predict_interval. With "auto" this is done where sigma,
        alpha or consensus is left open and neither privacy nor rows_per_feature is set; the shared part is then not
        fitted again, which costs less and is less exact.
    network
        A function that makes the network which drives the sites' procedures, from the graph of their names; see
        dekrr.networks.base. None runs all sites in this process.
    """

    topology: Annotated[Any, Setting(one_of(*rules.TOPOLOGIES), objects=rules.EDGES, agreed=False)] = "auto"
    n_neighbors: Annotated[int, Setting(_COUNT, agreed=False)] = 4
    n_sites: Annotated[int, Setting(_COUNT, agreed=False)] = 10
    classes: Annotated[Any, Setting(rules.SEVERAL.or_none(), agreed=False)] = None
    unknown_sites: Annotated[str, Setting(one_of("error", "mean"), agreed=False)] = "error"
    random_state: Annotated[Any, Setting(rules.RANDOM_STATE.or_none(), agreed=False)] = None
    store_rows: Annotated[bool, Setting(FLAG, agreed=False)] = False
    store_sums: Annotated[bool, Setting(FLAG, agreed=False)] = True
    precision: Annotated[str, Setting(one_of("double"), objects=_GONE["precision"])] = "double"
    deployment: Annotated[bool, Setting(FLAG, agreed=False)] = False
    verbose: Annotated[int, Setting(whole_number(0), agreed=False)] = 0
    callbacks: Annotated[Any, Setting(rules.CALLABLES.or_none(), agreed=False)] = None
    intervals: Annotated[
        Any,
        Setting(Rule('True, False or "auto"', lambda value: isinstance(value, bool) or value == "auto"), agreed=False),
    ] = "auto"
    network: Annotated[Any, Setting(rules.CALLABLE.or_none(), agreed=False)] = None


__all__ = ["ALONE", "DEPLOYED", "GONE", "GRIDS", "PRIVATE", "WIRE_PRECISIONS", "WITH_SHARED"]
__all__ += [name for name, one in vars().items() if name[0] != "_" and getattr(one, "__module__", "") == __name__]
