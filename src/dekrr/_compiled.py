"""Loops of cosines, sums and trees that numba compiles, once per machine and type.

Each loop runs over all rows without Python's global lock (GIL), so that sites in threads do not wait for each other.
"""

from typing import Any

import numpy as np
from numba import njit


def _compile(loop: Any, **more: Any) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"} | more
    try:
        return njit(cache=True, **options)(loop)
    except RuntimeError:  # no folder is writable for numba's cache of compiled code
        return njit(**options)(loop)


def _compile_fast(loop: Any) -> Any:
    return _compile(loop, fastmath={"contract", "nsz"})


@_compile_fast
def overwrite(turns: Any, phases: Any, amplitudes: Any, quarter: Any, terms: Any) -> None:
    """Overwrite `turns`, angles in turns, by amplitudes * cos(2 pi (turns + phases)).

    `quarter` and `terms` are from `dekrr.features.terms_of`.
    """
    for i in range(turns.shape[0]):
        for k in range(turns.shape[1]):
            t = turns[i, k] + phases[k]
            u = quarter - abs(t - np.rint(t))
            v = u * u
            even = terms[0]
            for term in terms[1:]:
                even = even * v + term
            turns[i, k] = amplitudes[k] * u * even


@_compile
def overwrite_as_numpy(turns: Any, phases: Any, amplitudes: Any, quarter: Any, terms: Any) -> None:
    """Do what `overwrite` does, rounded as `dekrr.features._polynomial` rounds."""
    for i in range(turns.shape[0]):
        for k in range(turns.shape[1]):
            t = turns[i, k] + phases[k]
            u = quarter - abs(t - np.rint(t))
            v = u * u
            even = terms[0]
            for term in terms[1:]:
                even = even * v + term
            turns[i, k] = u * (even * amplitudes[k])


@_compile_fast
def evaluate(X: Any, parts: Any, quarter: Any, terms: Any, size: Any, out: Any) -> None:
    """Write the features of all rows to `out`, `size` rows at a time."""
    frequencies, phases, amplitudes = parts
    for start in range(0, X.shape[0], size):
        block = out[start : start + size]
        np.dot(X[start : start + size], frequencies, block)
        overwrite(block, phases, amplitudes, quarter, terms)


@_compile_fast
def moment(X: Any, parts: Any, quarter: Any, terms: Any, size: Any, y: Any) -> Any:
    """Return the sum over all rows of y times the features, computed `size` rows at a time."""
    frequencies, phases, amplitudes = parts
    buffer = np.empty((min(size, X.shape[0]), frequencies.shape[1]), dtype=X.dtype)
    total = np.zeros(frequencies.shape[1])
    for start in range(0, X.shape[0], size):
        rows = X[start : start + size]
        block = buffer[: rows.shape[0]]
        np.dot(rows, frequencies, block)
        overwrite(block, phases, amplitudes, quarter, terms)
        total += np.dot(y[start : start + size], block)
    return total


@_compile_fast
def weigh(weights: Any, features: Any) -> Any:
    """Return weights'features in double precision.

    The loop takes eight rows at a time: each sum is then read and written once per eight rows.
    """
    n_rows, n_features = features.shape
    total = np.zeros(n_features)
    whole = n_rows - n_rows % 8
    for i in range(0, whole, 8):
        a, b, c, d, e, f, g, h = weights[i : i + 8]
        for k in range(n_features):
            total[k] += (
                a * features[i, k]
                + b * features[i + 1, k]
                + c * features[i + 2, k]
                + d * features[i + 3, k]
                + e * features[i + 4, k]
                + f * features[i + 5, k]
                + g * features[i + 6, k]
                + h * features[i + 7, k]
            )
    for i in range(whole, n_rows):
        for k in range(n_features):
            total[k] += weights[i] * features[i, k]
    return total


@_compile
def project_out(
    row: Any, of_taken: Any, place: Any, ridge: Any, floor: Any, correlation: Any, remaining: Any, is_open: Any
) -> Any:
    """Take a candidate on the greedy path (`dekrr.selection.greedy.greedy_path`); return the next one and its gain.

    Products and sums are rounded one by one, in the order in which numpy rounds them. `row` is the candidate's column
    of Z'Z and becomes its row of the factor; `of_taken` is what earlier rows of the factor have of the column. The
    place -1 takes none. Correlations are of shape (n_outputs, n_features), the others of (n_features,).
    """
    n_outputs, n_features = correlation.shape
    if place >= 0:
        is_open[place] = False
        pivot = np.sqrt(max(remaining[place], floor))
        shares = correlation[:, place] / pivot
        for i in range(n_features):
            left = row[i] - of_taken[i]
            if i == place:
                left += ridge
            left /= pivot
            row[i] = left
            for k in range(n_outputs):
                correlation[k, i] -= left * shares[k]
            remaining[i] -= left * left
    best, most = 0, -np.inf
    for i in range(n_features):
        if is_open[i]:
            gain = correlation[0, i] * correlation[0, i]
            for k in range(1, n_outputs):
                gain += correlation[k, i] * correlation[k, i]
            gain /= max(remaining[i], floor)
            if not gain <= most:
                best, most = i, gain
    return best, most


@_compile_fast
def add_trees(
    X: Any, column: Any, threshold: Any, left: Any, right: Any, value: Any, roots: Any, output: Any, out: Any
) -> None:
    """Add what the trees of `dekrr.parts.trees` say about all rows to `out`.

    A tree's nodes are read for some hundred rows at a time, so that they stay in the cache.
    """
    for start in range(0, X.shape[0], 256):
        for tree in range(roots.shape[0]):
            for i in range(start, min(start + 256, X.shape[0])):
                node = roots[tree]
                while column[node] >= 0:
                    node = left[node] if X[i, column[node]] <= threshold[node] else right[node]
                out[i, output[tree]] += value[node]


