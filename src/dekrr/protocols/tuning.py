"""What tuning chooses from, and what it chose; `cross_validation` has the procedure."""

from dataclasses import dataclass

import msgspec

from ..types import Array

OWN_WEIGHTS = (1 / 3, 1 / 2, 2 / 3, 1.0)


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """What to choose from, and how.

    Parameters
    ----------
    sigmas, alphas, consensuses : tuple of float
        The grid; a tuple of one is not tuned.
    folds : int
    objective : {"own", "union", "mean"}
        Score on held-out rows a site's own prediction, its neighbours' models, or the mean of both.
    prediction : {"own", "neighborhood"}
        How a site will predict; for "neighborhood" the weight of its own model is chosen too.
    """

    sigmas: tuple[float, ...]
    alphas: tuple[float, ...]
    consensuses: tuple[float, ...]
    folds: int = 5
    objective: str = "mean"
    prediction: str = "neighborhood"

    @property
    def own_weights(self) -> tuple[float, ...]:
        """The weights of the own model to choose from."""
        return OWN_WEIGHTS if self.prediction == "neighborhood" else (1.0,)

    @property
    def grid(self) -> list[tuple[float, float, float, float]]:
        """All candidates (sigma, alpha, consensus, own weight), in the order of their scores."""
        return [
            (s, a, c, w) for s in self.sigmas for c in self.consensuses for a in self.alphas for w in self.own_weights
        ]

    @property
    def n_maps(self) -> int:
        """For how many maps a site asks its neighbours at most: shortlists and choices, in tuning and training."""
        return 2 * (len(self.sigmas) * self.folds + 1)


@dataclass(frozen=True)
class Tuned:
    """What all sites chose.

    Parameters
    ----------
    sigma, alpha, consensus : float
    own_weight : float
        Of a site's own model in its prediction.
    grid : list of (sigma, alpha, consensus, own_weight)
    errors : ndarray of shape (n_candidates,)
        Mean squared held-out error of each candidate over all sites, in scaled units of the response.
    """

    sigma: float
    alpha: float
    consensus: float
    own_weight: float
    grid: list[tuple[float, float, float, float]]
    errors: Array
