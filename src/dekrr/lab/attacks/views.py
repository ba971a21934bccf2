"""The attacker's view: what neighbours hear of a site in a whole run, as a list of sums over its rows.

In a run a neighbour p of site j receives sums over j's rows: first Z'Z and Z'y of the shortlist that it sent
(`Moments`), then B = Z_pj'Z_pj and C = Z_pj'Z_jj of its choice (`Sums`). It also receives j's coefficients in every
round. Where settings are tuned, it receives the same sums for every bandwidth and fold, over the rows outside the fold.

The coefficients depend on j's rows through A = Z_jj'Z_jj, m = Z_jj'y_j, and the C that j sent to other sites. An
attacker could derive some knowledge of A and m from the coefficients. If A and m are *granted*, the attacker gets them
exactly instead.

All of this is a list of `SumsBlock`: sums over the rows of some folds, of products of two features, or of a feature
and y. A `View` may pool the messages of several neighbours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ...features import FeatureMap
from ...messages import Chosen, Features, Moments, Shortlist, Sums
from ...privacy.admission import redraw
from ...protocols.feature_choice import read_features
from ...protocols.run import Tuning
from ...protocols.site import Site
from ...selection import Chooser
from ...statistics import unpack_symmetric
from ...types import Array
from .overhearing import Overheard
from .recovery import stack


@dataclass(frozen=True, eq=False)
class SumsBlock:
    """Sums over the rows of some folds: of z_left(x) z_right(x)', or of z_left(x) y.

    Blocks with the same label differ in their folds, and so in the features that were chosen.
    """

    left: FeatureMap
    right: FeatureMap | None  # None stands for the response
    sums: Array  # of shape (D_left, D_right) or (D_left, 1)
    folds: np.ndarray  # for each fold, whether its rows are in the sums
    label: str = ""

    @property
    def is_gram(self) -> bool:
        return self.right is self.left


@dataclass(frozen=True)
class View:
    """The attacker's knowledge of the target's rows."""

    blocks: list[SumsBlock]
    fold_sizes: tuple[int, ...]  # rows of each fold; there is one fold where nothing was tuned

    @property
    def n_rows(self) -> int:
        return sum(self.fold_sizes)

    @property
    def n_sums(self) -> int:
        return sum(len(b.sums) * (len(b.sums) + 1) // 2 if b.is_gram else b.sums.size for b in self.blocks)

    def rows_in(self, block: SumsBlock) -> int:
        return int(np.asarray(self.fold_sizes)[block.folds].sum())

    def fold_of_rows(self) -> np.ndarray:
        """Return a fold for every row, shape (n_rows,). The order of rows is unknown, so any that fits the sizes."""
        return np.repeat(np.arange(len(self.fold_sizes)), self.fold_sizes)


def of_rows(block: SumsBlock, X: Array, y: Array) -> tuple[Array, Array]:
    """Return both factors of a block for rows, shapes (n_rows, D_left) and (n_rows, D_right)."""
    left = block.left(X)
    return left, left if block.is_gram else y[:, None] if block.right is None else block.right(X)


WHOLE = np.ones(1, dtype=bool)  # the folds of sums over all rows, where nothing was tuned


def gram_of(feature_map: FeatureMap, gram: Array, folds: np.ndarray = WHOLE, label: str = "") -> SumsBlock:
    return SumsBlock(feature_map, feature_map, gram, folds, label)


def summed(
    left: FeatureMap, right: FeatureMap | None, X: Array, y: Array, folds: np.ndarray, label: str = ""
) -> SumsBlock:
    """Return the block of sums over the rows `X`, `y`, which are those of the folds."""
    empty = SumsBlock(left, right, np.empty(0), folds, label)
    z_left, z_right = of_rows(empty, X, y)
    return SumsBlock(left, right, z_left.T @ z_right, folds, label)


def fold_blocks(view: View) -> Iterator[SumsBlock]:
    """Yield sums over single folds: differences of sums over all rows and sums over the rows outside a fold.

    Sums over all rows come from the training after the tuning, or from the sums outside each fold, added up. In both
    cases this works only for features that were chosen each time.
    """
    grams = [block for block in view.blocks if block.is_gram]
    wholes = [block for block in grams if block.folds.all()]
    partial = [block for block in grams if not block.folds.all()]
    for label in dict.fromkeys(block.label for block in partial):
        wholes += _added_up([block for block in partial if block.label == label], len(view.fold_sizes))
    for whole in wholes:
        for part in partial:
            first, second = common_features(whole.left, part.left)
            if len(first) > whole.left.n_columns:
                left = _taken(whole.left, first)
                rest = unit_gram(whole)[np.ix_(first, first)] - unit_gram(part)[np.ix_(second, second)]
                yield gram_of(left, rest, whole.folds & ~part.folds, f"{part.label}, a fold")


def _added_up(parts: list[SumsBlock], n_folds: int) -> list[SumsBlock]:
    if len(parts) != n_folds:
        return []
    places = np.arange(parts[0].left.n_features)
    for part in parts[1:]:
        places = np.intersect1d(places, common_features(parts[0].left, part.left)[0])
    if not places.size:
        return []
    left = _taken(parts[0].left, places)
    total = np.zeros((len(places), len(places)))
    for part in parts:
        _, chosen = common_features(left, part.left)
        total += unit_gram(part)[np.ix_(chosen, chosen)]
    return [gram_of(left, total / (n_folds - 1), np.ones(n_folds, dtype=bool), parts[0].label)]


def unit_gram(block: SumsBlock) -> Array:
    """Return Z'Z as if all amplitudes were 1."""
    scale = np.where(block.left.amplitudes == 0, 1.0, block.left.amplitudes)
    return np.asarray(block.sums / np.outer(scale, scale))


