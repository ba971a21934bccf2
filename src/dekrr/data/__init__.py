"""Data to try dekrr on."""

from .synthetic import make_sites

__all__ = ["make_sites"]
