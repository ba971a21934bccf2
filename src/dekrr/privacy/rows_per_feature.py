"""What a site refuses because it has too few rows for the features of a sum.

More features than rows leave a null space that only the rows fit. `docs/explanation/privacy-evidence.md` has the attack
with its figures.
"""

from collections.abc import Collection, Mapping

import numpy as np

from ..errors import DataError
from ..features import FeatureMap
from ..rows import ArrayRows, Rows
from ..statistics import weighted_features
from .admission import leverages, whiten

_ALONE = 0.8  # leverage among a map's features from which a row does not count as hidden
_LEVERAGE_PASSES = 3


def check_rows(
    site: str,
    n_rows: int,
    own_map: FeatureMap | None,
    maps: Mapping[str, FeatureMap],
    rows_per_feature: float,
    n_lone: int = 0,
) -> None:
    """Refuse sums of more features than the site's rows, without those that stand alone, can hide among.

    Where a site has fewer rows than there are features, its own and the neighbour's together, the sums have a null
    space that singles the rows out; just above that, directions with next to no weight still do.
    """
    for neighbor, feature_map in maps.items():
        n_own = own_map.n_features if own_map is not None else 0
        features = n_own + feature_map.n_features
        if n_rows - n_lone < rows_per_feature * features:
            there = f"{n_rows} rows, {n_lone} of which stand alone," if n_lone else f"{n_rows} rows,"
            what = f"its {n_own} features and the {feature_map.n_features} of site {neighbor!r}"
            if own_map is None:
                what = f"the {feature_map.n_features} features that site {neighbor!r} has on its shortlist"
            raise DataError(
                f"site {site!r} has {there} too few for sums of {what}: with fewer than {rows_per_feature:g} rows per "
                f"feature ({int(np.ceil(rows_per_feature * features))} here), rows can be computed from the sums. Use "
                "fewer features, join the site to another, or lower rows_per_feature"
            )


def longest_shortlist(n_rows: int, rows_per_feature: float) -> float:
    """Return how many features of a shortlist a site of `n_rows` rows sends sums of.

    As many as a neighbour of equally many features may have, half of what it may ask for together with the site's own.
    """
    return np.floor(n_rows / (2 * rows_per_feature)) if rows_per_feature else np.inf


def discreet_shortlist(n_rows: int, rows_a_feature: float) -> float:
    """Return how many features a site asks neighbours about that have `n_rows` rows together; 0 is no limit.

    With 30 rows a feature, and four neighbours under masks, fewer than 8 of 100 known members are found at one false
    alarm in a hundred; docs/explanation/privacy-evidence.md has the figures. A site keeps to it by itself: a neighbour
    does not know how many rows the others have in the sum.
    """
    return np.floor(n_rows / rows_a_feature) if rows_a_feature else np.inf


def check_rows_of_shortlists(site: str, n_rows: int, maps: Mapping[str, FeatureMap], rows_per_feature: float) -> None:
    """Refuse sums of a shortlist of more features than the site's rows can hide among; see `check_rows`."""
    for neighbor, feature_map in maps.items():
        if feature_map.n_features > longest_shortlist(n_rows, rows_per_feature):
            raise DataError(
                f"site {site!r} has {n_rows} rows, too few for sums of the {feature_map.n_features} features that site "
                f"{neighbor!r} has on its shortlist: with fewer than {2 * rows_per_feature:g} rows per feature, rows "
                "that stand alone can be computed from the sums. Use fewer features, join the site to another, or "
                "lower rows_per_feature"
            )


def check_rows_of_shared(
    site: str, n_rows: int, feature_map: FeatureMap, neighbors: Collection[str], rows_per_feature: float
) -> None:
    """Refuse sums of features that all sites share over too few rows; see `check_rows_of_shortlists`."""
    if neighbors and feature_map.n_features > longest_shortlist(n_rows, rows_per_feature):
        raise DataError(
            f"site {site!r} has {n_rows} rows, too few for sums of the {feature_map.n_features} features that all "
            f"sites share: with fewer than {2 * rows_per_feature:g} rows per feature, rows can be computed from the "
            "sums. Use fewer features, join the site to another, or lower rows_per_feature"
        )


def check_leverages(
    site: str, rows: Rows, own_map: FeatureMap | None, maps: Mapping[str, FeatureMap], rows_per_feature: float
) -> None:
    """Refuse sums of features among which too many of the site's rows stand alone; see `check_rows`.

    A liar's map, or one of very many features, leaves most rows alone. Which rows are in sums does not depend on it: a
    site sends sums over all rows that it admits, or refuses.

    Parameters
    ----------
    site : str
    rows : Rows
    own_map : FeatureMap or None
        None where the sums are of a neighbour's shortlist alone.
    maps : mapping of neighbour to FeatureMap
    rows_per_feature : float
    """
    for neighbor, n_lone in lone_rows(rows, own_map, maps).items():
        check_rows(site, rows.n_rows, own_map, {neighbor: maps[neighbor]}, rows_per_feature, n_lone)


def lone_rows(rows: Rows, own_map: FeatureMap | None, maps: Mapping[str, FeatureMap]) -> dict[str, int]:
    """Return for each neighbour how many rows stand alone among its features or the site's own.

    Parameters
    ----------
    rows : Rows
    own_map : FeatureMap or None
    maps : mapping of neighbour to FeatureMap
    """
    sample = rows.sample
    of_own = _stands_alone(sample, own_map) if own_map is not None else np.zeros(sample.n_rows, dtype=bool)
    share = rows.n_rows / max(sample.n_rows, 1)
    return {
        neighbor: round(share * int((of_own | _stands_alone(sample, feature_map)).sum()))
        for neighbor, feature_map in maps.items()
    }


def _stands_alone(rows: ArrayRows, feature_map: FeatureMap) -> np.ndarray:
    """Return which rows have a leverage near 1 among features, shape (n_rows,); where all would, none does.

    Rows that others hid behind show when those are gone, so that it is done three times.
    """
    features = weighted_features(feature_map, rows.arrays())
    left = np.arange(rows.n_rows)
    for _ in range(_LEVERAGE_PASSES if rows.n_rows else 0):
        typical = leverages(features[left], whiten(features[left].T @ features[left])) <= _ALONE
        if typical.all() or not typical.any():
            break
        left = left[typical]
    return np.asarray(~np.isin(np.arange(rows.n_rows), left))
