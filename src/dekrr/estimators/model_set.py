"""The models of all sites together: their predictions, errors, intervals, advice, and what `fit_summary()` says."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, PoorFitWarning, SettingsError, warn
from ..intervals import borrowed_text, too_few_text
from ..labels import factorise, listed, places_of
from ..metrics import excess
from ..protocols.calibration import Predicted, Unseen, losses_of, measures_of
from ..protocols.run import HeldOut, Outcome
from ..scaling import AS_IT_IS
from ..tables.rows import Rows
from ..topology import ends, shortcuts
from ..types import Array


@dataclass(frozen=True, eq=False)
class PlainFrame:
    """What stands for a frame where pandas is not installed."""

    columns: Mapping[Any, Sequence[Any]]
    index: Sequence[Hashable]  # the names of the rows
    attrs: dict[str, Any] = field(default_factory=dict)  # what is known of the whole, as in a frame of pandas

    def to_dict(self) -> dict[Any, dict[Hashable, Any]]:
        """Return the values by column, and in it by row."""
        return {name: dict(zip(self.index, values, strict=True)) for name, values in self.columns.items()}

    def __getitem__(self, name: Any) -> dict[Hashable, Any]:
        return self.to_dict()[name]

    def __len__(self) -> int:
        return len(self.index)

    def __str__(self) -> str:
        cells = [
            [value if isinstance(value, str) else f"{value:.4g}" for value in values]
            for values in self.columns.values()
        ]
        rows = [[str(name), *row] for name, *row in zip(self.index, *cells, strict=True)]
        return "\n".join(_aligned([["", *map(str, self.columns)], *rows], "  "))

    __repr__ = __str__


def _aligned(table: Sequence[Sequence[str]], gap: str) -> list[str]:
    """Return the lines of a table whose first column is flush left, and the others flush right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        gap.join([row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))])
        for row in table
    ]


def as_frame(columns: Mapping[Any, Sequence[Any]], index: Sequence[Hashable], name: str, **attrs: Any) -> Any:
    """Return columns as a frame of pandas, or as a `PlainFrame` where pandas is not installed."""
    if find_spec("pandas") is None:
        return PlainFrame(columns, index, attrs)
    import pandas as pd

    frame = pd.DataFrame(dict(columns), index=pd.Index(list(index), name=name, tupleize_cols=False))
    frame.attrs.update(attrs)
    return frame


def mean_of(models: Sequence[Any], X: Array) -> Array:
    """Return the mean of models' predictions of rows from anywhere, whose columns are numbers; one is at home alone."""
    anywhere = len(models) > 1
    return np.asarray(np.mean([model.predict_encoded(X, elsewhere=anywhere) for model in models], axis=0))


def by_owner(X: Array, labels: Sequence[Hashable], index: np.ndarray, of_site: Callable[[Any, Array], Array]) -> Array:
    """Return what `of_site` gives for a label and its rows, in the order of the rows; see `labels.factorise`."""
    found = None
    for label, own in zip(labels, places_of(index, len(labels)), strict=True):
        part = of_site(label, X[own])
        found = np.empty((len(X), *part.shape[1:])) if found is None else found
        found[own] = part
    return np.empty(0) if found is None else found


def refuse_unknown(regressor: Any, labels: Sequence[Hashable]) -> None:
    """Refuse rows of sites that were not in `fit`, if the estimator does."""
    unknown = [label for label in labels if label not in regressor.models_]
    if unknown and regressor.unknown_sites == "error":
        raise DataError(
            f"unknown sites {unknown}: no rows of theirs were in fit; the sites are {listed(regressor.sites_)}. "
            'unknown_sites="mean" predicts their rows by the mean of all models, as LeaveOneSiteOut needs it; '
            "models_[site].predict(X) applies any site's model to any rows. In cross-validation by rows, "
            "dekrr.model_selection.SiteKFold keeps every site in every fold"
        )


def different(models: Mapping[Hashable, Any]) -> list[Any]:
    """Return the models, each once: some methods end with one model for all sites."""
    return list({id(model): model for model in models.values()}.values())


