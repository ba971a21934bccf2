"""The fits of an experiment on the ranks of an MPI program: rank 0 hands tasks out, the others do them.

Tasks and rows travel as MessagePack; nothing is pickled.
"""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..errors import NetworkError, one_line
from .fits import run
from .tasks import Task

_TASK, _ROW = 11, 12
_PAUSE = 0.005  # seconds between two looks


class _Done(msgspec.Struct, array_like=True):
    """The outcome of a task: a row and its seconds, or an error."""

    row: dict[str, Any]
    seconds: float
    error: str = ""


def hand_out(tasks: Sequence[Task], network: Any) -> Iterator[tuple[Task, dict[str, Any], float]]:
    """Yield each task with its row and its seconds, as the ranks finish them; only rank 0 calls it.

    Parameters
    ----------
    tasks : sequence of Task
    network : MPINetwork
        With two ranks or more.
    """
    comm, waiting = network.comm, list(reversed(tasks))
    busy: dict[int, Task] = {}
    while waiting or busy:
        for rank in range(1, network.n_ranks):
            if rank not in busy and waiting:
                busy[rank] = waiting.pop()
                comm.Send(msgspec.msgpack.encode(busy[rank]), dest=rank, tag=_TASK)
        rank, data = _next(network, list(busy), _ROW)
        done = msgspec.msgpack.decode(data, type=_Done)
        task = busy.pop(rank)
        if done.error:
            raise NetworkError(f"rank {rank}: {task.method} on {task.data} failed: {done.error}")
        yield task, done.row, done.seconds


def end(network: Any) -> None:
    """Tell all other ranks that there is nothing more to do."""
    for rank in range(1, network.n_ranks):
        network.comm.Send(b"", dest=rank, tag=_TASK)


def work(network: Any, directory: str | os.PathLike[str] | None) -> None:
    """Do what rank 0 hands out, until there is nothing more to do."""
    while True:
        _, data = _next(network, [0], _TASK)
        if not data:
            return
        try:
            done = _Done(*run(msgspec.msgpack.decode(data, type=Task), directory))
            encoded = msgspec.msgpack.encode(done, enc_hook=lambda value: value.tolist())
        except Exception as error:
            encoded = msgspec.msgpack.encode(_Done({}, 0.0, one_line(f"{type(error).__name__}: {error}")))
        network.comm.Send(encoded, dest=0, tag=_ROW)


def _next(network: Any, ranks: Sequence[int], tag: int) -> tuple[int, bytearray]:
    """Return the next message of any of these ranks; a wait ends after the network's patience."""
    from ..networks.ranks import MPI

    start, status = time.monotonic(), MPI.Status()
    while True:
        message = network.comm.Improbe(source=MPI.ANY_SOURCE, tag=tag, status=status)
        if message is not None:
            data = bytearray(status.Get_count(MPI.BYTE))
            message.Recv([data, MPI.BYTE])
            return int(status.Get_source()), data
        if time.monotonic() - start > network.patience:
            who = ", ".join(map(str, ranks))
            raise NetworkError(f"rank {network.rank} has heard nothing from ranks {who} for {network.patience:g} s")
        time.sleep(_PAUSE)
