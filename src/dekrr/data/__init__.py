"""Data to try dekrr on, synthetic or from files, and partitions of rows over sites.

What reads files is in the annex `dekrr.lab.data_sets`, and is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .partitions import by_column, by_norm, by_response, dirichlet, halves, iid, imbalanced, partition
from .synthetic import make_sites

if TYPE_CHECKING:
    from ..lab.data_sets.catalogue import CATALOGUE
    from ..lab.data_sets.loading import Dataset, fetch, load, read_table
    from ..lab.data_sets.pictures import draw_sites
    from ..lab.data_sets.splits import Split, authors_split

_HOMES = {
    "catalogue": "CATALOGUE",
    "loading": "Dataset fetch load read_table",
    "pictures": "draw_sites",
    "splits": "Split authors_split",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "CATALOGUE",
    "Dataset",
    "Split",
    "authors_split",
    "by_column",
    "by_norm",
    "by_response",
    "dirichlet",
    "draw_sites",
    "fetch",
    "halves",
    "iid",
    "imbalanced",
    "load",
    "make_sites",
    "partition",
    "read_table",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dekrr.lab.data_sets.{_HOME_OF[name]}"), name)