def matrix_of_errors(models: Mapping[Hashable, Any], X: Array, sites: Any, error_of: Callable[..., float]) -> Any:
    """Return a frame of the errors of each site's model (rows) on each site's rows (columns).

    `error_of(rows, model, X, elsewhere=...)` is the error on the rows of these numbers.
    """
    labels, index = factorise(sites, len(X))
    columns = {
        label: [error_of(rows, model, X, elsewhere=site != label) for site, model in models.items()]
        for label, rows in zip(labels, places_of(index, len(labels)), strict=True)
    }
    return as_frame(columns, list(models), "model of")


def intervals_of(models: Mapping[Hashable, Any], X: Array, sites: Any, coverage: float) -> Array:
    """Return the interval of each row by its own site's model, shape (n_rows, 2) or (n_rows, 2, n_outputs).

    A row of None, or of a site without a model or without intervals, gets the hull of all sites' intervals.
    """
    different = {id(model): model for model in models.values() if model.calibration is not None}
    if not different:
        raise SettingsError(
            "these models have no intervals: fit DeKRRRegressor with intervals=True. By default they are made where "
            "sigma, alpha or consensus is left open; a run with a privacy budget has none"
        )
    if sites is None:
        return _hull(list(different.values()), X, coverage)
    labels, index = factorise(sites, len(X))

    def of_site(label: Hashable, rows: Array) -> Array:
        own = [models[label]] if label in models and models[label].calibration is not None else different.values()
        return _hull(list(own), rows, coverage)

    return by_owner(X, labels, index, of_site) if labels else np.empty((0, 2))


def words_on_intervals(models: Mapping[Hashable, Any], sites: Any, coverage: float) -> list[str]:
    """Return what is to be told of all sites of rows that held out too few rows for a coverage, or none at all."""
    found = {label: model.calibration for label, model in models.items()}
    without = [label for label, one in found.items() if one is not None and not one.reaches(coverage)]
    borrowing = [label for label, one in found.items() if one is None or not one.n_held_out]
    if sites is not None:
        asked = set(factorise(sites, len(sites))[0])
        without = [label for label in without if label in asked or not asked <= set(models)]
        borrowing = [label for label in borrowing if label in asked]
    words = [borrowed_text(borrowing)] if borrowing else []
    return words + ([too_few_text(without, coverage, "the ends of these intervals are infinite")] if without else [])


def _hull(models: Sequence[Any], X: Array, coverage: float) -> Array:
    """Return from the lowest lower end to the highest upper end of several models' intervals."""
    ends = np.array([model.interval_encoded(X, coverage) for model in models])
    return np.stack([ends[:, :, 0].min(axis=0), ends[:, :, 1].max(axis=0)], axis=1)


_MOST_PREDICTIONS = 5000  # for the union errors, of all models together
_MOST_SITES = 100  # whose rows these are


class HeldOutErrors(NamedTuple):
    """Errors on rows that were held out, by a training without them."""

    n_rows: dict[Hashable, int]  # how many rows of each site were held out
    # The error of each site's model on its own held-out rows; NaN where there are none. An RSE is relative to the
    # variance of the site's own rows.
    own: dict[Hashable, float]
    # The error on the held-out rows of all sites, each row by its own site's model, as in ``metric="own"``. An RSE is
    # relative to the variance of all these rows, which is large where sites differ.
    mean_own: float
    n_union: int  # how many held-out rows, of all sites, the next ones rest on
    # The error of each site's model on held-out rows of all sites. It is empty where other processes keep theirs.
    union: dict[Hashable, float]
    mean_union: float  # the mean of the last over sites, as in ``metric="union"``
    # The error of what each site would do without the others, on its own held-out rows: the best of its mean, ridge
    # regression and boosted trees, by all its folds; NaN where it is not known.
    alone: dict[Hashable, float]
    mean_alone: float  # the error of that on the held-out rows of all sites
    kind_alone: dict[Hashable, str]  # which of them it is: "mean", "ridge" or "trees"
    # As `mean_own` and `mean_alone`, relative to the variance within sites: the errors of all rows over the squared
    # deviations of each from its own site's mean. NaN where it is no RSE.
    within_own: float
    within_alone: float
    # How much larger the error of a held-out row is with the others than alone, in the mean over the site's rows, and
    # the standard error of that. A squared error is relative to the variance of the site's rows.
    excess: dict[Hashable, tuple[float, float]]

    @property
    def gaining(self) -> list[Hashable]:
        """The sites whose held-out rows are predicted better with the others than alone, those first that gain most."""
        return sorted((site for site, (more, _) in self.excess.items() if more < 0), key=lambda site: self.excess[site])

    @property
    def losing(self) -> list[Hashable]:
        """The sites whose held-out rows would be predicted better alone, those first that lose most."""
        found = (site for site, (more, _) in self.excess.items() if more > 0)
        return sorted(found, key=lambda site: self.excess[site], reverse=True)

    @property
    def total_excess(self) -> tuple[float, float]:
        """The mean of `excess` over sites, and its standard error."""
        return mean_excess(self.excess.values())


