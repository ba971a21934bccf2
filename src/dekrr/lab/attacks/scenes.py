"""The sites under attack: synthetic, the authors' splits, or a data set divided by its response."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ... import topology
from ...errors import DataError
from ...networks.local import LocalNetwork
from ...privacy.admission import Admission, learn, longest_shortlist
from ...protocols.preparation import preparation_of
from ...protocols.roll_call import RollCall
from ...protocols.site import Site
from ...scaling import Scaling
from ...selection import Chooser, Greedy
from ...settings import DeKRRSettings
from ...synthetic import make_sites
from ...tables.rows import ArrayRows
from ...types import Array
from ..data_sets.loading import load, read_table
from ..data_sets.partitions import by_response, halves
from ..data_sets.splits import authors_split, has_authors_split

_FEWEST_ROWS, _FEWEST_SITES = 80, 4  # of a table of one's own; one site is nobody's target or neighbour, and is lost
_NEIGHBORS, _NEIGHBORS_OF_FEW = 4, 2
_PAIRS, _LEAST_SIGMA, _LISTED = 2000, 0.01, 5
# The defaults of a deployment. One round is enough: further rounds show only a site's own sums, which are granted.
GUARDED = DeKRRSettings(scale=None, masks=False)


@dataclass(frozen=True)
class Scene:
    """Sites in a ring, and for each site spare rows of the same kind that are not used in training."""

    name: str
    sites: list[Site]
    spare: dict[str, tuple[Array, Array]]
    sigma: float
    n_features: int

    def site(self, name: str) -> Site:
        return next(site for site in self.sites if site.name == name)

    def pair(self, target: str | None = None) -> tuple[Site, Site]:
        """Return the target, by default the first site, and the neighbour that attacks it."""
        victim = self.site(target) if target is not None else self.sites[0]
        return victim, self.site(victim.neighbors[0])

    def selector(self) -> Chooser:
        return Greedy(self.n_features, sigma=self.sigma)

    def admitted(self, max_leverage: float) -> "Scene":
        """Return the problem without the rows that a run with this limit withholds; it withholds nothing more."""
        sites = [site.withholding(max_leverage) for site in self.sites]
        return replace(self, sites=[replace(site, admission=_admits_all(site)) for site in sites])

    def longest_shortlist(self, site: Site) -> int:
        """Return the size of the longest shortlist that all neighbours of a site answer."""
        fewest = min(self.site(name).n_rows for name in site.neighbors)
        return int(longest_shortlist(fewest, GUARDED.rows_per_feature))


_FEATURES = {"houses": 60, "airquality": 70, "energy": 90}


def read_problem(
    name: str | None, directory: Path | None, n_features: int | None, sigma: float | None, seed: int
) -> Scene:
    """Return a problem: the authors' split of a data set, a new split, or, without a name, synthetic sites.

    The folder has ``<name>.parquet`` and ``splits/<name>-by-response.npz``. `n_features` and `sigma` replace the values
    of the data set.
    """
    if name is None:
        X, y, sites = make_sites(rows_per_site=400, random_state=seed)
        return _divided("made-up coast", X, y, sites, n_features or 30, sigma or 0.3, seed)
    if directory is not None and has_authors_split(name, directory):
        split = authors_split(name, directory)
        train, spare = _by_site(split.X, split.y, split.sites), _by_site(split.X_test, split.y_test, split.test_sites)
        return _problem(name, train, spare, n_features or _FEATURES.get(name, 60), sigma or split.kernel[0])
    X, y = load(name, directory)
    scaling = Scaling.of(X, y)
    sites = by_response(scaling.responses(y), random_state=seed)
    return _divided(name, X, y, sites, n_features or 60, sigma or 0.25, seed)


def problem_of_table(
    path: Path,
    target: str,
    site: str,
    columns: Sequence[str] = (),
    n_features: int | None = None,
    sigma: float | None = None,
    seed: int = 0,
) -> Scene:
    """Return a problem of a table of one's own: half of each site's rows train, the others are known to be no members.

    Rows with gaps are left out. The columns to predict from are by default all others that are numbers, the features a
    quarter of the rows that train at the smallest site, at most 60, as the guards allow, and sigma half the median
    distance between rows.
    """
    frame = read_table(path)
    missing = [name for name in (target, site, *columns) if name not in frame.columns]
    if missing:
        raise DataError(f"{path} has no column {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}")
    numbers = [name for name in frame.select_dtypes(["number", "bool"]).columns if name not in (target, site)]
    used = list(columns) or numbers
    good = [*numbers, target] if frame[target].dtype.kind in "iufb" else numbers
    words = [name for name in (*used, target) if name not in good]
    if words or not used:
        named = f"not on {', '.join(words)}" if words else "of which it has none"
        raise DataError(f"{path}: attacks are on columns of numbers, {named}; name columns with --columns")
    kept = frame[[*used, target, site]].dropna()
    counts = kept[site].value_counts()
    few = [f"{name!r} ({count})" for name, count in counts.items() if count < _FEWEST_ROWS]
    if few or len(counts) < _FEWEST_SITES:
        listed = ", ".join(few[:_LISTED]) + (f" and {len(few) - _LISTED} more" if len(few) > _LISTED else "")
        reason = f"too few rows without gaps at {listed}" if few else f"{len(counts)} sites"
        raise DataError(
            f"{path}: {reason}; an attack needs at least {_FEWEST_SITES} sites with {_FEWEST_ROWS} rows each: leave "
            "small sites out of the file, or join them"
        )
    X, y = kept[used].to_numpy(dtype=float), kept[target].to_numpy(dtype=float)
    if sigma is None:
        box = Scaling.of(X, y).rows(X)
        pairs = np.random.default_rng(seed).integers(len(box), size=(2, _PAIRS))
        sigma = max(0.5 * float(np.median(np.linalg.norm(box[pairs[0]] - box[pairs[1]], axis=1))), _LEAST_SIGMA)
    n_features = n_features or min(60, int(counts.min()) // 8)
    return _divided(path.name, X, y, kept[site].astype(str).to_numpy(), n_features, round(sigma, 3), seed)


def in_agreed_units(problem: Scene, settings: DeKRRSettings | None = None) -> Scene:
    """Return the problem as a deployment's sums have it: without withheld rows, scaled and clipped by agreed bounds.

    A run over the result has ``scale=None`` and withholds nothing more. The settings are a deployment's defaults.
    """
    settings = settings or DeKRRSettings()
    sites = problem.admitted(settings.max_leverage).sites
    preparation = preparation_of(settings, settings.bounds)
    network = LocalNetwork({site.name: site.neighbors for site in sites})
    scalings = network.run({site.name: preparation.agree(site, RollCall(site)) for site in sites})
    scaling = scalings[sites[0].name]
    scaled = [replace(site, rows=site.rows.scaled(scaling)) for site in sites]
    spare = {name: (scaling.rows(X), scaling.responses(y)) for name, (X, y) in problem.spare.items()}
    return replace(problem, sites=scaled, spare=spare)


def _admits_all(site: Site) -> Admission:
    rule = site.admission if isinstance(site.admission, Admission) else learn(site.rows.sample, 1.0)
    return replace(rule, max_leverage=np.inf)


def _divided(name: str, X: Array, y: Array, sites: np.ndarray, n_features: int, sigma: float, seed: int) -> Scene:
    scaling = Scaling.of(X, y)
    X, y = scaling.rows(X), scaling.responses(y)
    trained = halves(sites, random_state=seed)
    train, spare = (_by_site(X[part], y[part], sites[part]) for part in (trained, ~trained))
    return _problem(name, train, spare, n_features, sigma)


def _by_site(X: Array, y: Array, sites: np.ndarray) -> dict[str, tuple[Array, Array]]:
    return {str(site): (X[sites == site], y[sites == site]) for site in np.unique(sites)}


def _problem(
    name: str,
    train: dict[str, tuple[Array, Array]],
    spare: dict[str, tuple[Array, Array]],
    n_features: int,
    sigma: float,
) -> Scene:
    n_neighbors = _NEIGHBORS if len(train) > _NEIGHBORS + 1 else _NEIGHBORS_OF_FEW
    graph = topology.build("ring", list(train), n_neighbors)
    sites = [Site(j, tuple(graph[j]), ArrayRows(X, y)) for j, (X, y) in train.items()]
    return Scene(name, sites, spare, sigma, n_features)