def _taken(feature_map: FeatureMap, places: np.ndarray) -> FeatureMap:
    return FeatureMap(feature_map.frequencies[:, places], feature_map.phases[places], np.ones(len(places)))


def common_features(left: FeatureMap, right: FeatureMap) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the features that two maps share, in each; amplitudes do not count."""

    def keys(feature_map: FeatureMap) -> dict[bytes, int]:
        columns = np.ascontiguousarray(np.vstack([feature_map.frequencies, feature_map.phases]).T)
        return {column.tobytes(): i for i, column in enumerate(columns) if feature_map.amplitudes[i] != 0}

    first, second = keys(left), keys(right)
    pairs = [(i, second[key]) for key, i in first.items() if key in second]
    places = np.array(pairs, dtype=int).reshape(-1, 2)
    return places[:, 0], places[:, 1]


def view_of(
    record: Overheard,
    listeners: Sequence[str],
    target: Site,
    selector: Chooser,
    tuning: Tuning | None = None,
    *,
    granted: bool,
) -> View:
    """Return the joint view that `listeners` have of `target`, from the messages of a run.

    The target's rows are used for A and m only, and only if these are granted. The selector is that of the run, with
    the bandwidth of the training.
    """
    n_folds = tuning.folds if tuning is not None else 1
    fold_of = target.fold_of(n_folds)  # granted as well: outside the site nobody knows it
    rows = (target.X, target.y, fold_of) if granted else None
    blocks = [b for name in listeners for b in _heard_by(name, record, target, selector, tuning, rows)]
    return View(blocks, tuple(np.bincount(fold_of, minlength=n_folds).tolist()))


Granted = tuple[Array, Array, np.ndarray]  # the target's rows, responses and folds


def _heard_by(
    listener: str, record: Overheard, target: Site, selector: Chooser, tuning: Tuning | None, granted: Granted | None
) -> Iterator[SumsBlock]:
    """Yield the sums that a neighbour was sent; `Sums` are the last message about a bandwidth and a fold."""
    n_folds = tuning.folds if tuning is not None else 1
    plan = list(product(tuning.sigmas, range(n_folds))) if tuning is not None else []
    steps = iter([*plan, (selector.bandwidth, -1)])
    sigma, fold = next(steps)
    maps: dict[str, FeatureMap] = {}
    for entry in record.heard:
        if {entry.sender, entry.receiver} != {listener, target.name}:
            continue
        folds, label = np.arange(n_folds) != fold, f"{listener}, sigma {sigma:g}"
        message = entry.message.candidates if isinstance(entry.message, Shortlist) else entry.message
        if isinstance(message, Features):
            maps[entry.sender] = read_features(entry.sender, message)
        elif isinstance(message, Chosen):
            drawing = selector.replace(sigma=sigma)
            maps[entry.sender] = redraw(drawing, message, target.seed, entry.sender, target.X.shape[1])
        elif isinstance(message, Moments) and entry.receiver == listener:
            shortlist = maps[listener]
            yield gram_of(shortlist, unpack_symmetric(message.gram, shortlist.n_features), folds, f"{label}, shortlist")
            yield SumsBlock(shortlist, None, message.moment[:, None], folds, f"{label}, shortlist and y")
        elif isinstance(message, Sums) and entry.receiver == listener:
            yield from _of_choice(message, maps[listener], maps[target.name], folds, label, granted)
            if fold == -1:
                return
            sigma, fold = next(steps)


def _of_choice(
    sums: Sums, own: FeatureMap, theirs: FeatureMap, folds: np.ndarray, label: str, granted: Granted | None
) -> Iterator[SumsBlock]:
    gram, cross = unpack_symmetric(sums.gram, own.n_features), np.asarray(sums.cross)
    if granted is None:
        yield gram_of(own, gram, folds, f"{label}, choice")
        yield SumsBlock(own, theirs, cross, folds, f"{label}, both")
        return
    X, y, fold_of = granted
    kept = folds[fold_of]
    features = theirs(X[kept])
    joint_gram = np.block([[gram, cross], [cross.T, features.T @ features]])
    yield gram_of(stack(own, theirs), joint_gram, folds, f"{label}, both")
    yield SumsBlock(theirs, None, (y[kept] @ features)[:, None], folds, f"{label}, target's and y")
