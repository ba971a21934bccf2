"""What all sites of a run agree on: features, tuning, guards, and each method's own.

A deployment starts from the defaults of the fields. The estimators have all rows in one process, where there is nothing
to keep from anybody: `Setting.in_process` is their default where it differs.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from .. import rules
from ..errors import SettingsError
from ..kernels import KERNELS, is_kernel
from ..rules import FLAG, POSITIVE, Rule, number, one_of, whole_number
from ..selection import CHOOSERS, MAPPINGS, Chooser
from ..solvers import SOLVERS
from .promise import DifferentialPrivacy
from .schema import Setting, check, entries

# What "auto" chooses from; docs/explanation/accuracy-of-dekrr-alone.md has the evidence.
GRIDS = {
    "sigma": (0.125, 0.25, 1.0, 4.0),
    "alpha": (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3),
    "consensus": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
}
# DeKRR without the other parts of a model.
ALONE: dict[str, Any] = dict.fromkeys(("shared", "local", "column_scales"))
# What "auto" is for the agreed part where there is a shared part: what is left for it varies less.
WITH_SHARED = {"alpha": 1e-4, "consensus": 1.0, "own_weight": 1 / 3}
PRECISIONS = ("double", "mixed")
WIRE_PRECISIONS = ("double", "single", "int8")
_NOT_NEGATIVE = number(0)
_COUNT = whole_number(1)
_PART = rules.or_auto(_COUNT)
_SCALES = rules.or_auto(rules.POSITIVES)
_MAKES = rules.with_methods("chooser")
_CHOOSER = Rule("a Chooser or a transformer of one", lambda value: isinstance(value, Chooser) or _MAKES.allows(value))
_KERNEL = Rule("a Kernel or its class", is_kernel)
_SOLVER = rules.with_methods("start", "update")


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """How coefficients travel; see `dekrr.protocols.wire`."""

    precision: Annotated[
        str, Setting("Precision of coefficients on the wire: 8, 4 or 1 bytes each.", one_of(*WIRE_PRECISIONS))
    ] = "double"
    censor_start: Annotated[
        float, Setting("Coefficients that moved by less than this are not sent in the first round.", _NOT_NEGATIVE)
    ] = 0.0
    censor_decay: Annotated[float, Setting("Factor by which that threshold falls in every round.", number(0, 1))] = 0.8

    def __post_init__(self) -> None:
        check("the wire", self)


class FeatureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How features are drawn and chosen, and what all methods share besides."""

    n_features: Annotated[
        int,
        Setting(
            'Features of a site (the paper\'s D). Greedy selection takes no more than a site has rows. "auto" is one '
            "for every two rows of the site, but no more than 0.7 MB of sums to its neighbours are for. With privacy, "
            "in a deployment or where an allocation shares them out, it is 100.",
            _COUNT,
            objects=rules.or_auto(rules.COUNTS),
        ),
    ] = 100
    features: Annotated[
        str,
        Setting(
            "How a site chooses its features. An object may bring n_features, kernel, sigma and mapping. Each counts "
            "where it is not the default; where both places give it and the values differ, the fit is refused.",
            one_of(*CHOOSERS),
            objects=_CHOOSER,
        ),
    ] = "greedy"
    kernel: Annotated[str, Setting("The kernel that frequencies are drawn for.", one_of(*KERNELS), objects=_KERNEL)] = (
        "gaussian"
    )
    sigma: Annotated[float, Setting("The kernel's bandwidth, in scaled columns.", POSITIVE)] = 1.0
    mapping: Annotated[str, Setting("A cosine with a phase per feature, or cos/sin pairs.", one_of(*MAPPINGS))] = "cos"
    seed: Annotated[int, Setting("Seed of all random numbers of a run.", whole_number(0, 2**63 - 1))] = 0
    prediction: Annotated[
        str,
        Setting(
            "Predict with a site's own model and its neighbours', weighted by own_weight, or with its own alone.",
            one_of("neighborhood", "own"),
        ),
    ] = "neighborhood"


class TuningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What DeKRR may tune before it trains; with a shared part, as by default, "auto" tunes nothing."""

    sigma: Annotated[
        Any,
        Setting(
            'The kernel\'s bandwidth, in scaled columns. With a shared part, "auto" derives it from the spread of the '
            "rows. Otherwise, and from several values, all sites together choose it by cross-validation.",
            POSITIVE.or_several(),
        ),
    ] = "auto"
    alpha: Annotated[
        Any,
        Setting(
            'Regularisation (the paper\'s lambda). With a shared part "auto" is 1e-4; otherwise, chosen like sigma.',
            POSITIVE.or_several(),
        ),
    ] = "auto"
    consensus: Annotated[
        Any,
        Setting(
            'Weight of the agreement with neighbours (c of the authors\' code). With a shared part, "auto" is 1; '
            "otherwise it is chosen like sigma.",
            _NOT_NEGATIVE.or_several(),
        ),
    ] = "auto"
    folds: Annotated[int, Setting("Folds of each site's own rows, for tuning.", whole_number(2))] = 5
    objective: Annotated[
        str,
        Setting(
            "What tuning minimises on held-out rows: the error of a site's own model, that of its neighbours' models, "
            "or the mean of both. The local part counts full for own, in part for the mean, and not for union.",
            one_of("mean", "own", "union"),
        ),
    ] = "mean"

    def grids(self) -> dict[str, tuple[float, ...]]:
        """Return the values to choose from."""
        return {name: grid_of(name, getattr(self, name)) for name in GRIDS}


_MASKS = Setting(
    "A site learns sums over the rows of its neighbourhood, but not the sums of a single neighbour: pairwise masks "
    "hide them. Under differential privacy noise does this instead.",
    FLAG,
    in_process=False,
)
_LONE = Setting(
    "What a site does if masks do not hide its sums: it is a site's only neighbour, or tuning tries too many values.",
    one_of("warn", "refuse"),
    agreed=False,
)


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all methods share about rows: their regularisation, scale, and what a site refuses to send."""

    alpha: Annotated[float, Setting("Regularisation (the paper's lambda).", POSITIVE)] = 1e-6
    scale: Annotated[
        str | None,
        Setting(
            "Whether columns are scaled to [0, 1] and the response to [-1, 1], by bounds that sites agree on. "
            '"quantiles" agrees on bounds by rounded counts, and clips columns near them; "minmax" tells extreme '
            "values.",
            one_of("quantiles", "minmax").or_none(),
            in_process="minmax",
        ),
    ] = "quantiles"
    weighted: Annotated[
        bool, Setting("Rows have weights: N is the sum of them. A row without one counts once.", FLAG)
    ] = False
    min_rows: Annotated[
        int,
        Setting(
            "The fewest rows that a site sends sums over. Rows with weights count as (sum w)^2 / sum w^2 rows.", _COUNT
        ),
    ] = 10
    rows_per_feature: Annotated[
        float,
        Setting(
            "The fewest rows of a site for each feature that it sends sums of. In an estimator a value above 0 also "
            "keeps rows that stand alone out of all sums between sites, as a deployment does by max_leverage.",
            _NOT_NEGATIVE,
            in_process=0.0,
        ),
    ] = 1.5
    max_leverage: Annotated[
        float,
        Setting(
            "Rows with a higher leverage among reference features are in no sum over features that leaves their site. "
            "What sites tell about raw columns before (categories, medians, spreads) still counts them. 1 admits all "
            "rows.",
            number(0, 1),
            in_process=1.0,
        ),
    ] = 0.999


