"""Commands on the ranks of an MPI program: errors that end all ranks."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from ..errors import DekrrError
from .rank_network import MPINetwork

_FIRST = 0.5  # seconds by which rank 0 tells an error before others that have the same


@contextmanager
def all_ranks() -> Iterator[Any]:
    """Give the network of all ranks; an error at one of them ends all."""
    network = MPINetwork()
    try:
        yield network
    except Exception as error:
        if network.n_ranks == 1 or isinstance(error, typer.Exit):
            raise
        _end_all(network, error)


def _end_all(network: Any, error: Exception) -> None:
    """Tell the error once, and end all ranks."""
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    text = f"{error}" if isinstance(error, DekrrError | OSError | ImportError) else f"{type(error).__name__}: {error}"
    if getattr(error, "of_all_ranks", False):
        if network.rank == 0:
            typer.echo(f"error: {text}{notes}", err=True)
        network.share(b"")
        sys.exit(getattr(error, "exit_code", 1))
    if network.rank:
        time.sleep(_FIRST)
    typer.echo(f"error: rank {network.rank}: {text}{notes}", err=True)
    sys.stderr.flush()
    network.comm.Abort(1)
