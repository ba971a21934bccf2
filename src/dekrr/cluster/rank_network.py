"""All sites of a run on the ranks of an MPI program: many sites a rank, many ranks.

Every rank drives the procedures of its own sites. A message between two sites of a rank is handed over, without a copy
where it is large. All messages of an exchange from one rank to another travel together, in their usual encoding,
without blocking. A message to several sites of a rank travels once. An inbox is in the order of all sites, wherever
they are, so that the result is that of the local network to the last bit.

A rank whose site fails tells all others. All ranks then agree on the first error, in the order of exchanges and sites,
and raise it.
"""

import contextlib
import gc
import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from .. import errors
from ..errors import DekrrError, MessageError, NetworkError, TopologyError, one_line
from ..messages import MAX_BYTES, AnyMessage, check, decode, encode
from ..networks.base import Neighbors, Traffic
from ..networks.local import Step, free_cores, sharing_out
from ..protocols.site import Outbox, Procedure, Result
from ..tables import sources
from .rank_messages import MPI, Label, Notice, ParcelEntry, Parcels, Ranks, opened, sealed


def place(neighbors: Neighbors, n_ranks: int) -> np.ndarray:
    """Return the rank of each site, in the order of `neighbors`.

    METIS divides the graph. A site weighs as much as it has maps to sum over: its own and one for each neighbour. The
    rank with the first site is rank 0, and so on.

    Returns
    -------
    ndarray of shape (n_sites,)

    Examples
    --------
    >>> place({"a": ["b"], "b": ["a", "c"], "c": ["b", "d"], "d": ["c"]}, 2).tolist()
    [0, 0, 1, 1]
    """
    n_sites = len(neighbors)
    if n_ranks > n_sites:
        raise NetworkError(
            f"{n_ranks} ranks for {n_sites} site{'s' * (n_sites != 1)}: every rank needs a site; start fewer ranks"
        )
    if n_ranks == 1:
        return np.zeros(n_sites, dtype=np.intp)
    places = {name: i for i, name in enumerate(neighbors)}
    try:
        adjacency = [sorted(places[p] for p in around) for around in map(neighbors.__getitem__, neighbors)]
    except KeyError as error:
        raise TopologyError(f"site {error} is a neighbour, but not a site") from None
    ranks = _divided(adjacency, n_ranks)
    if len(np.unique(ranks)) < n_ranks:  # METIS may leave a part of a very small graph empty
        ranks = np.arange(n_sites) * n_ranks // n_sites
    _, first = np.unique(ranks, return_index=True)
    numbers = np.empty(n_ranks, dtype=np.intp)
    numbers[ranks[np.sort(first)]] = np.arange(n_ranks)
    return np.asarray(numbers[ranks])


def _divided(adjacency: Sequence[Sequence[int]], n_ranks: int) -> np.ndarray:
    try:
        import pymetis
    except ImportError:
        raise ImportError("sites on several ranks need pymetis: pip install 'dekrr[mpi]'", name="pymetis") from None
    starts = np.cumsum([0, *map(len, adjacency)])
    ends = np.fromiter((p for around in adjacency for p in around), np.intp, count=int(starts[-1]))
    weights = [1 + len(around) for around in adjacency]
    graph = pymetis.CSRAdjacency(starts, ends)
    _, ranks = pymetis.part_graph(n_ranks, graph, vweights=weights)
    return np.asarray(ranks, dtype=np.intp)


__all__ = ["MPINetwork"]

PATIENCE = 3600.0


class _Failure(msgspec.Struct, frozen=True, array_like=True):
    """What ended a rank's part: an error, after which exchange, and at which site, in the order of all sites."""

    exchange: int
    place: int
    rank: int
    kind: str
    text: str
    notes: list[str]


class _RankEnding(msgspec.Struct, frozen=True, array_like=True):
    """How a rank ends its part of a run."""

    exchange: int
    n_ended: int
    n_going_on: int
    sent: dict[int, int]
    has_warned: bool
    failure: _Failure | None


