"""Boosted trees as flat arrays, which predict without the library that trained them.

The nodes of all trees stand one after another, each tree's from its root on, and children stand after their parents.
A leaf is its own child: a walk that goes on at a leaf stays there, so that all trees can be walked side by side for as
many steps as the deepest one has levels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, ModelFileError, SettingsError
from ..features import compiled, loops_for
from ..types import Array

Integers = NDArray[np.int32]
_NODES = {"column": np.int32, "threshold": np.float64, "left": np.int32, "right": np.int32, "value": np.float64}
_TYPES = _NODES | {"roots": np.int32, "output": np.int32, "base": np.float64}
_PAIRS_PER_BLOCK = 1 << 14  # rows times trees that are walked at once: their nodes stay in the second-level cache
_ZERO = float(np.float32(1e-35))  # LightGBM reads numbers up to this size as zero
_DEEPEST = 1 << 10  # a walk takes as many steps; a file must not ask for a million


@dataclass(frozen=True, eq=False)
class TreeEnsemble:
    """A sum of regression trees for each output.

    `roots` and `output` have an entry per tree, `base` one per output, the others one per node.

    Examples
    --------
    A tree with one split, at 0.5 of column 0:

    >>> import numpy as np
    >>> from dekrr.parts.trees import TreeEnsemble
    >>> integers = lambda *numbers: np.array(numbers, dtype=np.int32)
    >>> stump = TreeEnsemble(integers(0, -1, -1), np.array([0.5, 0, 0]), integers(1, 1, 2), integers(2, 1, 2),
    ...                      np.array([0.0, 10, 20]), integers(0), integers(0), np.array([1.0]))
    >>> stump.predict(np.array([[0.5], [0.6]])).tolist(), stump.depth
    ([[11.0], [21.0]], 1)
    """

    column: Integers  # the column that a node reads; -1 at a leaf
    threshold: Array  # a row goes to the left where its value is at most the threshold
    left: Integers  # left, right: the children of a node; at a leaf the leaf itself
    right: Integers
    value: Array  # what a leaf adds to the prediction; 0 at other nodes
    roots: Integers  # the first node of each tree. Tree i has the nodes from `roots[i]` to `roots[i + 1]`.
    output: Integers  # the output that a tree adds to
    base: Array  # the prediction without any tree

    @classmethod
    def constant(cls, base: Array) -> "TreeEnsemble":
        """Return the ensemble without trees, which predicts `base` for every row."""
        none = {name: np.zeros(0, dtype=kind) for name, kind in _TYPES.items()}
        return cls(**none | {"base": np.array(base, dtype=np.float64)})

    @classmethod
    def joined(cls, ensembles: Iterable["TreeEnsemble"]) -> "TreeEnsemble":
        """Return the sum of ensembles that have the same outputs."""
        parts = list(ensembles)
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(part.n_nodes for part in parts)], dtype=np.int64)
        if starts[-1] > np.iinfo(np.int32).max:
            raise SettingsError(f"trees with {starts[-1]} nodes are too many for one model; take fewer of them")
        for i, shift in enumerate(starts[:-1].astype(np.int32)):
            part = parts[i]
            parts[i] = replace(part, left=part.left + shift, right=part.right + shift, roots=part.roots + shift)
        joint = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _TYPES}
        return cls(**joint | {"base": np.sum([part.base for part in parts], axis=0)})

    @property
    def n_trees(self) -> int:
        """The number of trees."""
        return len(self.roots)

    @property
    def n_nodes(self) -> int:
        """The number of nodes of all trees, leaves among them."""
        return len(self.column)

    @property
    def n_outputs(self) -> int:
        """The number of outputs."""
        return len(self.base)

    @cached_property
    def n_columns(self) -> int:
        """The number of columns that a row must have at least."""
        return int(self.column.max(initial=-1)) + 1

    @cached_property
    def depth(self) -> int:
        """The number of splits between the deepest leaf and its root."""
        level, depth = self.roots, 0
        while (level := level[self.column[level] >= 0]).size:
            level, depth = np.concatenate([self.left[level], self.right[level]]), depth + 1
            if depth > _DEEPEST:
                raise ModelFileError(f"a tree has more than {_DEEPEST} levels")
        return depth

    @cached_property
    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Columns, and the children of node i at 2 i (right) and 2 i + 1 (left), as numpy wants its indices."""
        children = np.column_stack([self.right, self.left]).ravel()
        return np.maximum(self.column, 0).astype(np.intp), children.astype(np.intp)

    @cached_property
    def _shares(self) -> Array | None:
        """The matrix that sums trees by output, shape (n_trees, n_outputs); None for one output."""
        return None if self.n_outputs == 1 else np.equal.outer(self.output, np.arange(self.n_outputs)).astype(float)

    def predict(self, X: Array) -> Array:
        """Return the predictions for rows `X`, shape (n_rows, n_outputs).

        A value that is not a number goes to the right at every split.
        """
        if X.ndim != 2 or X.shape[1] < self.n_columns:
            raise DataError(f"the trees read {self.n_columns} columns; the rows have the shape {X.shape}")
        found = np.tile(self.base, (len(X), 1))
        if not self.n_trees:
            return found
        loops = loops_for(len(X) * self.n_trees)
        if loops is not None:
            nodes = (self.column, self.threshold, self.left, self.right, self.value)
            loops.add_trees(np.ascontiguousarray(X, dtype=np.float64), *nodes, self.roots, self.output, found)
            return found
        size = max(1, _PAIRS_PER_BLOCK // self.n_trees)
        for start in range(0, len(X), size):
            rows = np.ascontiguousarray(X[start : start + size], dtype=np.float64)
            leaves = self._walked(rows.ravel(), len(rows))
            found[start : start + size] += (
                leaves.sum(axis=1, keepdims=True) if self._shares is None else leaves @ self._shares
            )
        return found

    def _walked(self, values: Array, n_rows: int) -> Array:
        """Return what the trees say about rows whose values stand one after another, shape (n_rows, n_trees)."""
        columns, children = self._steps
        node = np.tile(self.roots.astype(np.intp), n_rows)
        first = None if n_rows == 1 else np.repeat(np.arange(n_rows) * (len(values) // n_rows), self.n_trees)
        for _ in range(self.depth):
            place = columns.take(node)
            if first is not None:
                place += first
            to_left = values.take(place) <= self.threshold.take(node)
            node += node
            node += to_left
            node = children.take(node)
        return self.value.take(node).reshape(n_rows, -1)

    def scaled(self, weights: Array | float) -> "TreeEnsemble":
        """Return the ensemble whose predictions are multiplied by `weights`, one number or one for each output."""
        if np.ndim(weights) == 0:
            return replace(self, value=self.value * weights, base=self.base * weights)
        weights = np.broadcast_to(np.asarray(weights, dtype=np.float64), self.base.shape)
        per_node = np.repeat(weights[self.output], np.diff(self.roots, append=self.n_nodes))
        return replace(self, value=self.value * per_node, base=self.base * weights)

    def placed(self, factor: float, by: Array, output: int, base: Array) -> "TreeEnsemble":
        """Return trees of one output in other units: as trees of output `output` of as many as `base` has.

        Their sum is multiplied by `factor`; `by`, shape (n_columns,), is added to rows.
        """
        threshold = np.where(self.column >= 0, self.threshold + by[np.maximum(self.column, 0)], self.threshold)
        moved = np.full_like(self.output, output)
        return replace(self, threshold=threshold, value=self.value * factor, output=moved, base=base)

    def tensors(self, prefix: str = "trees_") -> dict[str, np.ndarray]:
        """Return the arrays under the names that they have in a model file."""
        return {prefix + name: np.ascontiguousarray(getattr(self, name)) for name in _TYPES}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, np.ndarray], prefix: str = "trees_", *, n_columns: int, n_outputs: int
    ) -> "TreeEnsemble":
        """Return the ensemble of a model file, whose arrays may be anything.

        Raises `ModelFileError` unless they are trees over `n_columns` columns whose walks end.
        """
        found: dict[str, Any] = {}
        for name, kind in _TYPES.items():
            if prefix + name not in tensors:
                raise ModelFileError(f"the tensor {prefix}{name} is missing")
            found[name] = tensors[prefix + name]
            if found[name].dtype != kind or found[name].ndim != 1:
                raise ModelFileError(f"the tensor {prefix}{name} is not a vector of {np.dtype(kind)}")
        trees = cls(**found)
        trees._check(prefix.rstrip("_"), n_columns, n_outputs)
        return trees

    def _check(self, what: str, n_columns: int, n_outputs: int) -> None:
        """Raise `ModelFileError` unless every walk stays inside the arrays and ends at a leaf."""
        n_nodes, nodes = self.n_nodes, np.arange(self.n_nodes)
        if any(len(getattr(self, name)) != n_nodes for name in _NODES) or len(self.output) != self.n_trees:
            raise ModelFileError(f"{what}: the arrays differ in length")
        if len(self.base) != n_outputs or np.any((self.output < 0) | (self.output >= n_outputs)):
            raise ModelFileError(f"{what}: the trees are not for {n_outputs} outputs")
        if not all(np.isfinite(part).all() for part in (self.threshold, self.value, self.base)):
            raise ModelFileError(f"{what}: a threshold or a value is not finite")
        if np.any((self.column < -1) | (self.column >= n_columns)):
            raise ModelFileError(f"{what}: a node reads a column that is not one of {n_columns}")
        in_order = (
            np.all(self.roots[1:] > self.roots[:-1]) and np.all(self.roots[:1] == 0) and np.all(self.roots < n_nodes)
        )
        if not in_order or bool(n_nodes) != bool(self.n_trees):
            raise ModelFileError(f"{what}: the roots are not the first nodes of the trees")
        split = self.column >= 0
        children = np.concatenate([self.left[split], self.right[split]])
        after = np.concatenate([nodes[split], nodes[split]])
        if np.any(children <= after) or np.any(children >= n_nodes):
            raise ModelFileError(f"{what}: a child does not stand after its parent")
        if np.any(self.left[~split] != nodes[~split]) or np.any(self.right[~split] != nodes[~split]):
            raise ModelFileError(f"{what}: a leaf has a child")
        parents = np.bincount(children, minlength=n_nodes)
        parents[self.roots] += 1
        tree = np.searchsorted(self.roots, nodes, side="right")
        if np.any(parents != 1) or np.any(tree[children] != tree[after]):
            raise ModelFileError(f"{what}: a node is not in exactly one tree")
        _ = self.depth  # raises where it is too large

    @classmethod
    def from_nodes(
        cls, column: Integers, split: Integers, child: Integers, value: Array, n_nodes: np.ndarray, edges: Array
    ) -> "TreeEnsemble":
        """Return the trees that `dekrr._compiled.boost` grew for one fold, of shape (n_trees, most_nodes).

        `edges`, shape (n_columns, most_bins - 1), are the upper ends of each bin but the last.
        """
        n_nodes = n_nodes[n_nodes > 0]  # without the trees after the last one that has a split
        there = np.arange(column.shape[1]) < n_nodes[:, None]
        roots = np.cumsum(n_nodes) - n_nodes
        column, split = (part[: len(n_nodes)][there] for part in (column, split))
        first = (child[: len(n_nodes)] + roots[:, None])[there]
        is_leaf, own = column < 0, np.arange(len(column))
        return cls(
            column=column,
            threshold=np.where(is_leaf, 0.0, edges[np.where(is_leaf, 0, column), np.where(is_leaf, 0, split)]),
            left=np.where(is_leaf, own, first).astype(np.int32),
            right=np.where(is_leaf, own, first + 1).astype(np.int32),
            value=value[: len(n_nodes)][there],
            roots=roots.astype(np.int32),
            output=np.zeros(len(roots), dtype=np.int32),
            base=np.zeros(1),
        )

    @classmethod
    def from_lightgbm(cls, booster: Any, num_iteration: int | None = None) -> "TreeEnsemble":
        """Return the first iterations, or all, of a `lightgbm.Booster`, whose raw score is the prediction.

        It was trained on finite numbers: rows without a value would be told apart by flags that are not read.
        """
        text = booster.model_to_string(num_iteration=-1 if num_iteration is None else num_iteration)
        head, *blocks = text.split("\nTree=")
        about = dict(line.partition("=")[::2] for line in head.splitlines())
        n_outputs = int(about["num_tree_per_iteration"])
        if num_iteration == 0 or not blocks:
            return cls.constant(np.zeros(n_outputs))
        lines: dict[str, list[str]] = {}
        for block in blocks:
            for line in block.partition("\n\n")[0].splitlines()[1:]:
                name, _, numbers = line.partition("=")
                lines.setdefault(name, []).append(numbers)
        kinds = _numbers(lines, "decision_type").astype(int)
        if "average_output" in about or _numbers(lines, "is_linear").any() or np.any((kinds & 1) | (kinds >> 2 == 1)):
            raise SettingsError("these trees have linear leaves, categories, zeros as missing values or are a forest")
        n_leaves = _numbers(lines, "num_leaves").astype(int)
        sizes = 2 * n_leaves - 1
        roots = np.cumsum(sizes) - sizes
        # A tree's splits stand before its leaves. LightGBM calls leaf i the child -1 - i.
        own = np.arange(sizes.sum()) - np.repeat(roots, sizes)
        is_leaf = own >= np.repeat(n_leaves - 1, sizes)
        root, first_leaf = np.repeat(roots, n_leaves - 1), np.repeat(roots + n_leaves - 1, n_leaves - 1)
        column, threshold, value = np.full(len(own), -1), np.zeros(len(own)), np.zeros(len(own))
        column[~is_leaf] = _numbers(lines, "split_feature")
        threshold[~is_leaf] = _beside_zero(_numbers(lines, "threshold"))
        value[is_leaf] = _numbers(lines, "leaf_value")

        def children(side: str) -> Integers:
            given, nodes = _numbers(lines, side).astype(int), np.arange(len(own))
            nodes[~is_leaf] = np.where(given >= 0, root + given, first_leaf - 1 - given)
            return nodes.astype(np.int32)

        return cls(
            column=column.astype(np.int32),
            threshold=threshold,
            left=children("left_child"),
            right=children("right_child"),
            value=value,
            roots=roots.astype(np.int32),
            output=(np.arange(len(n_leaves)) % n_outputs).astype(np.int32),
            base=np.zeros(n_outputs),
        )


def _beside_zero(threshold: Array) -> Array:
    """Return LightGBM's thresholds, moved so that they tell no number from zero that LightGBM reads as zero."""
    below = np.where(threshold < 0, np.nextafter(-_ZERO, -np.inf), _ZERO)
    return np.where(np.abs(threshold) <= _ZERO, below, threshold)


def _numbers(lines: Mapping[str, list[str]], name: str) -> np.ndarray:
    """Return the numbers of all trees' lines of one name."""
    return np.fromstring(" ".join(lines.get(name, ())), sep=" ")


_ROWS_IN_LEAF = 20
_SOME, _MANY = 500, 8000  # rows
_PATIENCE = 10  # trees without a clearly smaller error, and a fifth of the number before on top
_CLEARLY = 0.005
_MOST_TREES = 1000
# Thresholds lie between values that differ by more than rounding. LightGBM keeps zeros apart by a threshold of 1e-35,
# so no column has a zero. Otherwise a prediction could change with the order in which sums are taken.
_DIGITS = 9


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """What `fit_trees` gives."""

    # the booster of each fold, which has not seen the fold's rows. Their mean is the model.
    folds: dict[int, TreeEnsemble]
    out_of_fold: Array  # shape (n_rows, n_outputs): the prediction for each row of the booster that has not seen it
    n_trees: tuple[int, ...]  # the number of trees of each booster, by output

    @property
    def trees(self) -> TreeEnsemble:
        """The mean of the folds' boosters."""
        return TreeEnsemble.joined(one.scaled(1 / len(self.folds)) for one in self.folds.values())


def settings_for(n_rows: int) -> dict[str, Any]:
    """Return LightGBM's settings for a site with so many rows; docs/accuracy.md says how they were found."""
    return {
        # With n rows, sqrt(n) in a leaf: the noise of a leaf's mean and the width of a leaf both fall with n.
        "min_sum_hessian_in_leaf": min(np.sqrt(n_rows), _ROWS_IN_LEAF),
        "num_leaves": int(np.clip(np.sqrt(n_rows) / 3, 8, 63)),
        "learning_rate": 0.1 if n_rows >= _SOME else 0.2,
        "max_bin": 255 if n_rows >= _MANY else 63,
        "max_depth": 8,
    }


_FIXED: dict[str, Any] = {
    "objective": "none",  # gradients are given
    "metric": "None",
    "min_data_in_leaf": 1,  # see min_sum_hessian_in_leaf: the rows of the fold are counted, but have no weight
    "min_data_in_bin": 1,
    "feature_pre_filter": False,
    "use_missing": False,  # rows are finite numbers
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}


def fit_trees(
    X: Array,
    y: Array,
    weight: Array | None,
    fold_of: np.ndarray,
    *,
    seed: int,
    n_trees: int = _MOST_TREES,
    settings: dict[str, Any] | None = None,
) -> BoostedTrees | None:
    """Fit boosted trees to a site's rows, for each output of their own; None where no tree could have a split.

    That is where there are too few rows, or all are equal or in one fold. Folds may differ in size.
    """
    n_rows = len(X)
    usual = settings_for(n_rows)
    parameters = _FIXED | {"seed": seed} | usual | (settings or {})
    weights = np.ones(n_rows) if weight is None else weight / np.mean(weight)
    folds = {int(fold): fold_of == fold for fold in np.unique(fold_of)}
    seen = min((weights[~fold].sum() for fold in folds.values()), default=0.0)
    if len(folds) < 2 or seen < 2 * parameters["min_sum_hessian_in_leaf"] or not np.ptp(X, axis=0).any():
        return None
    lowest = X.min(axis=0) - 1.0
    read = np.ascontiguousarray(np.round(X - lowest, _DIGITS), dtype=np.float64)
    fast = n_rows < _SOME and compiled() is not None and usual.keys() >= (settings or {}).keys()
    grown = (_LoopTable if fast else _LightGBMTable)(read, parameters)
    responses = y.reshape(n_rows, -1)
    ensembles: dict[int, list[TreeEnsemble]] = {fold: [] for fold in folds}
    found, numbers = np.empty(responses.shape), []
    for k, response in enumerate(responses.T):
        seen_by = [_Seen.of(response, weights, fold) for fold in folds.values()]
        number, trees, scores = grown.boosted(seen_by, n_trees)
        numbers.append(number)
        for name, one, seen in zip(folds, trees, seen_by, strict=True):
            found[seen.fold, k] = seen.mean + seen.spread * scores[seen.fold]
            base = seen.mean * np.eye(responses.shape[1])[k]
            ensembles[name].append(one.placed(seen.spread, lowest, k, base))
    return BoostedTrees({name: TreeEnsemble.joined(own) for name, own in ensembles.items()}, found, tuple(numbers))


@dataclass(frozen=True, eq=False)
class _Seen:
    """The rows as the booster of a fold sees them: responses with mean 0 and variance 1, rows of the fold unseen."""

    fold: np.ndarray
    weights: Array  # of all rows
    response: Array
    mean: float
    spread: float

    @classmethod
    def of(cls, response: Array, weights: Array, fold: np.ndarray) -> "_Seen":
        of_seen = np.where(fold, 0, weights)
        of_seen = of_seen / of_seen.sum()
        mean = float(of_seen @ response)
        centred = response - mean
        spread = float(np.sqrt(of_seen @ centred**2)) or 1.0
        return cls(fold, weights, centred / spread, mean, spread)


class _LoopTable:
    """Rows in bins, and trees that the compiled loop grows.

    Values share a bin where there are more than bins; each bin then has about as many rows.
    """

    def __init__(self, read: Array, parameters: dict[str, Any]) -> None:
        self._parameters = parameters
        self._codes = np.empty(read.T.shape, dtype=np.uint8)
        self._edges = []
        most = parameters["max_bin"]
        for codes, values in zip(self._codes, read.T, strict=True):
            different, place, counts = np.unique(values, return_inverse=True, return_counts=True)
            if len(different) > most:
                own = (np.cumsum(counts) - counts) * most // len(values)
                _, first, of_value = np.unique(own, return_index=True, return_inverse=True)
            else:
                first, of_value = np.arange(len(different)), np.arange(len(different))
            codes[:] = of_value[place]
            self._edges.append((different[first[1:] - 1] + different[first[1:]]) / 2)

    def boosted(self, boosters: list[_Seen], n_trees: int) -> tuple[int, list[TreeEnsemble], Array]:
        """Return the number of trees, the trees of each booster, and scores out of fold."""
        given, fold_of = self._parameters, np.argmax([one.fold for one in boosters], axis=0)
        number, scores, column, split, child, value, n_nodes = compiled().boost(
            self._codes,
            np.array([len(edges) + 1 for edges in self._edges]),
            np.array([one.response for one in boosters]),
            boosters[0].weights,
            fold_of,
            np.array([one.spread for one in boosters]),
            given["learning_rate"],
            float(given["min_sum_hessian_in_leaf"]),
            given["num_leaves"],
            given["max_depth"] if given["max_depth"] > 0 else given["num_leaves"],
            n_trees,
            (_PATIENCE, _CLEARLY),
        )
        widest = max(len(edges) for edges in self._edges)
        edges = np.array([np.pad(own, (0, widest - len(own))) for own in self._edges])
        nodes = zip(column, split, child, value, n_nodes, strict=True)
        return number, [TreeEnsemble.from_nodes(*each, edges) for each in nodes], scores


class _LightGBMTable:
    """Rows in LightGBM's bins, and trees that LightGBM grows."""

    def __init__(self, read: Array, parameters: dict[str, Any]) -> None:
        import lightgbm

        self._parameters = parameters
        self._table = lightgbm.Dataset(read, label=np.zeros(len(read)), params=parameters).construct()

    def boosted(self, boosters: list[_Seen], n_trees: int) -> tuple[int, list[TreeEnsemble], Array]:
        """Return the number of trees, the trees of each booster, and scores out of fold."""
        growing = [_Booster(self._table, self._parameters, one) for one in boosters]
        number, scores = _grow(growing, n_trees)
        return number, [TreeEnsemble.from_lightgbm(one.booster, number) for one in growing], scores


class _Booster:
    """The trees of one fold and one output, which grow one after another."""

    def __init__(self, table: Any, parameters: dict[str, Any], seen: _Seen) -> None:
        import lightgbm

        self.booster = lightgbm.Booster(parameters, table)
        self.finished = False  # whether no further tree has a split
        self.seen = seen
        self._weights = np.where(seen.fold, 0, seen.weights).astype(np.float32)
        self._held_weights = np.where(seen.fold, seen.weights, 0)
        self._scores: Array = np.zeros(len(seen.response))
        self._error = 0.0

    def grow(self) -> tuple[float, Array]:
        """Grow a tree; return the squared error of the trees before it on the fold's rows, and their scores."""
        if not self.finished:
            self.finished = self.booster.update(fobj=self._gradients)
        return self._error, self._scores

    def _gradients(self, scores: np.ndarray, table: Any) -> tuple[np.ndarray, np.ndarray]:
        # LightGBM's gradients are single precision: of responses with mean 0 and variance 1 they lose nothing.
        misses = scores - self.seen.response
        self._scores = scores
        self._error = float((misses * self._held_weights) @ misses) * self.seen.spread**2
        return misses.astype(np.float32) * self._weights, self._weights


def _grow(boosters: list[_Booster], most: int) -> tuple[int, Array]:
    """Grow trees in all boosters; return the number with the least error of all folds, and its scores out of fold."""
    least, best, scores = np.inf, 0, np.zeros(len(boosters[0].seen.response))
    marked, mark = np.inf, 0  # the last error that was clearly smaller than those before, and its number of trees
    for n_trees in range(most + 1):
        grown = [booster.grow() for booster in boosters]
        error = sum(own for own, _ in grown)
        if error < least:
            least, best = error, n_trees
            for booster, (_, own) in zip(boosters, grown, strict=True):
                scores[booster.seen.fold] = own[booster.seen.fold]
        if error < (1 - _CLEARLY) * marked:
            marked, mark = error, n_trees
        if n_trees - mark >= _PATIENCE + mark // 5 or all(booster.finished for booster in boosters):
            break
    return best, scores
