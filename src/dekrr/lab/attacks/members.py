"""Was a known row among a site's rows? By shadows of what a neighbour has: one site's sums, masked sums, or the model.

Without masks a neighbour, the *centre*, is sent the sums of every single site around it. Under masks it learns their
sum over its neighbourhood alone, which `under_masks` reads off the words that the centre was sent, as the centre does.
In both cases the centre asked about the same features.

The shadows are the likelihood-ratio attack of Carlini, Chien, Nasr, Song, Terzis and Tramèr (Membership inference
attacks from first principles, IEEE Symposium on Security and Privacy, 2022), on a Gram matrix Z'Z that a neighbour
was sent. The attacker has a pool of candidates, half of which were in the sum. It draws shadow data sets, random
halves of the pool, and computes their Gram matrices itself. The statistic of a candidate is the logarithm of its
leverage z'(Z'Z)^-1 z: a row that is in the sum lowers its own leverage. For each candidate two normal distributions
are fitted to the statistic, over the shadows with it and over those without it. The score is the logarithm of the
likelihood ratio at the sum that was sent. Sums that several neighbours were sent have independent features, so that
their scores add up.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from ...features import FeatureMap
from ...messages import Features, Magnitudes, Masked, Moments, Shortlist
from ...privacy.masks import FixedPoint, revealed
from ...protocols import dekrr
from ...protocols.feature_choice import read_features
from ...protocols.masking import ROOM, unit_of_gram
from ...protocols.site import Site
from ...settings import DeKRRSettings
from ...statistics import pull, unpack_symmetric
from ...types import Array
from .overhearing import Overheard, overhear
from .scenes import Scene
from .sums import Advantage, advantage
from .views import SumsBlock, gram_of

_SHADOWS = 128
_LEAST_RIDGE = 1e-10  # of the mean square of products
_LEAST_VARIANCE = 1e-6
_ROUNDING = 1e-10


def shadow_scores(
    blocks: Iterable[SumsBlock],
    pool: Array,
    n_rows: int | Sequence[int],
    rng: np.random.Generator,
    n_shadows: int = _SHADOWS,
    *,
    sites: np.ndarray | None = None,
) -> Array:
    """Return the log-likelihood ratio of each candidate, shape (n_candidates,); higher is likelier a member.

    The blocks are Gram matrices over the same rows; the pool has members and others, in any order. Where the sums are
    over several sites, `n_rows` has the number of rows of each, and `sites` the number of each candidate's site.
    """
    sites = np.zeros(len(pool), dtype=int) if sites is None else sites
    halves = np.zeros((n_shadows, len(pool)), dtype=bool)
    for site, count in enumerate([n_rows] if isinstance(n_rows, int) else n_rows):
        places = np.flatnonzero(sites == site)
        halves[:, places] = [_half(len(places), count, rng) for _ in range(n_shadows)]
    return np.asarray(sum((_scores_of(block, pool, halves) for block in blocks), np.zeros(len(pool))))


def scores_of_models(
    heard: Array, residuals: Callable[[np.ndarray], Array], n_rows: int, rng: np.random.Generator
) -> Array:
    """Return the log-likelihood ratio of each candidate by a model of `n_rows` rows; the statistic is its residual.

    `residuals` takes a mask of candidates, and returns the residuals of all candidates by a model of those.
    """
    halves = np.array([_half(len(heard), n_rows, rng) for _ in range(_SHADOWS)])
    shadows = np.array([residuals(half) for half in halves])
    return _log_likelihood(heard, shadows, halves, 1e-12) - _log_likelihood(heard, shadows, ~halves, 1e-12)


def scores_by_algebra(block: SumsBlock, pool: Array) -> Array:
    """Return how much each candidate is a member by linear algebra alone, shape (n_candidates,); no shadows are needed.

    Z'Z is linear in who is a member: it is the sum of z z' over the pool, each times 1 or 0. These numbers are found by
    least squares, next to one half: about half of the pool are members.
    """
    features = block.left(pool)
    upper = np.triu_indices(features.shape[1])
    products = features[:, upper[0]] * features[:, upper[1]]
    left = block.sums[upper] - products.sum(axis=0) / 2
    squares = products.T @ products
    squares.flat[:: len(squares) + 1] += _LEAST_RIDGE * np.trace(squares) / len(squares)
    return np.asarray(products @ np.linalg.solve(squares, left))


def _half(n_candidates: int, n_rows: int, rng: np.random.Generator) -> np.ndarray:
    taken = np.zeros(n_candidates, dtype=bool)
    taken[rng.permutation(n_candidates)[:n_rows]] = True
    return taken


def _scores_of(block: SumsBlock, pool: Array, halves: np.ndarray) -> Array:
    features = block.left(pool)
    shadows = np.array([_log_leverages(features, features[half].T @ features[half]) for half in halves])
    heard = _log_leverages(features, block.sums)
    return _log_likelihood(heard, shadows, halves) - _log_likelihood(heard, shadows, ~halves)


def _log_leverages(features: Array, gram: Array) -> Array:
    ridge = _ROUNDING * float(np.trace(gram))
    solved = np.linalg.solve(gram + ridge * np.eye(len(gram)), features.T)
    return np.asarray(np.log(np.maximum(np.einsum("nd,dn->n", features, solved), _ROUNDING)))


def _log_likelihood(heard: Array, shadows: Array, which: np.ndarray, least: float = _LEAST_VARIANCE) -> Array:
    """Return the log-density of what was heard, by a normal law of the chosen shadows, for each candidate."""
    counts = np.maximum(which.sum(axis=0), 1)
    means = (shadows * which).sum(axis=0) / counts
    variances = ((shadows - means) ** 2 * which).sum(axis=0) / counts + least
    return np.asarray(-(np.log(variances) + (heard - means) ** 2 / variances) / 2)


SETTINGS = DeKRRSettings(scale=None, max_leverage=1.0, verify_features=False, max_rounds=1, tol=0.0)


def of_one_site(
    problem: Scene, target: str, colluders: int = 1, *, settings: DeKRRSettings = SETTINGS, seed: int = 0
) -> Advantage:
    """Test rows of the target by the sums of its rows alone that neighbours are sent without masks, and pool.

    The scene is in agreed units; `shortlist_rows` of the settings says how many features a centre asks about.
    """
    victim = problem.site(target)
    record = _heard(problem, target, settings, masks=False)
    centres = victim.neighbors[:colluders]
    heard = [_answer(record, centre, target) for centre in centres]
    return _tested(problem, heard, target, [target], seed)


def under_masks(problem: Scene, target: str, *, settings: DeKRRSettings = SETTINGS, seed: int = 0) -> Advantage:
    """Test rows of the target by the sum over the neighbourhood of one honest-but-curious centre.

    The centre, the target's first neighbour, is given a pool of candidates of *all* sites around it, half of
    whom are members, and knows which site each would be at. The scene is in agreed units.
    """
    centre = problem.site(target).neighbors[0]
    record = _heard(problem, centre, settings, masks=True)
    return _tested(problem, [unmasked(record, problem.site(centre))], target, problem.site(centre).neighbors, seed)


def asked_about(problem: Scene, centre: str, settings: DeKRRSettings = SETTINGS) -> int:
    return _shortlist_of(_heard(problem, centre, settings, masks=False), centre).n_features


def of_model(problem: Scene, target: str, *, seed: int = 0) -> Advantage:
    """Test rows of the target by its final model alone, with shadows of its last update.

    The attackers have all neighbours' models and sums. A shadow is the model that the target would end with, had it
    half of the candidates for rows.
    """
    victim = problem.site(target)
    rng = np.random.default_rng(seed)
    settings = msgspec.structs.replace(SETTINGS, masks=False, max_rounds=300, tol=1e-8)
    _, outcomes = overhear(problem.sites, lambda site: dekrr.train(site, problem.selector(), settings), ())
    end = outcomes[victim.name]
    assert end.ready is not None
    assert settings.alpha is not None
    X, y = _candidates(problem, victim.name)
    weights = end.ready.weights(settings.alpha, settings.consensus)
    own = end.feature_map(X)
    around = {p: feature_map(X) for p, feature_map in end.neighbor_maps.items()}
    size = own.shape[1]
    ridge = weights.alpha / weights.n_sites * np.eye(size) + unpack_symmetric(pull(end.ready.received, weights), size)
    known = sum(
        (weights.penalties[p] * np.asarray(end.ready.received[p].cross) @ end.neighbor_coefficients[p] for p in around),
        np.zeros(size),
    )
    agreed = sum((around[p] @ end.neighbor_coefficients[p] for p in around), np.zeros(len(y)))

    def predicted(rows: np.ndarray) -> Array:
        features = own[rows]
        hessian = (1 / weights.n_rows + len(around) * weights.own_penalty) * features.T @ features + ridge
        right = features.T @ (y[rows] / weights.n_rows + weights.own_penalty * agreed[rows]) + known
        return np.asarray(own @ np.linalg.solve(hessian, right))

    ratios = scores_of_models(y - own @ end.coefficients, lambda rows: y - predicted(rows), victim.n_rows, rng)
    return advantage(ratios[: victim.n_rows], ratios[victim.n_rows :])


def by_algebra(problem: Scene, target: str, *, of_root: bool = False, settings: DeKRRSettings = SETTINGS) -> Advantage:
    """Test rows of the target by linear algebra, for an attacker who holds the whole pool of candidates.

    It has the view of the root of the tree, sums over all sites, here of as many features as a site has, or that of the
    target's first neighbour: masked sums over its neighbourhood.
    """
    centre = problem.site(target).neighbors[0]
    if of_root:
        sites = [site.name for site in problem.sites]
        X = np.vstack([site.X for site in problem.sites])
        own = problem.site(centre)
        feature_map = problem.selector().select(own.X, own.y, own.rng("root"))
        heard = gram_of(feature_map, feature_map(X).T @ feature_map(X))
    else:
        record = _heard(problem, centre, settings, masks=True)
        sites, heard = list(problem.site(centre).neighbors), unmasked(record, problem.site(centre))
    candidates = [_candidates(problem, name)[0] for name in sites]
    found = np.split(scores_by_algebra(heard, np.vstack(candidates)), np.cumsum([len(one) for one in candidates])[:-1])[
        sites.index(target)
    ]
    n_rows = problem.site(target).n_rows
    return advantage(found[:n_rows], found[n_rows:])


def _tested(problem: Scene, heard: Sequence[SumsBlock], target: str, sites: Sequence[str], seed: int) -> Advantage:
    """Test the target's members against its other candidates, by sums over all of `sites`."""
    candidates = [_candidates(problem, name) for name in sites]
    n_rows = [problem.site(name).n_rows for name in sites]
    of_site = np.repeat(np.arange(len(sites)), [len(y) for _, y in candidates])
    pool = np.vstack([X for X, _ in candidates])
    ratios = shadow_scores(heard, pool, n_rows, np.random.default_rng(seed), sites=of_site)
    place = list(sites).index(target)
    found = ratios[of_site == place]
    return advantage(found[: n_rows[place]], found[n_rows[place] :])


