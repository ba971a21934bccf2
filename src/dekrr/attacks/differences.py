"""Rows from the differences of sums: what any two sums that a site sent differ by.

Two sums Z'Z about the same features, over sets of rows that differ by a few, differ by the signed sum over those few.
The rank of the difference is their number. Their features are orthogonal to its null space Q, and Q'z(x) = 0 is solved
for x from many starts, to the last digit. An outside audit took 20 to 50 rows of a site so from a run of release 0.1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..features import FeatureMap
from ..types import Array
from .sums import rows_in_null_space
from .views import Block, common_features, unit_gram

_THERE = 1e-8  # of the largest eigenvalue: what a Gram matrix has less of is rounding
_DIFFERENT = 1e-6  # of a whitened difference


@dataclass(frozen=True)
class Difference:
    """What two sums about the same features differ by.

    Parameters
    ----------
    feature_map : FeatureMap
        The features that both sums have, of amplitude 1.
    gram : ndarray of shape (n_features, n_features)
    rank : int
        How many rows, or directions, the difference has.
    full : int
        The rank of the sums themselves.
    """

    feature_map: FeatureMap
    gram: Array
    rank: int
    full: int

    @property
    def is_telling(self) -> bool:
        """Whether the difference is a sum over fewer rows than there are features."""
        return 0 < self.rank < self.full


def differences(blocks: Sequence[Block]) -> Iterator[Difference]:
    """Yield the difference of every two Gram matrices that share features."""
    for first, second in combinations([block for block in blocks if block.is_gram], 2):
        left, right = common_features(first.left, second.left)
        if len(left) < 2:
            continue
        whole = unit_gram(first)[np.ix_(left, left)]
        gram = whole - unit_gram(second)[np.ix_(right, right)]
        values, vectors = np.linalg.eigh(whole)
        there = values > _THERE * values[-1]
        whitening = vectors[:, there] / np.sqrt(values[there])
        rank = int(np.sum(np.abs(np.linalg.eigvalsh(whitening.T @ gram @ whitening)) > _DIFFERENT))
        features = FeatureMap(first.left.frequencies[:, left], first.left.phases[left], np.ones(len(left)))
        yield Difference(features, gram, rank, int(there.sum()))


def rows_from(difference: Difference, begin: Array, steps: int = 60) -> Array:
    """Return points whose features lie in the range of a difference, shape (n_starts, n_columns).

    Parameters
    ----------
    difference : Difference
    begin : ndarray of shape (n_starts, n_columns)
        In the unit box.
    steps : int
    """
    values, vectors = np.linalg.eigh(difference.gram)
    order = np.argsort(np.abs(values))
    null = vectors[:, order[: len(values) - difference.rank]]
    return rows_in_null_space(difference.feature_map, null, begin, steps)