class DeKRRSettings(GuardSettings, frozen=True, kw_only=True):
    """What all sites of a DeKRR run must agree on, beside the features."""

    consensus: Annotated[
        float, Setting("Weight of the agreement with neighbours (c of the authors' code).", _NOT_NEGATIVE)
    ] = 1.0
    solver: Annotated[
        Any,
        Setting(
            '"chebyshev" needs about the square root of the number of rounds that the paper\'s "jacobi" needs.',
            one_of(*SOLVERS),
            objects=_SOLVER,
        ),
    ] = "chebyshev"
    self_penalty: Annotated[
        float | str,
        Setting(
            'Damping of jacobi, in units of c~_j; "bound" is the smallest of the paper\'s Proposition 1.',
            Rule(
                'a number of at least 0, or "bound"',
                lambda value: value == "bound" if isinstance(value, str) else _NOT_NEGATIVE.allows(value),
            ),
        ),
    ] = 5.0
    tol: Annotated[float, Setting("Relative residual at which all sites stop; 0 runs max_rounds.", _NOT_NEGATIVE)] = (
        1e-6
    )
    max_rounds: Annotated[int, Setting("The most rounds.", _COUNT)] = 1500
    exchange: Annotated[
        str,
        Setting(
            '"features" is the paper\'s exchange, for comparison: it gives the rows away.', one_of("sums", "features")
        ),
    ] = "sums"
    allocation: Annotated[
        str,
        Setting(
            "Features per site: all the same; or, at the same mean, in proportion to the square root of its rows, or "
            "where they lower the squared error most (for greedy features; from a third to three times the mean).",
            one_of("equal", "sqrt", "gain"),
        ),
    ] = "equal"
    own_weight: Annotated[
        float,
        Setting(
            "Weight of a site's own agreed model in its prediction; its neighbours share the rest. It is 1/3 with a "
            "shared part, unless it is given. Without one, tuning chooses it; where nothing is tuned, it is 1/2.",
            number(0, 1),
        ),
    ] = 0.5
    precision: Annotated[
        str,
        Setting(
            'Precision of sums over rows. "mixed" computes features in single precision and adds up blocks of rows in '
            "double precision. It is about twice as fast for many rows, with sums right to 1e-5; use it with an alpha "
            "of 1e-7 or more.",
            one_of(*PRECISIONS),
        ),
    ] = "double"
    wire: Annotated[Wire, Setting("How coefficients travel.")] = Wire()
    shortlist_rows: Annotated[
        float,
        Setting(
            "Rows of all neighbours together for each feature that a site asks them about before it chooses; 0 means "
            "no limit. A lower number gives better features, but makes it easier to tell whether a known row is among "
            "the rows.",
            _NOT_NEGATIVE,
            in_process=0.0,
        ),
    ] = 30.0
    masks: Annotated[bool, _MASKS] = True
    lone_neighbor: Annotated[str, _LONE] = "warn"
    intervals: Annotated[
        bool,
        Setting("Train a second time without a fifth of the rows, for predict_interval.", FLAG),
    ] = False
    shared: Annotated[
        Any,
        Setting(
            'A part of the model that is the same at all sites: its number of features; "auto" derives it from the '
            "rows of all sites; None leaves the part out.",
            _PART.or_none(),
        ),
    ] = "auto"
    local: Annotated[
        Any,
        Setting(
            "A part that corrects the model for the site's own rows and is sent to nobody: its number of features; "
            '"auto" derives it from the site\'s rows; None leaves the part out.',
            _PART.or_none(),
        ),
    ] = "auto"
    column_scales: Annotated[
        Any,
        Setting(
            'How much the response depends on each column; features are drawn in these scales. "auto" has all sites '
            "learn them; or give a number for each column. None treats all columns alike.",
            _SCALES.or_none(),
        ),
    ] = "auto"
    max_maps: Annotated[int, Setting("The most feature maps that a neighbour may have sums for in a run.", _COUNT)] = 64
    max_features: Annotated[
        int, Setting("The most features that a neighbour may choose; 0 means no limit.", whole_number(0))
    ] = 0
    verify_features: Annotated[
        bool, Setting("Sites prove that their features come from the agreed pool.", FLAG, in_process=False)
    ] = True
    bounds: Annotated[
        tuple[tuple[float, ...], tuple[float, ...]] | None,
        Setting(
            "Public bounds of the columns and, last, of the response, instead of agreed ones.", rules.PAIR.or_none()
        ),
    ] = None
    privacy: Annotated[
        DifferentialPrivacy | None,
        Setting(
            "Differential privacy: a guarantee for every row. It needs public bounds or no scaling, settings given as "
            "numbers, and plain features at all sites.",
            rules.instance_of(DifferentialPrivacy).or_none(),
        ),
    ] = None