def _candidates(problem: Scene, name: str) -> tuple[Array, Array]:
    """Return a site's rows, and after them as many spare ones."""
    site = problem.site(name)
    spare_X, spare_y = (part[: site.n_rows] for part in problem.spare[name])
    return np.vstack([site.X, spare_X]), np.append(site.y, spare_y)


def _heard(problem: Scene, about: str, settings: DeKRRSettings = SETTINGS, *, masks: bool) -> Overheard:
    """Return all messages between a site and its neighbours in a run of one round."""
    settings, around = msgspec.structs.replace(settings, masks=masks), (about, *problem.site(about).neighbors)
    return overhear(problem.sites, lambda site: dekrr.train(site, problem.selector(), settings), around)[0]


def _shortlist_of(record: Overheard, centre: str) -> FeatureMap:
    asked = next(e.message for e in record.heard if e.sender == centre and isinstance(e.message, Shortlist))
    assert isinstance(asked.candidates, Features)
    return read_features(centre, asked.candidates)


def _answer(record: Overheard, centre: str, target: str) -> SumsBlock:
    feature_map = _shortlist_of(record, centre)
    (answer,) = record.between(target, centre, Moments)
    return gram_of(feature_map, unpack_symmetric(answer.gram, feature_map.n_features))


def unmasked(record: Overheard, centre: Site) -> SumsBlock:
    """Return the sum of the answers to a centre's shortlist, from the masked words of a run without proofs."""
    feature_map = _shortlist_of(record, centre.name)
    answers = [record.between(p, centre.name, Masked)[0] for p in sorted(centre.neighbors)]
    told = [message for p in centre.neighbors for message in record.between(p, centre.name, Magnitudes)]
    rows = max(message.exponents[0] for message in told if len(message.exponents) == 2)  # others are about rounds
    numbers = revealed(np.add.reduce([answer.words for answer in answers]), FixedPoint(rows + ROOM, len(answers)))
    packed = unit_of_gram(feature_map)
    return gram_of(feature_map, unpack_symmetric(packed * numbers[: packed.size], feature_map.n_features))