def validate(
    outcomes: Mapping[Hashable, Outcome],
    n_sites: int,
    back: Callable[[Array], Array] = AS_IT_IS.back,
    everywhere: Callable[[Mapping[Hashable, Any], Any], dict[Hashable, Any]] = lambda of_sites, kind: dict(of_sites),
) -> dict[str, HeldOutErrors] | None:
    """Return the held-out errors of a run by what is measured, and drop the held-out rows; None where there are none.

    `outcomes` are of this process, `n_sites` counts all; `back` gives responses that were changed for training their
    units. `everywhere` returns what is known of the sites of all processes, given that of this one's and its type.
    """
    held = {label: outcome.held_out for label, outcome in outcomes.items() if outcome.held_out is not None}
    classes = next((outcome.classes for outcome in outcomes.values() if outcome.classes is not None), None)
    for outcome in outcomes.values():
        outcome.held_out = None
    n_rows = everywhere({label: each.rows.n_rows for label, each in held.items()}, int)
    if not any(n_rows.values()):
        return None
    there = {label: each for label, each in held.items() if each.rows.n_rows}
    known = {label: each for label, each in there.items() if each.alone}
    own, alone = (
        {label: each.changed(back) for label, each in everywhere(predicted, Predicted).items()}
        for predicted in (
            {label: Predicted.own(each) for label, each in there.items()},
            {label: Predicted.own(each, each.alone[each.best_alone]) for label, each in known.items()},
        )
    )
    union: dict[Hashable, Predicted] = {}
    if len(n_rows) == n_sites:
        rows = Unseen.joined(list(everywhere(_sampled(held, n_rows), Unseen).values()))
        union = {label: rows.predicted(model).changed(back) for label, model in held.items()}
    found, losses = {}, losses_of(classes)
    kinds = everywhere({label: each.best_alone for label, each in known.items()}, str)
    for name, measure in measures_of(classes).items():
        by_model = everywhere({label: measure(each) for label, each in union.items()}, float)
        found[name] = HeldOutErrors(
            n_rows,
            {label: measure(own[label]) if label in own else float("nan") for label in n_rows},
            measure(Predicted.joined(list(own.values()))),
            len(next(iter(union.values())).y) if union else 0,
            by_model,
            float(np.mean(list(by_model.values()))) if by_model else float("nan"),
            {label: measure(alone[label]) if label in alone else float("nan") for label in n_rows},
            measure(Predicted.joined(list(alone.values()))) if alone else float("nan"),
            kinds,
            _within(own) if classes is None else float("nan"),
            _within(alone) if classes is None else float("nan"),
            {label: excess(losses[name](own[label]), losses[name](each), each.weight) for label, each in alone.items()},
        )
    return found


