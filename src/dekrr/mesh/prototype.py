"""A prototype of a deployment in one process: what a network would say of each site, with a deployment's defaults.

`DeKRRRegressor(deployment=True)` fits so, and tells of all sites at once what a node finds out about its own.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import DataError, SettingsError, warn
from ..estimators.network import scaling_of
from ..labels import NAME, listed, remedy
from ..privacy.admission import learn, lone_rows
from ..protocols.calibration import refusal_of_second
from ..protocols.feature_choice import choose_alone
from ..protocols.shared_part import bandwidth_of
from ..protocols.site import Site
from ..selection import Chooser
from ..settings import DEPLOYED, DeKRRSettings, FeatureSettings, entries, is_auto
from ..tables.columns import Columns
from ..tables.rows import ArrayRows, ChainedRows


class Verdict(NamedTuple):
    """What a deployment would say of a site."""

    n_rows: int
    n_withheld: int  # rows that stand alone, and would be in no sum that leaves the site
    reason: str  # why the site would be refused; empty where it would not


def deployed(settings: DeKRRSettings, n_features: Any) -> DeKRRSettings:
    """Return settings with a deployment's defaults where they have those of one process.

    Where the estimator's `n_features` is one number, neighbours may choose no more.
    """
    wrong = [
        f"{name} is {getattr(settings, name)!r}; between organisations it must be {' or '.join(map(repr, choices))}"
        for name, choices in DEPLOYED.items()
        if getattr(settings, name) not in choices
    ]
    if wrong:
        raise SettingsError("deployment=True: " + "; ".join(wrong))
    changes: dict[str, Any] = {
        name: entry.default
        for name, entry in entries(DeKRRSettings).items()
        if entry.default != entry.in_process and getattr(settings, name) == entry.in_process
    }
    n_features = FeatureSettings().n_features if is_auto(n_features) else n_features
    if settings.allocation == "equal" and isinstance(n_features, int) and not settings.max_features:
        changes["max_features"] = n_features
    return msgspec.structs.replace(settings, **changes)


def judge(
    sites: Mapping[Hashable, Site],
    choosers: Mapping[Hashable, Chooser],
    settings: DeKRRSettings,
    folds: int,
    *,
    trains_twice: bool = False,
) -> dict[Hashable, Verdict]:
    """Return what a deployment would say of each site; refuse where it would refuse any, and name all of them.

    Choosers have each site's number of features. Sums of tuning leave out one of `folds`; 0 where nothing is tuned.
    `trains_twice` is for intervals or classes.
    """
    sizes = {
        sites[label].name: chooser.most_features(int(chooser.n_features), sites[label].n_rows)
        for label, chooser in choosers.items()
    }
    verdicts = {
        label: _verdict(site, sizes, settings, folds, trains_twice=trains_twice) for label, site in sites.items()
    }
    if settings.privacy is None and settings.max_leverage < 1 and settings.rows_per_feature:
        for label, reason in _standing_alone(sites, choosers, settings).items():
            if not verdicts[label].reason:
                verdicts[label] = verdicts[label]._replace(reason=reason)
    odd = [label for label, site in sites.items() if not NAME.fullmatch(site.name)]
    if odd:
        warn(
            f"in a network, sites need other names than {listed(odd)}: up to 63 ASCII letters (a to z), digits, "
            "dots, dashes and underscores"
        )
    refused = {label: verdict.reason for label, verdict in verdicts.items() if verdict.reason}
    if refused:
        reasons = "; ".join(f"site {label!r} {reason}" for label, reason in refused.items())
        raise DataError(
            f"a deployment would refuse {len(refused)} of {len(sites)} sites: {reasons}. "
            f"{remedy(list(refused), {label: site.n_rows for label, site in sites.items()})}; or use a smaller "
            "n_features"
        )
    return verdicts


def ruled(fitted: Any, sites: Mapping[Hashable, Site], settings: DeKRRSettings) -> dict[Hashable, Site]:
    """Return sites with the rules that their nodes would make: which rows may be in sums that leave the site.

    A node makes its rule once, for all trainings, with the columns in the order of their names, which `fitted` knows.
    """
    if settings.max_leverage >= 1 or settings.privacy is not None:
        return dict(sites)
    names: Sequence[str] = getattr(fitted, "feature_names_in_", ())
    columns: Columns | None = getattr(fitted, "columns_", None)
    made = {}
    for label, site in sites.items():
        rows = site.rows.sample
        order = np.argsort(list(names)) if len(names) else np.arange(rows.n_columns)
        if columns is not None:
            ends = np.cumsum([len(column.names_out) for column in columns.columns])
            places = np.split(np.arange(rows.n_columns), ends[:-1])
            order = np.concatenate([places[i] for i in np.argsort(columns.names)])
        ordered = ArrayRows(rows.X[:, order], rows.y, expansion=rows.expansion)
        rule = replace(learn(ordered, settings.max_leverage), order=order)
        made[label] = replace(site, admission=rule) if site.n_rows else site
    return made


def _standing_alone(
    sites: Mapping[Hashable, Site], choosers: Mapping[Hashable, Chooser], settings: DeKRRSettings
) -> dict[Hashable, str]:
    """Return why sites would refuse sums because rows stand alone among features, with features chosen by each alone.

    A run chooses its features together, so that this foresees what is likely. The run itself checks again.
    """
    kept = {label: site.withholding(settings.max_leverage) for label, site in sites.items()}
    every = ChainedRows([site.rows for site in kept.values()])
    scaling = scaling_of(settings, every)
    sigma = bandwidth_of(every.scaled(scaling).sample.X.std(axis=0))
    rows = {label: site.rows.scaled(scaling) for label, site in kept.items()}
    maps = {}
    for label, site in kept.items():
        chooser = choosers[label]
        size = chooser.most_features(int(chooser.n_features), site.n_rows)
        maps[site.name] = choose_alone(
            site, rows[label], chooser.replace(n_features=size, sigma=chooser.sigma or sigma)
        )
    reasons = {}
    for label, site in kept.items():
        around = {name: maps[name] for name in site.neighbors}
        for neighbor, n_lone in lone_rows(rows[label], maps[site.name], around).items():
            n_own, n_other = maps[site.name].n_features, maps[neighbor].n_features
            needed = math.ceil(settings.rows_per_feature * (n_own + n_other))
            if site.n_rows - n_lone < needed:
                reasons[label] = (
                    f"has {site.n_rows} rows, of which {n_lone} have a leverage near 1 among its {n_own} features and "
                    f"the {n_other} of site {neighbor!r}, where sums need {needed} others "
                    f"(rows_per_feature={settings.rows_per_feature:g}): use a larger sigma or fewer features, which "
                    "lowers leverages"
                )
                break
    return reasons


def _verdict(
    site: Site, sizes: Mapping[str, int], settings: DeKRRSettings, folds: int, *, trains_twice: bool
) -> Verdict:
    kept = site.withholding(settings.max_leverage if settings.privacy is None else 1.0)
    n_withheld = site.n_rows - kept.n_rows
    rows = f"has {site.n_rows} rows" + (f", of which {n_withheld} stand alone" if n_withheld else "")
    n_least = kept.n_effective * (folds - 1) // folds if folds else kept.n_effective
    most = max((sizes[name] for name in site.neighbors), default=0)
    needed = math.ceil(settings.rows_per_feature * (sizes[site.name] + most)) if site.neighbors else 0
    reason = ""
    if site.neighbors and kept.n_rows < settings.min_rows:
        reason = f"{rows}, fewer than min_rows={settings.min_rows}"
    elif settings.privacy is None and n_least < needed:
        fold = f", {n_least} of them in a fold of tuning," if folds else ""
        reason = (
            f"{rows}{fold} where sums of its {sizes[site.name]} features and a neighbour's {most} need {needed} "
            f"(rows_per_feature={settings.rows_per_feature:g})"
        )
    elif trains_twice:
        reason = refusal_of_second(site, sizes[site.name], most, settings)
    return Verdict(site.n_rows, n_withheld, reason)