class MPINetwork:
    """Makes the networks of runs whose sites are on the ranks of an MPI program.

    All ranks must make the same networks and run them, in the same order, with the same graphs. Rank r drives the sites
    that METIS gives it, and `run` returns the results of these sites only.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        The ranks; by default those of the whole program.
    patience : float, default=3600
        Seconds that a rank waits for others without hearing anything, before it raises.
    gather : bool, default=True
        Whether an estimator has models, errors and traffic of all sites at every rank after a fit. Otherwise it has
        those of the rank's own sites, which is what fits into memory for very many sites.
    n_threads : int, optional
        The number of sites of a rank that may compute at the same time; by default the rank's share of the cores.

    Examples
    --------
    As in ``mpiexec -n 4 python -m mpi4py program.py``; a program without mpiexec has one rank:

    >>> from dekrr.networks.mpi import MPINetwork
    >>> from dekrr import DeKRRRegressor
    >>> from dekrr.data import make_sites
    >>> X, y, sites = make_sites(n_sites=6, random_state=0)
    >>> regressor = DeKRRRegressor(n_features=20, sigma=0.3, alpha=1e-4, random_state=0, network=MPINetwork())
    >>> regressor.fit(X, y, sites=sites).score(X, y, sites=sites) > 0.5
    True
    """

    def __init__(
        self, comm: Any = None, *, patience: float = PATIENCE, gather: bool = True, n_threads: int | None = None
    ) -> None:
        self.comm = MPI.COMM_WORLD if comm is None else comm
        self.patience = patience
        self.gather = gather
        self.n_threads = n_threads

    def __repr__(self) -> str:
        return f"MPINetwork(patience={self.patience:g}, gather={self.gather})"

    def __deepcopy__(self, memo: Any) -> "MPINetwork":
        """Return the same object: a copy of an estimator runs on the same ranks."""
        return self

    def __reduce__(self) -> Any:
        """Pickle without the communicator; a copy in another program has that program's ranks."""
        if self.comm is not MPI.COMM_WORLD:
            raise TypeError("an MPINetwork with a communicator of its own cannot be pickled")
        return partial(MPINetwork, patience=self.patience, gather=self.gather, n_threads=self.n_threads), ()

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return int(self.comm.Get_rank())

    @property
    def n_ranks(self) -> int:
        """The number of ranks."""
        return int(self.comm.Get_size())

    def __call__(self, neighbors: Neighbors) -> "RankNetwork":
        """Return the network of a graph."""
        return RankNetwork(neighbors, self)

    def sites_here(self, neighbors: Mapping[Any, Collection[Any]]) -> list[Any]:
        """Return the sites of a graph that this rank drives, in the order of the graph; no messages are sent."""
        return [site for site, rank in zip(neighbors, place(neighbors, self.n_ranks), strict=True) if rank == self.rank]

    def share(self, data: bytes) -> list[bytes]:
        """Return the data of all ranks, at every rank. All ranks must come here together."""
        with contextlib.closing(Ranks(self.comm, self.patience)) as ranks:
            shared = ranks.share(data)
            ranks.drain()
            return shared

    def threads_here(self) -> int:
        """Return the number of threads of this rank: as given, or its share of the node's cores."""
        if self.n_threads is not None:
            return self.n_threads
        cores = free_cores()
        if cores < (os.cpu_count() or 1):  # the ranks are bound to cores of their own
            return cores
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        try:
            return max(1, cores // int(node.Get_size()))
        finally:
            node.Free()


class RankNetwork:
    """One rank's part of a network: `here` are the sites that it drives, `traffic` is what they have sent."""

    def __init__(self, neighbors: Neighbors, maker: MPINetwork) -> None:
        self.neighbors = {site: frozenset(neighbors[site]) for site in neighbors}
        self.traffic = Traffic()
        self.gathers = maker.gather
        self.maker = maker
        self._names = list(self.neighbors)
        self._places = {name: i for i, name in enumerate(self._names)}
        self._ranks_of = place(neighbors, maker.n_ranks)
        self._refuse_different_graphs()
        self.here = frozenset(np.array(self._names, dtype=object)[self._ranks_of == maker.rank].tolist())
        rank_of = {name: int(rank) for name, rank in zip(self._names, self._ranks_of, strict=True)}
        self._elsewhere = {
            name: {p: rank_of[p] for p in self.neighbors[name] if rank_of[p] != maker.rank} for name in self.here
        }
        self._peers = sorted({rank for around in self._elsewhere.values() for rank in around.values()})
        self._n_threads = maker.threads_here()

    def _refuse_different_graphs(self) -> None:
        graph = hashlib.sha256(self._ranks_of.astype("<i8").tobytes())
        for name, around in self.neighbors.items():
            graph.update(msgspec.msgpack.encode([name, sorted(around)]))
        digests = self.maker.share(graph.digest())
        different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if different:
            raise NetworkError(
                f"ranks {different} have another graph of sites than rank 0: give all ranks the same sites, in the "
                "same order, the same topology and the same random_state"
            )

    def share(self, data: bytes) -> list[bytes]:
        return self.maker.share(data)

    def run(self, procedures: Mapping[str, Procedure[Result]]) -> dict[str, Result]:
        """Drive the procedures of this rank's sites to their end, and return their results; close those of others."""
        with contextlib.ExitStack() as stack:
            ranks = stack.enter_context(contextlib.closing(Ranks(self.maker.comm, self.maker.patience)))
            for procedure in procedures.values():
                stack.callback(procedure.close)
            if gc.isenabled():  # looking for cycles among the objects of very many sites takes a quarter of a run
                gc.disable()
                stack.callback(gc.enable)
            own = {name: procedures[name] for name in self._names if name in self.here}
            return _RankRun(self, ranks, own).to_end(stack)


class _RankRun:
    def __init__(self, network: RankNetwork, ranks: Ranks, procedures: Mapping[str, Procedure[Any]]) -> None:
        self._network = network
        self._ranks = ranks
        self._procedures = procedures
        self._results: dict[str, Any] = {}
        self._going_on: list[str] = list(procedures)
        self._exchange = 0
        self._error: BaseException | None = None
        self._place = -1  # of the site where the error is

    def to_end(self, stack: contextlib.ExitStack) -> dict[str, Any]:
        """Return the results of this rank's sites, or raise the first error of all ranks' sites."""
        network = self._network
        advance = stack.enter_context(sharing_out(network._n_threads, alone=len(network.neighbors) == 1))
        try:
            inboxes: dict[str, dict[str, AnyMessage]] | None = None
            while True:
                outboxes = self._advanced(advance, inboxes)
                if outboxes is None:
                    break
                inboxes = self._carry(outboxes)
                if inboxes is None:
                    self._ranks.warn_others()
                    break
                self._exchange += 1
        except Notice:
            pass
        except BaseException as error:
            self._error = error
            self._ranks.warn_others()
        self._end()
        return self._results

    def _advanced(self, advance: Any, inboxes: dict[str, Any] | None) -> dict[str, Outbox] | None:
        """Take one step of every site; return the outboxes, or None where the sites here have ended."""
        steps = [Step(name, procedure, inboxes, self._exchange) for name, procedure in self._procedures.items()]
        advance(steps)
        outboxes: dict[str, Outbox] = {}
        for step in steps:
            if step.error is not None:
                self._place = self._network._places[step.name]
                raise step.error
            if step.ended:
                self._results[step.name] = step.result
            else:
                outboxes[step.name] = step.outbox
        self._going_on = list(outboxes)
        if self._results:
            for rank in self._network._peers:
                self._ranks.send(rank, sealed(Label(self._exchange, False, True, []), []))
            return None
        return outboxes

    def _carry(self, outboxes: dict[str, Outbox]) -> dict[str, dict[str, AnyMessage]] | None:
        """Return the inboxes, or None where sites of another rank have ended."""
        arrived: dict[str, list[tuple[int, AnyMessage]]] = {name: [] for name in outboxes}
        parcels = Parcels(self._ranks, self._exchange, self._network._peers)
        for sender in list(outboxes):
            self._send(sender, outboxes.pop(sender), arrived, parcels)
        self._place = -1
        parcels.close()
        names, all_go_on = self._network._names, True

        def take(rank: int, data: bytearray) -> bool:
            nonlocal all_go_on
            label, contents = opened(data)
            all_go_on &= label.goes_on
            for entry, content in zip(label.entries, contents, strict=True):
                self._place = entry.sender
                message = decode(content, names[entry.sender])
                for receiver in entry.receivers:
                    arrived[names[receiver]].append((entry.sender, message))
            return label.is_last

        self._ranks.receive_each(self._network._peers, take, heeding=True)
        self._place = -1
        if not all_go_on:
            return None
        return {
            name: {names[place]: message for place, message in sorted(messages, key=lambda item: item[0])}
            for name, messages in arrived.items()
        }

    def _send(self, sender: str, outbox: Outbox, arrived: dict[str, Any], parcels: "Parcels") -> None:
        network, place_of = self._network, self._network._places
        place = self._place = place_of[sender]
        if not network.neighbors[sender].issuperset(outbox):
            _refuse(sender, outbox, network.neighbors[sender])
        elsewhere = network._elsewhere[sender]
        handed: dict[int, tuple[AnyMessage, int]] = {}  # by the identity of the message
        remote: dict[int, tuple[bytes, dict[int, list[int]]]] = {}
        for receiver, message in outbox.items():
            key, rank = id(message), elsewhere.get(receiver)
            if rank is None:
                if key not in handed:
                    handed[key] = hand_over(message, sender)
                known, size = handed[key]
                arrived[receiver].append((place, known))
            else:
                if key not in remote:
                    remote[key] = encode(message), {}
                data, receivers = remote[key]
                receivers.setdefault(rank, []).append(place_of[receiver])
                size = len(data)
            network.traffic.count(sender, receiver, type(message).__name__, size)
        for data, by_rank in remote.values():
            for rank, receivers_there in by_rank.items():
                parcels.add(rank, ParcelEntry(place, receivers_there, len(data)), data)

    def _end(self) -> None:
        """End together with all other ranks: raise the first error of all, or that sites did not end together."""
        ranks, failure = self._ranks, self._failure()
        sent = dict(ranks.sent)
        ending = _RankEnding(self._exchange, len(self._results), len(self._going_on), sent, ranks.has_warned, failure)
        shared = ranks.share(msgspec.msgpack.encode(ending))
        endings = [msgspec.msgpack.decode(data, type=_RankEnding) for data in shared]
        failures = [each.failure for each in endings if each.failure is not None]
        together = not any(each.n_going_on for each in endings) and len({each.exchange for each in endings}) == 1
        names: list[tuple[int, list[str], list[str]]] = []
        if not failures and not together:
            lists = ranks.share(msgspec.msgpack.encode((self._exchange, list(self._results), self._going_on)))
            names = [msgspec.msgpack.decode(data, type=tuple[int, list[str], list[str]]) for data in lists]
        ranks.drain([each.sent for each in endings], [rank for rank, each in enumerate(endings) if each.has_warned])
        if failures:
            self._raise(min(failures, key=lambda each: (each.exchange, each.place, each.rank)))
        if not together:
            self._raise_not_together(names)

    def _failure(self) -> _Failure | None:
        error = self._error
        if error is None:
            return None
        notes = list(getattr(error, "__notes__", ()))
        text = one_line(str(error)) if not isinstance(error, DekrrError) else str(error)
        return _Failure(self._exchange, self._place, self._ranks.number, type(error).__name__, text, notes)

    def _raise(self, failure: _Failure) -> None:
        if failure.rank == self._ranks.number:
            assert self._error is not None
            raise agreed(self._error)
        kind = getattr(errors, failure.kind, None) or getattr(sources, failure.kind, None)
        is_ours = isinstance(kind, type) and issubclass(kind, DekrrError)
        where = "" if failure.notes else f"rank {failure.rank}: "
        text = failure.text if is_ours else f"{failure.kind}: {failure.text}"
        error = (kind if is_ours and kind is not None else NetworkError)(where + text)
        for note in failure.notes:
            error.add_note(note)
        raise agreed(error) from self._error

    def _raise_not_together(self, names: list[tuple[int, list[str], list[str]]]) -> None:
        earliest = min(exchange for exchange, _, _ in names)
        ended = sorted(name for exchange, here, _ in names if exchange == earliest for name in here)
        going_on = sorted(
            name for exchange, here, on in names for name in (on if exchange == earliest else [*here, *on])
        )
        raise agreed(MessageError(f"sites {ended} ended after {earliest} exchanges while {going_on} go on"))


_SMALL = 1 << 14  # bytes of a message that is copied even inside a process


def hand_over(message: Any, sender: str) -> tuple[AnyMessage, int]:
    """Return a message as its receiver in the same process gets it, and the bytes that it would have on the wire.

    A large message of nothing but arrays is handed over as it is, after all checks on arrival. Nobody can write to it
    any more, the sender included.

    Examples
    --------
    >>> from dekrr.messages import Sums
    >>> large, small = (Sums(np.ones(size), np.ones((3, 3))) for size in (5000, 6))
    >>> hand_over(large, "a")[0] is large, hand_over(small, "a")[0] is small, large.gram.flags.writeable
    (True, False, False)
    """
    data = encode(message)
    arrays = [getattr(message, field) for field in message.__struct_fields__]
    if not _SMALL < len(data) <= MAX_BYTES or not all(map(_can_stay, arrays)):
        return decode(data, sender), len(data)  # which refuses what may not arrive
    check(message, sender)
    for array in arrays:
        array.flags.writeable = False
    return message, len(data)


def _can_stay(value: Any) -> bool:
    """Return whether a value is a finite array that has no other owner."""
    is_own = isinstance(value, np.ndarray) and value.flags.owndata and value.flags.c_contiguous
    return is_own and bool(np.isfinite(value).all())


def _refuse(sender: str, outbox: Outbox, neighbors: Collection[str]) -> None:
    receiver, message = next((to, what) for to, what in outbox.items() if to not in neighbors)
    raise MessageError(
        f"site {sender!r} wants to send {type(message).__name__} to {receiver!r}, which is not its neighbour; "
        f"its neighbours are {sorted(neighbors)}"
    )


def agreed(error: BaseException) -> BaseException:
    """Mark an error that all ranks raise together, so that one of them can tell it for all."""
    error.of_all_ranks = True  # type: ignore[attr-defined]
    return error
