"""Data to try dekrr on: made up, or read from files, and ways to divide it over sites."""

from .files import load, read_table
from .partitions import by_response, halves
from .synthetic import make_sites

__all__ = ["by_response", "halves", "load", "make_sites", "read_table"]
