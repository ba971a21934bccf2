"""A prototype under a deployment's guards: which sites a deployment would refuse, and why, before it is set up."""

import math
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import msgspec

from ..deploy.checks import DEPLOYED
from ..deploy.tables import NAME
from ..errors import DataError, SettingsError, warn
from ..labels import listed
from ..protocols.calibration import PARTS
from ..protocols.site import Site
from ..selection import Chooser
from ..settings import DeKRRSettings, entries


class Verdict(NamedTuple):
    """What a deployment would say of a site.

    Parameters
    ----------
    n_rows : int
    n_withheld : int
        Rows that stand alone, and would be in no sum that leaves the site.
    reason : str
        Why the site would be refused; empty where it would not.
    """

    n_rows: int
    n_withheld: int
    reason: str


def deployed(settings: DeKRRSettings, n_features: Any) -> DeKRRSettings:
    """Return settings with a deployment's defaults where they have those of one process.

    Parameters
    ----------
    settings : DeKRRSettings
    n_features : int or object
        The estimator's; where it is one number, neighbours may choose no more.
    """
    wrong = [
        f"{name} is {getattr(settings, name)!r}; between organisations it is {' or '.join(map(repr, choices))}"
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

    Parameters
    ----------
    sites : mapping of label to Site
    choosers : mapping of label to Chooser
        With each site's number of features.
    settings : DeKRRSettings
    folds : int
        Of tuning, whose sums leave out one fold of a site's rows; 0 where nothing is tuned.
    trains_twice : bool, default=False
        Whether there is a second training, for intervals or classes.
    """
    sizes = {
        sites[label].name: chooser.most_features(int(chooser.n_features), sites[label].n_rows)
        for label, chooser in choosers.items()
    }
    verdicts = {
        label: _verdict(site, sizes, settings, folds, trains_twice=trains_twice) for label, site in sites.items()
    }
    odd = [label for label, site in sites.items() if not NAME.fullmatch(site.name)]
    if odd:
        warn(
            f"in a network, sites need other names than {listed(odd)}: up to 63 letters, digits, dots, dashes and "
            "underscores"
        )
    refused = [f"site {label!r} {verdict.reason}" for label, verdict in verdicts.items() if verdict.reason]
    if refused:
        raise DataError(
            f"a deployment would refuse {len(refused)} of {len(sites)} sites: {'; '.join(refused)}. Join such a site "
            "to another, or take a smaller n_features"
        )
    return verdicts


def _verdict(
    site: Site, sizes: Mapping[str, int], settings: DeKRRSettings, folds: int, *, trains_twice: bool
) -> Verdict:
    kept = site.withholding(settings.max_leverage if settings.privacy is None else 1.0)
    n_withheld = site.n_rows - kept.n_rows
    rows = f"has {site.n_rows} rows" + (f", of which {n_withheld} stand alone" if n_withheld else "")
    n_least = kept.n_effective * (folds - 1) // folds if folds else kept.n_effective
    most = max((sizes[name] for name in site.neighbors), default=0)
    needed = math.ceil(settings.rows_per_feature * (sizes[site.name] + most)) if site.neighbors else 0
    n_second = kept.n_effective * (PARTS - 1) // PARTS
    second_needs = needed * (PARTS - 1) if trains_twice and n_second >= settings.min_rows else 0
    reason = ""
    if site.neighbors and kept.n_rows < settings.min_rows:
        reason = f"{rows}, fewer than min_rows={settings.min_rows}"
    elif settings.privacy is None and n_least < needed:
        fold = f", {n_least} of them in a fold of tuning," if folds else ""
        reason = (
            f"{rows}{fold} where sums of its {sizes[site.name]} features and a neighbour's {most} need {needed} "
            f"(rows_per_feature={settings.rows_per_feature:g})"
        )
    elif (
        settings.privacy is None and trains_twice and n_second < needed * (PARTS - 1) and n_second >= settings.min_rows
    ):
        reason = (
            f"{rows}, {n_second} of them in the second training, for intervals or classes, where sums of its "
            f"{sizes[site.name]} features and a neighbour's {most} need {second_needs}"
        )
    return Verdict(site.n_rows, n_withheld, reason)
