"""What came of a fit, in one table: sites, rows, rounds, bytes, chosen settings, held-out error, scales of columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from .validation import HeldOutErrors

_CHOSEN = ("sigma", "alpha", "consensus", "own_weight")
_WITHOUT = (
    "none, because no rows were held out, or because the models have been updated since; fit with intervals=True, "
    "which holds out a fifth of the rows"
)
_NEVER = "none, because this method holds out no rows; see dekrr.model_selection"


@dataclass(frozen=True)
class FitSummary:
    """What came of a fit.

    Parameters
    ----------
    facts : mapping of str to str
        What is known of the fit as a whole.
    sites : mapping of site to mapping of str to str
        What is known of each site.

    Examples
    --------
    >>> print(FitSummary({"method": "DeKRRRegressor"}, {"north": {"rows": "90", "kB sent": "12"}}))
    method: DeKRRRegressor
    site  rows kB sent
    north   90      12
    """

    facts: Mapping[str, str]
    sites: Mapping[Any, Mapping[str, str]]

    def __str__(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.facts.items()]
        table = self._table()
        widths = [max(len(row[j]) for row in table) for j in range(len(table[0]))] if table else []
        for row in table:
            first, *others = (
                cell.ljust(width) if j == 0 else cell.rjust(width)
                for j, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            lines.append(" ".join([first, *others]))
        return "\n".join(lines)

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
    used = [f"{name} {value:g}" for name, value in chosen.items() if value is not None]
    if used:
        facts["settings"] = ", ".join(used) + (" (tuned)" if getattr(regressor, "tuning_", None) else "")
    facts |= _held_out(regressor)
    if hasattr(regressor, "n_rounds_"):
        facts["rounds"] = str(regressor.n_rounds_)
    if hasattr(regressor, "traffic_"):
        kinds = regressor.traffic_.bytes_by_kind.most_common(3)
        most = ", ".join(f"{kind} {size / 1e3:.0f}" for kind, size in kinds)
        facts["kB sent"] = f"{regressor.traffic_.total_bytes / 1e3:.0f}" + (f" (most for {most})" if most else "")
    scales = getattr(regressor, "column_scales_", None)
    if scales is not None and len(scales) == len(columns):
        order = np.argsort(scales)[::-1][:12]
        shown = ", ".join(f"{columns[j]} {scales[j]:.2g}" for j in order)
        facts["column scales"] = f"{shown} (how fast the response changes along a column; not its importance)"
    return FitSummary(facts, {site: _site(regressor, site) for site in regressor.sites_})


def _site(regressor: Any, site: Any) -> dict[str, str]:
    facts = {"rows": str(regressor.n_rows_[site])}
    if hasattr(regressor, "graph_"):
        facts["neighbours"] = str(len(list(regressor.graph_[site])) if site in regressor.graph_ else 0)
    features = getattr(regressor.models_[site], "feature_map", None)
    if features is not None:
        facts["features"] = str(features.n_features)
    if hasattr(regressor, "traffic_"):
        facts["kB sent"] = f"{regressor.traffic_.sent_by(site) / 1e3:.0f}"
    validation = getattr(regressor, "validation_", None) or {}
    for k, (name, errors) in enumerate(validation.items()):
        facts |= {"held out": str(errors.n_rows.get(site, 0))} if k == 0 else {}
        facts[f"own {name}"] = _number(errors.own.get(site, np.nan))
        facts[f"union {name}"] = _number(errors.union.get(site, np.nan))
    return facts


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4g}"


def share_in_words(errors: HeldOutErrors) -> str:
    """Return on how many of the held-out rows the union errors rest."""
    return "all of them" if errors.n_union == sum(errors.n_rows.values()) else f"{errors.n_union} of them"


def _held_out(regressor: Any) -> dict[str, str]:
    """Return what is known of errors on rows that were held out, in words."""
    facts = {}
    tuning, validation = (getattr(regressor, name, None) for name in ("tuning_", "validation_"))
    if tuning:
        facts["error by tuning"] = f"{np.sqrt(np.min(tuning['error'])):.4g} (root mean square, y from -1 to 1)"
    for name, errors in (validation or {}).items():
        n_rows = sum(errors.n_rows.values())
        own = f"own {_number(errors.mean_own)} on {n_rows} rows"
        union = f"union {_number(errors.mean_union)} on {share_in_words(errors)}"
        if not errors.union:
            union = "union unknown, because other sites are in other processes"
        facts[f"held-out {name}"] = f"{own}, {union}; by a second training without them"
    if not validation:
        facts["held-out error"] = _WITHOUT if hasattr(regressor, "intervals") else _NEVER
    return facts