def mean_excess(of_sites: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of sites' `excess`, and its standard error; sites of one row have none, and do not count."""
    means, errors = np.array([each for each in of_sites if np.isfinite(each).all()]).reshape(-1, 2).T
    n_sites = max(len(means), 1)
    return float(means.sum() / n_sites), float(np.sqrt(errors @ errors) / n_sites)


def _within(found: Mapping[Hashable, Predicted]) -> float:
    """Return the RSE of rows of several sites relative to the variance within sites."""
    if not found:
        return float("nan")
    parts = []
    for each in found.values():
        mean = np.average(each.y, axis=0, weights=each.weight)
        parts.append(each._replace(y=each.y - mean, prediction=each.prediction - mean))
    return measures_of(None)["RSE"](Predicted.joined(parts))


def _sampled(held: Mapping[Hashable, HeldOut], n_rows: Mapping[Hashable, int]) -> dict[Hashable, Unseen]:
    """Return held-out rows of each site of this process, or of many of all sites: the same share of each."""
    there = [label for label, number in n_rows.items() if number]
    share = min(1.0, _MOST_PREDICTIONS / len(n_rows) / sum(n_rows.values()))
    if len(there) > _MOST_SITES:
        there = [there[i] for i in np.linspace(0, len(there) - 1, _MOST_SITES).astype(int)]
    return {label: Unseen.of(held[label], max(1, round(share * n_rows[label]))) for label in there if label in held}


_MANY_COLUMNS = 3000
_BLOCK_ROWS = 1 << 14
_FEW = 3  # rows
_MANY = 100  # rows of which they are few
_MOST = 0.5  # of the variance
_ERRORS = 3.0  # standard errors
_WORSE = 0.03  # of the error alone
_NAMED = 3  # sites
_BY = {"mean": "its mean", "ridge": "ridge regression", "trees": "boosted trees"}
_LOGARITHM = (
    'look whether these values are mistakes, or train on the logarithm, with DeKRRRegressor(transform="log1p"); '
    '"Tables as they are" in the documentation has more'
)


def tell_of_many_columns(n_columns: int) -> None:
    """Warn, before a fit, that so many columns take long."""
    if n_columns > _MANY_COLUMNS:
        warn(
            f"the rows have {n_columns} columns of numbers: time and memory grow with them, and a site's features can "
            "tell few of them apart. 600 rows of 4,000 columns took about 20 s and 1.4 GB, of 10,000 columns 110 s "
            "and 4.5 GB. Select columns first, as in make_pipeline(SelectKBest(f_regression, k=100), "
            "DeKRRRegressor(verbose=1)); verbose=1 shows the progress"
        )


def share_of_few(rows: Mapping[Hashable, Rows]) -> tuple[float, int]:
    """Return the share of the variance of the response that the three rows with the most of it carry, and all rows.

    Of several outputs it is the largest share. Rows that are read in batches are judged by the sites' samples. Rows of
    other processes do not count, nor do rows that would have to be read once more.
    """
    parts = [part for own in rows.values() for part in _responses(own) if len(part)]
    if not parts:
        return 0.0, 0
    y = np.concatenate([part.reshape(len(part), -1) for part in parts])
    squares = (y - y.mean(axis=0)) ** 2
    total = squares.sum(axis=0)
    if len(y) < _MANY or not (total > 0).any():
        return 0.0, len(y)
    few = np.partition(squares, len(y) - _FEW, axis=0)[-_FEW:].sum(axis=0)
    return float(np.max(few[total > 0] / total[total > 0])), len(y)


def _responses(rows: Rows) -> Iterator[Array]:
    if rows.streamed:
        if "survey" in vars(rows):  # the run has passed over them
            yield rows.sample.arrays().y
    else:
        yield from (block.y for block in rows.blocks(_BLOCK_ROWS))


def tell_of_poor_fit(
    own: float | None, union: float | None, few: tuple[float, int], alone: float | None = None
) -> None:
    """Warn of models that predict held-out rows worse than their mean does; where none were held out, of what does so.

    `own`, `union` and `alone` (without other sites) are RSE; None where not known. `few` is what `share_of_few`
    returns.
    """
    share, n_rows = few
    percent = f"{100 * share:.0f} %" if share < 0.995 else "nearly all"
    heavy = f"{_FEW} of {n_rows} rows carry {percent} of the variance of the response: {_LOGARITHM}"
    known = {"own": own, "union": union}
    errors = {name: error for name, error in known.items() if error is not None and not np.isnan(error)}
    if not errors and share > _MOST:
        warn(heavy, PoorFitWarning)
    if max(errors.values(), default=0.0) <= 1:
        return
    figures = " and ".join(f"{error:.3g} ({name})" for name, error in errors.items())
    if share > _MOST:
        advice = f". {heavy[0].upper()}{heavy[1:]}"
    elif errors.get("own", 0.0) > 1:
        advice = (
            f": these models are no better than that{_of_alone(alone)}. See whether the columns say anything about the "
            "response, and whether a few rows have very large responses: of such a response train on the logarithm, "
            'with DeKRRRegressor(transform="log1p")'
        )
    else:
        advice = (
            f": a site's model is of no use for rows of other sites{_of_alone(alone)}. Give sites to predict, and do "
            "not take one site's model for rows of others"
        )
    warn(f"the held-out RSE is {figures}, and 1 is that of always predicting the mean{advice}", PoorFitWarning)


def _of_alone(alone: float | None) -> str:
    return "" if alone is None or np.isnan(alone) else f"; a site alone has {alone:.3g} on its own rows"


def advise(regressor: Any, own: float | None = None, union: float | None = None) -> None:
    """Warn of a poor fit of a fitted estimator, by errors on held-out rows that were measured apart, or by its own."""
    found: HeldOutErrors | None = (getattr(regressor, "validation_", None) or {}).get("RSE")
    if own is None and found is not None:
        own, union = found.mean_own, found.mean_union
    if not regressor._has_codes:
        tell_of_poor_fit(own, union, regressor._few, None if found is None else found.mean_alone)
    if not regressor._has_codes and regressor._few[0] > _MOST:
        return  # a few rows outweigh all others, and what is told of them comes first
    validation = getattr(regressor, "validation_", None) or {}
    for name in [name for name in ("RSE", "log loss") if name in validation]:
        tell_of_joining(validation[name], name)


def tell_of_joining(errors: HeldOutErrors, name: str = "RSE") -> None:
    """Warn of a fit whose sites would mostly do better alone, by name and figure.

    Held-out rows must say so beyond noise: more than half of the sites would do better alone, the mean over sites is
    more than three standard errors above that alone, and by more than 3 % of it. Of tables where both are equally good,
    three standard errors leave one in 700.
    """
    n_sites, losing = len(errors.excess), errors.losing
    if 2 * len(losing) <= n_sites:
        return
    more, error = errors.total_excess
    alone = [errors.alone[site] for site in errors.excess if np.isfinite(errors.alone[site])]
    if not more > _ERRORS * error or not more > _WORSE * float(np.mean(alone)):
        return
    means = (errors.within_own, errors.within_alone) if name == "RSE" else (errors.mean_own, errors.mean_alone)
    relative = ", relative to the variance within sites" if name == "RSE" else ""
    worst = "; ".join(
        f"{site!r} {errors.own[site]:.3g}, alone {errors.alone[site]:.3g} by {_BY[errors.kind_alone[site]]}"
        for site in losing[:_NAMED]
    )
    warn(
        f"{len(losing)} of {n_sites} sites would do better alone: the {name} of their own held-out rows is "
        f"{means[0]:.3g} together and {means[1]:.3g} alone{relative}. They lose most at {worst}. fit_summary() has "
        "more of them, and dekrr.compare shows alone, together and pooled on your table",
        PoorFitWarning,
    )


_SHOWN_SITES = 25  # more are shown in part
_ENDS = 10  # of the sites that gain, and of those that lose, where there are more
_CHOSEN = ("sigma", "alpha", "consensus", "own_weight")
_WITHOUT = (
    "none, because no rows were held out, or because the models have been updated since; fit with intervals=True, "
    "which holds out a fifth of the rows"
)
_NEVER = "none, because this method holds out no rows; see dekrr.model_selection"


@dataclass(frozen=True)
class FitSummary:
    """What came of a fit: what is known of it as a whole, and of each site."""

    facts: Mapping[str, str]
    sites: Mapping[Any, Mapping[str, str]]

    def __str__(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.facts.items()]
        return "\n".join(lines + _aligned(self._table(), " "))

    __repr__ = __str__

    def _table(self) -> list[list[str]]:
        if not self.sites:
            return []
        headings = list(next(iter(self.sites.values())))
        return [["site", *headings], *([str(site), *facts.values()] for site, facts in self.sites.items())]

    def _repr_html_(self) -> str:
        """Return the summary for a notebook."""
        facts = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self.facts.items()
        )
        table = self._table()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in table[0]) if table else ""
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table[1:])
        return f"<table>{facts}</table><table><tr>{head}</tr>{body}</table>"


