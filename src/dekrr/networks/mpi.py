"""The published name of `MPINetwork`; its code is in `dekrr.cluster`, which is imported when it is asked for."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("dekrr.cluster.rank_network"), name)