class SharedSettings(GuardSettings, frozen=True, kw_only=True):
    """What the methods that share features (AllReduce, DKLA, COKE) have besides."""

    selecting_site: Annotated[
        str | None,
        Setting("The site that chooses features where they depend on rows; None means the site with the most rows."),
    ] = None


class AllReduceSettings(SharedSettings, frozen=True, kw_only=True):
    """What all sites of an AllReduce run must agree on, beside the features."""

    masks: Annotated[bool, _MASKS] = True
    lone_neighbor: Annotated[str, _LONE] = "warn"


class DKLASettings(SharedSettings, frozen=True, kw_only=True):
    """What all sites of a DKLA or COKE run must agree on, beside the features."""

    rho: Annotated[float, Setting("Penalty of the augmented Lagrangian.", POSITIVE)] = 1e-4
    rho_period: Annotated[int, Setting("Rounds after which rho doubles.", _COUNT)] = 200
    censor_start: Annotated[float, Setting("COKE's threshold in the first round; 0 is DKLA.", _NOT_NEGATIVE)] = 0.0
    censor_decay: Annotated[float, Setting("Factor by which that threshold falls in every round.", number(0, 1))] = 0.99
    tol: Annotated[float, Setting("Relative change and disagreement to stop at; 0 runs max_rounds.", _NOT_NEGATIVE)] = (
        1e-4
    )
    max_rounds: Annotated[int, Setting("The most rounds.", _COUNT)] = 1500


def parts_of(given: Mapping[str, Any], *, possible: bool) -> dict[str, Any]:
    """Return which parts a run's models have; "auto" is none where the run cannot have any.

    Parameters
    ----------
    given : mapping of str to object
        What is asked for; what is left out has its default.
    possible : bool
        Whether the run can have parts: it sends sums, and promises no differential privacy.

    Examples
    --------
    >>> from dekrr.settings import parts_of
    >>> parts_of({"shared": None}, possible=True)
    {'shared': None, 'local': 'auto', 'column_scales': 'auto'}
    >>> parts_of({"local": 20}, possible=False)
    {'shared': None, 'local': 20, 'column_scales': None}
    """
    wanted = {name: given.get(name, entries(DeKRRSettings)[name].default) for name in ALONE}
    return {name: None if is_auto(part) and not possible else part for name, part in wanted.items()}


def grid_with_parts(name: str, given: Any, shared: Any) -> tuple[float, ...]:
    """Return `grid_of` a setting of the agreed part; beside a shared part, "auto" is one value.

    Examples
    --------
    >>> from dekrr.settings import grid_with_parts
    >>> grid_with_parts("alpha", "auto", "auto"), len(grid_with_parts("alpha", "auto", None))
    ((0.0001,), 7)
    """
    if name in WITH_SHARED and is_auto(given) and shared is not None:
        return (WITH_SHARED[name],)
    return grid_of(name, given)


def is_auto(given: Any) -> bool:
    """Return whether a setting is left to be found."""
    return isinstance(given, str) and given == "auto"


def grid_of(name: str, given: Any) -> tuple[float, ...]:
    """Return the values of a setting to choose from: those of "auto", those given, or the only one given.

    Examples
    --------
    >>> from dekrr.settings import grid_of
    >>> grid_of("alpha", 1e-3), grid_of("consensus", [0.0, 0.5]), grid_of("sigma", "auto")
    ((0.001,), (0.0, 0.5), (0.125, 0.25, 1.0, 4.0))
    """
    if mistake := entries(TuningSettings)[name].mistake(given):
        raise SettingsError(mistake)
    if isinstance(given, str):
        return GRIDS[name]
    return tuple(float(value) for value in np.atleast_1d(np.asarray(given, dtype=float)))