def summary_of(regressor: Any) -> FitSummary:
    """Return the summary of a fitted estimator."""
    facts = {"method": type(regressor).__name__}
    facts["sites"] = f"{len(regressor.sites_)}, with {sum(regressor.n_rows_.values())} rows"
    names = [str(name) for name in regressor.get_feature_names_out()]
    columns = [str(name) for name in getattr(regressor, "feature_names_in_", [])] or names
    shown = ", ".join(columns[:12]) + (f", ... ({len(columns)} in all)" if len(columns) > 12 else "")
    facts["columns"] = shown if len(names) == len(columns) else f"{shown}; as {len(names)} numbers"
    others = getattr(regressor, "_others", {}) if hasattr(regressor, "columns_") else {}
    if others:
        counts = ", ".join(f"{name} in {count} rows" for name, count in others.items())
        facts["words that are no category, and count as other"] = counts
    chosen = {name: getattr(regressor, f"{name}_", None) for name in _CHOSEN}
    used = [f"{name} {value:g}" for name, value in chosen.items() if isinstance(value, int | float)]
    if used:
        facts["settings"] = ", ".join(used) + (" (tuned)" if getattr(regressor, "tuning_", None) else "")
    facts |= _held_out(regressor)
    if hasattr(regressor, "n_rounds_"):
        facts["rounds"] = f"{regressor.n_rounds_}{_with_more_edges(regressor)}"
    if hasattr(regressor, "traffic_"):
        kinds = regressor.traffic_.bytes_by_kind.most_common(3)
        most = ", ".join(f"{kind} {size / 1e3:.0f}" for kind, size in kinds)
        facts["kB sent"] = f"{regressor.traffic_.total_bytes / 1e3:.0f}" + (f" (most for {most})" if most else "")
    scales = getattr(regressor, "column_scales_", None)
    if scales is not None and len(scales) == len(columns):
        order = np.argsort(scales)[::-1][:12]
        shown = ", ".join(f"{columns[j]} {scales[j]:.2g}" for j in order)
        facts["column scales"] = f"{shown} (how fast the response changes along a column; not its importance)"
    sites = list(regressor.sites_)
    validation = getattr(regressor, "validation_", None) or {}
    errors = list(validation.values())[-1] if validation else None
    if errors is not None and len(sites) > _SHOWN_SITES and errors.excess:
        sites = [*errors.gaining[:_ENDS], *errors.losing[:_ENDS][::-1]]
        facts["sites below"] = (
            f"the {len(errors.gaining[:_ENDS])} that gain most by joining, then the {len(errors.losing[:_ENDS])} that "
            "lose most; validation_ has all"
        )
    return FitSummary(facts, {site: _site(regressor, site) for site in sites})


