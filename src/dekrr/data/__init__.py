"""Data to try dekrr on, synthetic or from files, and partitions of rows over sites."""

from .catalogue import CATALOGUE
from .loading import Dataset, fetch, load, read_table
from .partitions import by_column, by_norm, by_response, dirichlet, halves, iid, imbalanced, partition
from .pictures import draw_sites
from .splits import Split, authors_split
from .synthetic import make_sites

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
