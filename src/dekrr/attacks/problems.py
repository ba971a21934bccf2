"""The sites under attack: synthetic, the authors' splits, or a data set divided by its response."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .. import topology
from ..data import by_response, halves, load, make_sites
from ..networks.local import LocalNetwork
from ..privacy.admission import Admission, learn
from ..privacy.rows_per_feature import longest_shortlist
from ..protocols.preparation import preparation_of
from ..protocols.roll_call import RollCall
from ..protocols.site import Site
from ..rows import ArrayRows
from ..scaling import Scaling
from ..selection import Chooser, Greedy
from ..settings import DeKRRSettings
from ..types import Array

# The defaults of a deployment. One round is enough: further rounds show only a site's own sums, which are granted.
GUARDED = DeKRRSettings(scale=None, masks=False)


@dataclass(frozen=True)
class Problem:
    """Sites in a ring, and for each site spare rows of the same kind that are not used in training.

    Parameters
    ----------
    name : str
    sites : list of Site
    spare : dict of site to (X, y)
    sigma : float
    n_features : int
    """

    name: str
    sites: list[Site]
    spare: dict[str, tuple[Array, Array]]
    sigma: float
    n_features: int

    def site(self, name: str) -> Site:
        """Return the site called `name`."""
        return next(site for site in self.sites if site.name == name)

    def pair(self, target: str | None = None) -> tuple[Site, Site]:
        """Return the target, by default the first site, and the neighbour that attacks it."""
        victim = self.site(target) if target is not None else self.sites[0]
        return victim, self.site(victim.neighbors[0])

    def selector(self) -> Chooser:
        """Return the default selector, for this problem's features and bandwidth."""
        return Greedy(self.n_features, sigma=self.sigma)

    def admitted(self, max_leverage: float) -> "Problem":
        """Return the problem without the rows that a run with this limit withholds; it withholds nothing more."""
        sites = [site.withholding(max_leverage) for site in self.sites]
        return replace(self, sites=[replace(site, admission=_admits_all(site)) for site in sites])

    def longest_shortlist(self, site: Site) -> int:
        """Return the size of the longest shortlist that all neighbours of a site answer."""
        fewest = min(self.site(name).n_rows for name in site.neighbors)
        return int(longest_shortlist(fewest, GUARDED.rows_per_feature))


def read_problem(
    name: str | None, directory: Path | None, n_features: int | None, sigma: float | None, seed: int
) -> Problem:
    """Return a problem: the authors' split of a data set, a new split, or, without a name, synthetic sites.

    Parameters
    ----------
    name : str or None
    directory : path or None
        The folder of ``<name>.parquet`` and ``splits/<name>-by-response.npz``.
    n_features, sigma : optional
        Values that replace those of the data set.
    seed : int
    """
    if name is None:
        X, y, sites = make_sites(rows_per_site=400, random_state=seed)
        return _divided("made-up coast", X, y, sites, n_features or 30, sigma or 0.3, seed)
    split = directory / "splits" / f"{name}-by-response.npz" if directory is not None else None
    if split is not None and split.exists():
        return _authors(name, split, n_features, sigma)
    X, y = load(name, directory)
    scaling = Scaling.of(X, y)
    sites = by_response(scaling.responses(y), random_state=seed)
    return _divided(name, X, y, sites, n_features or 60, sigma or 0.25, seed)


def in_agreed_units(problem: Problem, settings: DeKRRSettings | None = None) -> Problem:
    """Return the problem as a deployment's sums have it: without withheld rows, scaled and clipped by agreed bounds.

    A run over the result has ``scale=None`` and withholds nothing more.

    Parameters
    ----------
    problem : Problem
    settings : DeKRRSettings, optional
        A deployment's defaults by default.
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


_FEATURES = {"houses": 60, "airquality": 70, "energy": 90}


def _authors(name: str, path: Path, n_features: int | None, sigma: float | None) -> Problem:
    with np.load(path) as file:
        names = [str(j) for j in range(int(file["n_nodes"]))]
        train = {j: (file[f"X_train_{j}"], file[f"y_train_{j}"]) for j in names}
        spare = {j: (file[f"X_test_{j}"], file[f"y_test_{j}"]) for j in names}
        return _problem(name, train, spare, n_features or _FEATURES.get(name, 60), sigma or float(file["sigma"]))


def _divided(name: str, X: Array, y: Array, sites: np.ndarray, n_features: int, sigma: float, seed: int) -> Problem:
    scaling = Scaling.of(X, y)
    X, y = scaling.rows(X), scaling.responses(y)
    trained = halves(sites, random_state=seed)
    parts = [
        {str(j): (X[(sites == j) & part], y[(sites == j) & part]) for j in np.unique(sites)}
        for part in (trained, ~trained)
    ]
    return _problem(name, parts[0], parts[1], n_features, sigma)


def _problem(
    name: str,
    train: dict[str, tuple[Array, Array]],
    spare: dict[str, tuple[Array, Array]],
    n_features: int,
    sigma: float,
) -> Problem:
    graph = topology.build("ring", list(train), 4)
    sites = [Site(j, tuple(graph[j]), ArrayRows(X, y)) for j, (X, y) in train.items()]
    return Problem(name, sites, spare, sigma, n_features)