def _with_more_edges(regressor: Any) -> str:
    """Return in words which few edges would halve the rounds, at most the root of the number of sites; else nothing.

    All sites know after as many rounds as the diameter that they are done, and can find out every half diameter.
    All earlier rounds count as needed, also those until the next time that they could find out.
    """
    graph, n_rounds = regressor.graph_, regressor.n_rounds_
    n_hops, most = ends(graph)[2], getattr(regressor, "max_rounds", np.inf)
    if not 1 < n_hops <= n_rounds <= 2 * n_hops or n_rounds == most:
        return ""
    edges = []
    for edge, fewer in shortcuts(graph, round(np.sqrt(len(graph)))):
        edges.append(f"{edge[0]!r} - {edge[1]!r}")
        if n_rounds - n_hops + fewer + -(-fewer // 2) <= n_rounds / 2:
            return f" (half as many with the edges {', '.join(edges)}: some sites are {n_hops} hops apart)"
    return ""


def _site(regressor: Any, site: Any) -> dict[str, str]:
    facts = {"rows": str(regressor.n_rows_[site])}
    if hasattr(regressor, "graph_"):
        facts["neighbours"] = str(len(list(regressor.graph_[site])) if site in regressor.graph_ else 0)
    chosen = {name: getattr(regressor, f"{name}_", None) for name in _CHOSEN}
    facts |= {name: f"{of_sites[site]:g}" for name, of_sites in chosen.items() if isinstance(of_sites, dict)}
    features = getattr(regressor.models_[site], "feature_map", None)
    if features is not None:
        facts["features"] = str(features.n_features)
    if hasattr(regressor, "traffic_"):
        facts["kB sent"] = f"{regressor.traffic_.sent_by(site) / 1e3:.0f}"
    validation = getattr(regressor, "validation_", None) or {}
    for k, (name, errors) in enumerate(validation.items()):
        facts |= {"held out": str(errors.n_rows.get(site, 0))} if k == 0 else {}
        facts[f"own {name}"] = _number(errors.own.get(site, np.nan))
        facts[f"alone {name}"] = _number(errors.alone.get(site, np.nan))
        facts |= {"alone by": errors.kind_alone.get(site, "-")} if k == 0 else {}
        facts[f"union {name}"] = _number(errors.union.get(site, np.nan))
    return facts


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4g}"