@_compile
def boost(
    codes: Any,
    n_bins: Any,
    responses: Any,
    weights: Any,
    fold_of: Any,
    spreads: Any,
    rate: float,
    least_weight: float,
    n_leaves: int,
    depth: int,
    most: int,
    rule: Any,
) -> Any:
    """Grow the boosters of all folds side by side; see `dekrr.parts.trees`, whose rule of stopping is `_grow`.

    `codes`, shape (n_columns, n_rows), are the bins of values; `responses`, shape (n_folds, n_rows), have mean 0 and
    variance 1 for each booster, and `spreads` are the units of errors. Trees have at most `n_leaves` leaves, of rows
    that weigh `least_weight`, and `depth` levels. `rule` is patience, and what is a clearly smaller error.

    Returns the number of trees; scores out of fold, shape (n_rows,); of each fold, tree and node, the column (-1 at a
    leaf), the last bin that goes to the left, the first child (the second follows) and the value; the number of nodes
    of each tree, 0 where a booster found no further split.
    """
    n_columns, n_rows = codes.shape
    n_folds, size = responses.shape[0], 2 * n_leaves - 1
    column = np.empty((n_folds, most, size), dtype=np.int32)
    split, child = np.empty_like(column), np.empty_like(column)
    value = np.empty((n_folds, most, size))
    n_nodes = np.zeros((n_folds, most), dtype=np.int64)
    finished = np.zeros(n_folds, dtype=np.bool_)
    scores, found = np.zeros((n_folds, n_rows)), np.zeros(n_rows)
    rows = np.empty(n_rows, dtype=np.int64)
    gradients, in_bin, weight_in_bin = np.empty(n_rows), np.empty(256), np.empty(256)
    first, last, level = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    gain, of_column, of_bin = np.empty(size), np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    patience, clearly = rule
    least, best, marked, mark = np.inf, 0, np.inf, 0
    for n_trees in range(most + 1):
        error = 0.0
        for i in range(n_rows):
            fold = fold_of[i]
            miss = (scores[fold, i] - responses[fold, i]) * spreads[fold]
            error += weights[i] * miss * miss
        if error < least:
            least, best = error, n_trees
            for i in range(n_rows):
                found[i] = scores[fold_of[i], i]
        if error < (1 - clearly) * marked:
            marked, mark = error, n_trees
        if n_trees - mark >= patience + mark // 5 or n_trees == most or finished.all():
            break
        for fold in range(n_folds):
            if finished[fold]:
                continue
            n_seen = 0
            for i in range(n_rows):
                gradients[i] = weights[i] * (responses[fold, i] - scores[fold, i])
                if fold_of[i] != fold and weights[i] > 0:
                    rows[n_seen] = i
                    n_seen += 1
            tree_column, tree_split = column[fold, n_trees], split[fold, n_trees]
            tree_child, tree_value = child[fold, n_trees], value[fold, n_trees]
            first[0], last[0], level[0] = 0, n_seen, 0
            n, leaves, new = 1, 1, 0
            while True:
                for node in range(new, n):  # the best split of each new leaf
                    total, weight = 0.0, 0.0
                    for k in range(first[node], last[node]):
                        total += gradients[rows[k]]
                        weight += weights[rows[k]]
                    tree_column[node], tree_value[node], gain[node] = -1, rate * total / weight, 0.0
                    if level[node] == depth or weight < 2 * least_weight:
                        continue
                    before = total * total / weight
                    for c in range(n_columns):
                        bins = n_bins[c]
                        for b in range(bins):
                            in_bin[b] = weight_in_bin[b] = 0.0
                        for k in range(first[node], last[node]):
                            b = codes[c, rows[k]]
                            in_bin[b] += gradients[rows[k]]
                            weight_in_bin[b] += weights[rows[k]]
                        right, weight_right = 0.0, 0.0
                        for b in range(bins - 1, 0, -1):
                            right += in_bin[b]
                            weight_right += weight_in_bin[b]
                            weight_left = weight - weight_right
                            if weight_left < least_weight:
                                break
                            if weight_right < least_weight:
                                continue
                            left = total - right
                            more = left * left / weight_left + right * right / weight_right - before
                            if more > gain[node]:
                                gain[node], of_column[node], of_bin[node] = more, c, b - 1
                if leaves == n_leaves:
                    break
                node = -1
                for k in range(n):  # the leaf whose split gains most
                    if tree_column[k] < 0 and gain[k] > 1e-12 and (node < 0 or gain[k] > gain[node]):
                        node = k
                if node < 0:
                    break
                c, b = of_column[node], of_bin[node]
                tree_column[node], tree_split[node], tree_child[node], tree_value[node] = c, b, n, 0.0
                low, high = first[node], last[node]
                place, end = low, high
                while place < end:
                    if codes[c, rows[place]] <= b:
                        place += 1
                    else:
                        end -= 1
                        rows[place], rows[end] = rows[end], rows[place]
                first[n], last[n], first[n + 1], last[n + 1] = low, place, place, high
                level[n] = level[n + 1] = level[node] + 1
                new = n
                n += 2
                leaves += 1
            if leaves == 1:
                finished[fold] = True
                continue
            n_nodes[fold, n_trees] = n
            for i in range(n_rows):
                node = 0
                while tree_column[node] >= 0:
                    node = tree_child[node] + (codes[tree_column[node], i] > tree_split[node])
                scores[fold, i] += tree_value[node]
    return best, found, column[:, :best], split[:, :best], child[:, :best], value[:, :best], n_nodes[:, :best]
