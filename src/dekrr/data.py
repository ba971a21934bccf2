"""Data to try dekrr on, synthetic or from files, and partitions of rows over sites.

All but the made-up sites are in the annex `dekrr.lab.data_sets`, and are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lab.data_sets.catalogue import CATALOGUE as CATALOGUE
    from .lab.data_sets.loading import Dataset as Dataset
    from .lab.data_sets.loading import fetch as fetch
    from .lab.data_sets.loading import load as load
    from .lab.data_sets.partitions import by_response as by_response
    from .lab.data_sets.partitions import halves as halves
    from .lab.data_sets.partitions import partition as partition
    from .lab.data_sets.pictures import draw_sites as draw_sites
    from .synthetic import make_sites as make_sites

_HOMES = {
    "lab.data_sets.catalogue": "CATALOGUE",
    "lab.data_sets.loading": "Dataset fetch load read_table",
    "lab.data_sets.partitions": "by_column by_norm by_response dirichlet halves iid imbalanced partition",
    "lab.data_sets.pictures": "draw_sites",
    "lab.data_sets.splits": "Split authors_split",
    "synthetic": "make_sites",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dekrr.{_HOME_OF[name]}"), name)
