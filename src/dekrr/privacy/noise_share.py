"""How much of a model differential privacy drowns in noise: a rule of thumb that needs no row.

The noise on the Gram matrix G = Z'Z of D features is symmetric, with entries of scale s / sqrt(2) off the diagonal. Its
norm is about s sqrt(2 D), the edge of Wigner's semicircle. The largest eigenvalue of G is at most its trace, which is
N_j, because a row's features have length 1. So

    share = s sqrt(2 D) / N_j

is the noise as a share of the largest eigenvalue that G could have. With noise that sites share, it is the noise of the
total, of scale s sqrt(J / h), over the rows of all J sites; h is the number of honest sites that share it.

The thresholds are from measurements: two made-up problems of four sites in a ring, N_j from 100 to 20,000, D from 20 to
200, epsilon from 0.5 to 8, seed 0, full noise and noise shared against one colluder (`python
benchmarks/privacy_noise.py`, 216 fits with noise). Own RSE on new rows, with plain features:

    share            fits   error with noise / without (median)   twice as large, or above 0.9
    below 0.005        62                                  1.34                              0
    0.005 to 0.01      22                                  1.63                              4
    0.01 to 0.02       23                                  1.82                              7
    0.02 to 0.05       35                                  2.33                             29
    0.05 to 0.1        21                                  3.16                             19
    0.1 to 0.3         26                                  3.41                             25
    above 0.3          27                                  4.59                             27
"""

import math

from ..settings import DifferentialPrivacy

DOUBLES = 0.02
"""The share from which on noise about doubles the error."""

DROWNS = 0.1
"""The share from which on every other model was hardly better than the mean of the responses."""

_FEWEST_FEATURES = 10  # that are worth proposing


def noise_share(scale: float, n_features: int, n_rows: float) -> float:
    """Return the norm of the noise in a Gram matrix, as a share of the largest eigenvalue that it could have.

    Parameters
    ----------
    scale : float
        Of the noise (s).
    n_features : int
        D.
    n_rows : float
        Rows in the sums.

    Examples
    --------
    >>> noise_share(3.0, 100, 20_000) < DOUBLES < DROWNS < noise_share(3.0, 100, 200)
    True
    """
    return scale * math.sqrt(2 * n_features) / n_rows


def warning_of_noise(
    privacy: DifferentialPrivacy, scale: float, n_features: int, n_rows: int, n_sites: int = 1
) -> str | None:
    """Return a warning with remedies where noise costs much of a model's accuracy; None where it does not.

    Parameters
    ----------
    privacy : DifferentialPrivacy
    scale : float
        Of the noise on the sums.
    n_features : int
    n_rows : int
        Rows in the sums: of the site with the fewest, or of all sites where they share the noise.
    n_sites : int, default=1
        How many sites these rows are of.
    """
    share = noise_share(scale, n_features, n_rows)
    if share < DOUBLES:
        return None
    times = share / DOUBLES
    found = (
        f"noise of {100 * DOUBLES:g} % about doubled the error"
        if share < DROWNS
        else f"noise of {100 * DROWNS:g} % left every other model hardly better than the mean of the responses"
    )
    whose = f"the {n_rows} rows of all sites" if n_sites > 1 else f"the {n_rows} rows of the smallest site"
    remedies = [f"about {_rounded(_rows_needed(privacy, times, n_rows) / n_sites)} rows a site"]
    if n_features / times**2 >= _FEWEST_FEATURES:
        remedies.append(f"n_features={_even(n_features / times**2)}")
    if privacy.epsilon * times <= privacy.max_epsilon:
        remedies.append(f"epsilon={privacy.epsilon * times:.2g}")
    if privacy.colluders is None:
        further = ". colluders=1 helps too: sites then share the noise, and one curious site learns no more"
    else:
        further = ". Fewer colluders and more sites help too" if privacy.colluders > 1 else ". More sites help too"
    return (
        f"differential privacy with epsilon={privacy.epsilon:g} and {n_features} features adds noise of norm "
        f"{scale * math.sqrt(2 * n_features):.3g} to sums over {whose}, which is {100 * share:.2g} % of them. In "
        f"trials, {found}. It takes {' or '.join(remedies)} to bring it to {100 * DOUBLES:g} %{further}"
    )


def _rows_needed(privacy: DifferentialPrivacy, times: float, n_rows: int) -> float:
    """Return the rows with which the share is `times` smaller; delta, where it is N^-2, asks for more noise then."""
    needed = times * n_rows
    if privacy.delta is None:
        needed *= math.sqrt(math.log(needed) / math.log(max(n_rows, 2)))
    return needed


def _rounded(number: float) -> int:
    """Return a number rounded up to two digits."""
    unit = int(10 ** max(0, math.floor(math.log10(number)) - 1))
    return math.ceil(number / unit) * unit


def _even(number: float) -> int:
    return max(2, 2 * math.floor(number / 2))
