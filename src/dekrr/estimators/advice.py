"""What a fit tells that came to nothing, or that will take long: the figures, and what to do.

All of it is about rows and models in this process. Nothing is sent for it.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import PoorFitWarning, warn
from ..rows import Rows
from ..types import Array
from .validation import HeldOutErrors

_MANY_COLUMNS = 3000
_BLOCK_ROWS = 1 << 14
_FEW = 3  # rows
_MANY = 100  # rows of which they are few
_MOST = 0.5  # of the variance
_LOGARITHM = (
    "look whether these values are mistakes, or train on the logarithm, by a column that has it or with "
    "TransformedTargetRegressor(DeKRRRegressor(), func=np.log1p, inverse_func=np.expm1); "
    '"Tables as they are" in the documentation has more'
)


def tell_of_many_columns(n_columns: int) -> None:
    """Warn, before a fit, that so many columns take long."""
    if n_columns > _MANY_COLUMNS:
        warn(
            f"the rows have {n_columns} columns of numbers: time and memory grow with them, and a site's features can "
            "tell few of them apart. 600 rows of 4,000 columns took about 20 s and 1.4 GB, of 10,000 columns 110 s "
            "and 4.5 GB. Select columns first, as in make_pipeline(SelectKBest(f_regression, k=100), "
            "DeKRRRegressor(verbose=1)); verbose=1 shows the progress"
        )


def share_of_few(rows: Mapping[Hashable, Rows]) -> tuple[float, int]:
    """Return the share of the variance of the response that the three rows with the most of it carry, and all rows.

    Of several outputs it is the largest share. Rows that are read in batches are judged by the sites' samples.

    Parameters
    ----------
    rows : mapping of site to Rows
        Those of other processes do not count, nor do rows that would have to be read once more.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.rows import ArrayRows
    >>> costs = np.append(np.tile([9.0, 11.0], 100), 49_454.0)
    >>> share, n_rows = share_of_few({"a": ArrayRows(np.zeros((201, 1)), costs)})
    >>> round(share, 2), n_rows
    (1.0, 201)
    """
    parts = [part for own in rows.values() for part in _responses(own) if len(part)]
    if not parts:
        return 0.0, 0
    y = np.concatenate([part.reshape(len(part), -1) for part in parts])
    squares = (y - y.mean(axis=0)) ** 2
    total = squares.sum(axis=0)
    if len(y) < _MANY or not (total > 0).any():
        return 0.0, len(y)
    few = np.partition(squares, len(y) - _FEW, axis=0)[-_FEW:].sum(axis=0)
    return float(np.max(few[total > 0] / total[total > 0])), len(y)


def _responses(rows: Rows) -> Iterator[Array]:
    if rows.streamed:
        if "survey" in vars(rows):  # the run has passed over them
            yield rows.sample.arrays().y
    else:
        yield from (block.y for block in rows.blocks(_BLOCK_ROWS))


def tell_of_poor_fit(own: float | None, union: float | None, few: tuple[float, int]) -> None:
    """Warn of models that predict held-out rows worse than their mean does; where none were held out, of what does so.

    Parameters
    ----------
    own, union : float or None
        RSE on held-out rows; None where it is not known.
    few : (float, int)
        What `share_of_few` returns.
    """
    share, n_rows = few
    heavy = f"{_FEW} of {n_rows} rows carry {_percent(share)} of the variance of the response: {_LOGARITHM}"
    known = {"own": own, "union": union}
    errors = {name: error for name, error in known.items() if error is not None and not np.isnan(error)}
    if not errors and share > _MOST:
        warn(heavy, PoorFitWarning)
    if max(errors.values(), default=0.0) <= 1:
        return
    figures = " and ".join(f"{error:.3g} ({name})" for name, error in errors.items())
    if share > _MOST:
        advice = f". {heavy[0].upper()}{heavy[1:]}"
    elif errors.get("own", 0.0) > 1:
        advice = (
            ": these models are no better than that. See whether the columns say anything about the response, and "
            "whether a few rows have very large responses: of such a response train on the logarithm, with "
            "TransformedTargetRegressor"
        )
    else:
        advice = (
            ": a site's model is of use for rows of its own site alone. Give sites to predict, and do not take one "
            "site's model for rows of others"
        )
    warn(f"the held-out RSE is {figures}, and 1 is that of always predicting the mean{advice}", PoorFitWarning)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share < 0.995 else "nearly all"


def advise(regressor: Any, own: float | None = None, union: float | None = None) -> None:
    """Warn of a poor fit of a fitted estimator, by errors on held-out rows that were measured apart, or by its own."""
    found: HeldOutErrors | None = (getattr(regressor, "validation_", None) or {}).get("RSE")
    if own is None and found is not None:
        own, union = found.mean_own, found.mean_union
    tell_of_poor_fit(own, union, regressor._few)
