"""One site's block row of the linear system behind the paper's objective (11).

All sites together minimise the objective

    L = sum_j 1/N |Z_jj theta_j - y_j|^2 + alpha/J |theta_j|^2
        + sum_{p in N_j} c~_j |Z_jj theta_j - Z_pj theta_p|^2

with c~_j = consensus / (N |N_j|). Its gradient vanishes where H theta = d, that is, where
H_jj theta_j - sum_p P_jp theta_p = d_j for every site j. With several outputs theta_j and d_j have one column per
output, the matrices are the same, and L is the sum over outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .statistics import CrossSums, OwnSums, unpack_symmetric
from .types import Array


@dataclass(frozen=True)
class Weights:
    """The numbers that weigh the terms of the objective at one site.

    Parameters
    ----------
    n_rows : float
        N: the number of rows of all sites that are in the sums, or the sum of their weights where they have some.
    n_sites : int
        J.
    alpha : float
        The regularisation (the paper's lambda).
    own_penalty : float
        c~_j.
    penalties : mapping of neighbour to float
        c~_p of each neighbour.
    """

    n_rows: float
    n_sites: int
    alpha: float
    own_penalty: float
    penalties: Mapping[str, float]


def penalty(consensus: float, n_rows: float, n_neighbors: int) -> float:
    """Return c~_j = consensus / (N |N_j|), and 0 for a site without neighbours."""
    return consensus / (n_rows * n_neighbors) if n_neighbors else 0.0


@dataclass(frozen=True)
class BlockRow:
    """H_jj, P_jp, d_j of one site, and y_j'y_j / N.

    Parameters
    ----------
    neighbors : tuple of str
        The neighbours, in the order of their blocks in `matrix`.
    matrix : ndarray of shape (D_j, D_j + sum of D_p)
        H_jj, and beside it -P_jp of all neighbours p.
    right_side : ndarray of shape (D_j,) or (D_j, n_outputs)
        d_j.
    response_energy : float
        y_j'y_j / N, summed over outputs.
    """

    neighbors: tuple[str, ...]
    matrix: Array
    right_side: Array
    response_energy: float

    @property
    def hessian(self) -> Array:
        """H_jj, shape (D_j, D_j)."""
        return self.matrix[:, : len(self.matrix)]

    @property
    def couplings(self) -> Array:
        """P_jp of all neighbours, side by side, shape (D_j, sum of D_p)."""
        return -self.matrix[:, len(self.matrix) :]

    def residual(self, coefficients: Array, of_neighbors: Mapping[str, Array]) -> Array:
        """Return d_j - H_jj theta_j + sum_p P_jp theta_p, of the shape of d_j."""
        known = np.concatenate([coefficients, *map(of_neighbors.__getitem__, self.neighbors)])
        residual: Array = self.right_side - self.matrix.dot(known)
        return residual

    def unseen(self, behind: Array) -> float:
        """Return the norm of P_jp'behind over all neighbours p.

        `behind` is the error in the neighbours' copies of theta_j. The result is the error that this causes in the
        residuals that the neighbours compute.
        """
        return float(np.linalg.norm(behind.T @ self.couplings))

    def objective_share(self, coefficients: Array, residual: Array) -> float:
        """Return this site's share of L: y_j'y_j / N - theta_j'(d_j + residual_j). All shares sum to L."""
        return self.response_energy - float(np.vdot(coefficients, self.right_side + residual))


def assemble(
    own: OwnSums, received: Mapping[str, CrossSums], sent: Mapping[str, CrossSums], weights: Weights
) -> BlockRow:
    """Return the block row of site j (the paper's equation 16, without the self penalty).

    Parameters
    ----------
    own : OwnSums
        Z_jj'Z_jj and Z_jj'y_j.
    received : mapping of neighbour p to CrossSums
        B_jp and C_jp, over p's rows.
    sent : mapping of neighbour p to CrossSums
        C_pj, over this site's rows.
    weights : Weights
    """
    n_features = len(own.moment)
    hessian = (1 / weights.n_rows + len(received) * weights.own_penalty) * own.gram
    hessian.flat[:: n_features + 1] += weights.alpha / weights.n_sites
    if received:
        hessian += unpack_symmetric(pull(received, weights), n_features)
    blocks = [hessian]
    for p, sums in received.items():
        coupling = -weights.penalties[p] * sums.cross
        coupling -= weights.own_penalty * sent[p].cross.T
        blocks.append(coupling)
    return BlockRow(
        neighbors=tuple(received),
        matrix=np.hstack(blocks),
        right_side=own.moment / weights.n_rows,
        response_energy=own.response_energy / weights.n_rows,
    )


def pull(received: Mapping[str, CrossSums], weights: Weights) -> Array:
    """Return the upper triangle of sum_p c~_p B_jp: the neighbours' rows in the penalty on this site's features."""
    return np.asarray(sum(weights.penalties[p] * sums.gram for p, sums in received.items()))
