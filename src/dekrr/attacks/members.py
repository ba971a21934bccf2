"""Was a known row among a site's rows? By shadows of what a neighbour has: one site's sums, masked sums, or the model.

Without masks a neighbour, the *centre*, is sent the sums of every single site around it. Under masks it learns their
sum over its neighbourhood alone, which `under_masks` reads off the words that the centre was sent, as the centre does.
In both cases the centre asked about the same features.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from ..features import FeatureMap
from ..messages import Features, Magnitudes, Masked, Moments, Shortlist
from ..networks.local import LocalNetwork
from ..privacy.maps_of_neighbors import Ledger
from ..privacy.masks import FixedPoint, revealed
from ..protocols import dekrr
from ..protocols.masking import ROOM, unit_of_gram
from ..protocols.offers import read_features
from ..protocols.outcome import Outcome
from ..protocols.site import Procedure, Site
from ..settings import DeKRRSettings
from ..statistics import unpack_symmetric
from ..system import pull
from ..types import Array
from . import lira
from .overhearing import Record
from .problems import Problem
from .sums import Advantage, advantage
from .views import Block

SETTINGS = DeKRRSettings(scale=None, max_leverage=1.0, verify_features=False, max_rounds=1, tol=0.0)


def of_one_site(
    problem: Problem, target: str, colluders: int = 1, *, settings: DeKRRSettings = SETTINGS, seed: int = 0
) -> Advantage:
    """Test rows of the target by the sums of its rows alone that neighbours are sent without masks.

    Parameters
    ----------
    problem : Problem
        In agreed units; see `problems.in_agreed_units`.
    target : str
    colluders : int, default=1
        How many neighbours pool what they were sent.
    settings : DeKRRSettings
        `shortlist_rows` says how many features a centre asks about.
    seed : int, default=0
    """
    victim = problem.site(target)
    record = _heard(problem, target, settings, masks=False)
    centres = victim.neighbors[:colluders]
    heard = [_answer(record, centre, target) for centre in centres]
    return _tested(problem, heard, target, [target], seed)


def under_masks(
    problem: Problem, target: str, centre: str | None = None, *, settings: DeKRRSettings = SETTINGS, seed: int = 0
) -> Advantage:
    """Test rows of the target by the sum over the neighbourhood of one honest-but-curious centre.

    The centre is given a pool of candidates of *all* sites around it, half of whom are members, and knows which site
    each would be at.

    Parameters
    ----------
    problem : Problem
        In agreed units; see `problems.in_agreed_units`.
    target : str
        A neighbour of the centre.
    centre : str, optional
        By default the target's first neighbour.
    settings : DeKRRSettings
        As in `of_one_site`.
    seed : int, default=0
    """
    centre = centre or problem.site(target).neighbors[0]
    record = _heard(problem, centre, settings, masks=True)
    return _tested(problem, [unmasked(record, problem.site(centre))], target, problem.site(centre).neighbors, seed)


def asked_about(problem: Problem, centre: str, settings: DeKRRSettings = SETTINGS) -> int:
    """Return how many features a centre asks its neighbours about."""
    return _shortlist_of(_heard(problem, centre, settings, masks=False), centre).n_features


def of_model(problem: Problem, target: str | None = None, *, seed: int = 0) -> Advantage:
    """Test rows of the target by its final model alone, with shadows of its last update.

    The attackers have all neighbours' models and sums. A shadow is the model that the target would end with, had it
    half of the candidates for rows.

    Parameters
    ----------
    problem : Problem
        In agreed units.
    target : str, optional
    seed : int, default=0
    """
    victim, _ = problem.pair(target)
    rng = np.random.default_rng(seed)
    settings = msgspec.structs.replace(SETTINGS, masks=False, max_rounds=300, tol=1e-8)
    _, outcomes = _run(problem, (), settings)
    end = outcomes[victim.name]
    assert end.ready is not None
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

    ratios = lira.scores_of_models(y - own @ end.coefficients, lambda rows: y - predicted(rows), victim.n_rows, rng)
    return advantage(ratios[: victim.n_rows], ratios[victim.n_rows :])


def _tested(problem: Problem, heard: Sequence[Block], target: str, sites: Sequence[str], seed: int) -> Advantage:
    """Test the target's members against its other candidates, by sums over all of `sites`."""
    candidates = [_candidates(problem, name) for name in sites]
    n_rows = [problem.site(name).n_rows for name in sites]
    of_site = np.repeat(np.arange(len(sites)), [len(y) for _, y in candidates])
    pool = np.vstack([X for X, _ in candidates])
    ratios = lira.scores(heard, pool, n_rows, np.random.default_rng(seed), sites=of_site)
    place = list(sites).index(target)
    found = ratios[of_site == place]
    return advantage(found[: n_rows[place]], found[n_rows[place] :])


def _candidates(problem: Problem, name: str) -> tuple[Array, Array]:
    """Return a site's rows, and after them as many spare ones."""
    site = problem.site(name)
    spare_X, spare_y = (part[: site.n_rows] for part in problem.spare[name])
    return np.vstack([site.X, spare_X]), np.append(site.y, spare_y)


def _heard(problem: Problem, about: str, settings: DeKRRSettings = SETTINGS, *, masks: bool) -> Record:
    """Return all messages between a site and its neighbours in a run of one round."""
    around = (about, *problem.site(about).neighbors)
    return _run(problem, around, msgspec.structs.replace(settings, masks=masks))[0]


def _run(problem: Problem, heard_by: Sequence[str], settings: DeKRRSettings) -> tuple[Record, dict[str, Outcome]]:
    record = Record(only=heard_by)
    network = LocalNetwork({site.name: site.neighbors for site in problem.sites}, observers=[record])

    def procedure(site: Site) -> Procedure[Outcome]:
        return dekrr.train(replace(site, ledger=Ledger()), problem.selector(), settings)

    return record, network.run({site.name: procedure(site) for site in problem.sites})


def _shortlist_of(record: Record, centre: str) -> FeatureMap:
    """Return the features that a centre asked its neighbours about."""
    asked = next(e.message for e in record.heard if e.sender == centre and isinstance(e.message, Shortlist))
    assert isinstance(asked.candidates, Features)
    return read_features(centre, asked.candidates)


def _answer(record: Record, centre: str, target: str) -> Block:
    """Return what the target answered to a centre's shortlist without masks."""
    feature_map = _shortlist_of(record, centre)
    (answer,) = record.between(target, centre, Moments)
    return _block(feature_map, answer.gram)


def unmasked(record: Record, centre: Site) -> Block:
    """Return the sum of the answers to a centre's shortlist, from the masked words that it was sent.

    Parameters
    ----------
    record : Record
        Of a run without proofs of features, with all messages between the centre and its neighbours.
    centre : Site
    """
    feature_map = _shortlist_of(record, centre.name)
    answers = [record.between(p, centre.name, Masked)[0] for p in sorted(centre.neighbors)]
    told = [message for p in centre.neighbors for message in record.between(p, centre.name, Magnitudes)]
    rows = int(np.max([message.exponents for message in told], axis=0)[0])  # the last of the flood have the largest
    numbers = revealed(np.add.reduce([answer.words for answer in answers]), FixedPoint(rows + ROOM, len(answers)))
    packed = unit_of_gram(feature_map)
    return _block(feature_map, packed * numbers[: packed.size])


def _block(feature_map: FeatureMap, packed: Array) -> Block:
    return Block(feature_map, feature_map, unpack_symmetric(packed, feature_map.n_features), np.ones(1, dtype=bool))