def _held_out(regressor: Any) -> dict[str, str]:
    """Return what is known of errors on rows that were held out, in words."""
    facts = {}
    tuning, validation = (getattr(regressor, name, None) for name in ("tuning_", "validation_"))
    if tuning:
        facts["error by tuning"] = f"{np.sqrt(np.min(tuning['error'])):.4g} (root mean square, y from -1 to 1)"
    for name, errors in (validation or {}).items():
        n_rows = sum(errors.n_rows.values())
        own = f"own {_number(errors.mean_own)}, alone {_number(errors.mean_alone)} on {n_rows} rows"
        rest = "all" if errors.n_union == n_rows else errors.n_union
        union = f"union {_number(errors.mean_union)} on {rest} of them"
        if not errors.union:
            union = "union unknown, because other sites are in other processes"
        facts[f"held-out {name}"] = f"{own}, {union}; by a second training without them"
        if name == "RSE":
            facts["held-out RSE"] += ". These divide by the variance over the rows of all sites"
            facts["held-out RSE within sites"] = (
                f"own {_number(errors.within_own)}, alone {_number(errors.within_alone)}. These, and those of each "
                "site, divide by the variance within sites"
            )
    if not validation:
        facts["held-out error"] = _WITHOUT if hasattr(regressor, "intervals") else _NEVER
    for name, errors in list((validation or {}).items())[-1:]:
        if errors.excess:
            facts["joining"] = _joining(name, errors)
    return facts


def _joining(name: str, errors: HeldOutErrors) -> str:
    """Return how many sites gain and lose by joining, in words."""
    found = errors.excess
    clear = [sum(abs(found[s][0]) > 2 * found[s][1] for s in sites) for sites in (errors.gaining, errors.losing)]
    ratios = [errors.own[site] / errors.alone[site] for site in errors.excess if errors.alone[site] > 0]
    quartiles = (
        ", ".join(f"{value:.2f}" for value in np.nanquantile(ratios, [0.25, 0.5, 0.75])) if ratios else "unknown"
    )
    return (
        f"{len(errors.gaining)} of {len(errors.excess)} sites gain ({clear[0]} by more than twice the standard error), "
        f"{len(errors.losing)} would do better alone ({clear[1]} by more). Quartiles of own / alone {name}: {quartiles}"
    )
