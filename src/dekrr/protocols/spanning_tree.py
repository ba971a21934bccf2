"""Sums over all sites: partial sums go up the spanning tree of the roll call. The total, or a result, comes down.

Sums over the sites of a branch go up the tree in forms of their own, where plain vectors would be long. `SparseSums`
are votes, most of them 0. `BranchSums` are sums Z'Z: a triangle of the matrix or, of few rows, a factor.

The sum over k rows has the rank k. Let R be the triangular factor of Z = QR, of k rows. Then Z'Z = R'R, and R follows
from Z'Z as its pivoted Cholesky factor does: it tells as much as the sum, which is what a site may send, and no more.
With D features it takes k D numbers in place of D (D + 1) / 2. Most sites of a large network are leaves of the tree.

**Many sites** send Z'Z in fixed point, in as few bytes as the ridge allows that is added to it. Rounding changes the
Z'Z of branch b by E_b. The errors of J branches are independent and have the mean 0, so that E|sum_b E_b|^2 is J room^2
where each is `room` in Frobenius norm. In any one of D directions a random matrix is off by 2 / sqrt(D) times its
Frobenius norm at most (Wigner). With room = r N sqrt(D / J) / 40, the matrix that a ridge r N is added to is off by a
twentieth of this ridge. Ridges are chosen in steps of a factor of three.

A number in units of u is off by u^2 / 12 in the mean square. With units u_i, a factor's rows r_i of n numbers in all
change R'R by E'R + R'E + E'E, where |E'R + R'E|^2 = 2 sum_i |r_i|^2 |e_i|^2 in the mean: large rows have small units.
The constant has no ridge, and a coefficient as large as the mean response. So it comes first, and the first row, which
alone holds its products, has finer units.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import MessageError
from ..messages import AnyMessage, Masked, Rounded, Total, expect, expect_kind, expect_senders, expect_shape
from ..statistics import pack_symmetric, unpack_symmetric
from ..types import Array
from .masking import Agreement, Masking, Masks
from .roll_call import RollCall, Roster
from .site import Inbox, Outbox, Procedure, Quiet, passed


class Form(Protocol):
    """How the vectors of a branch's sites are added."""

    def fits(self, length: int) -> bool:
        """Return whether a vector can have this length."""

    def plus(self, parts: Sequence[Array]) -> Array:
        """Return the sum of vectors, each of a length that fits."""

    def sent(self, sums: Array) -> Total | Rounded:
        """Return the message that carries a vector."""

    def heard(self, sender: str, message: AnyMessage) -> Array:
        """Return the vector that a message carries."""


MANY_SITES = 20  # with more, sums over the tree travel rounded; up to as many, masks and none give the same
_SHARE_OF_RIDGE = 0.05
_FINER = 16
_COARSE_BITS = 12

Told = Callable[[Array], Total | Rounded]
"""Makes a message of a vector."""


def single(values: Array) -> Total:
    """Return numbers in single precision."""
    return Total(values.astype(np.float32))


def coarse(values: Array) -> Rounded:
    """Return numbers as 2048ths of the largest."""
    return Rounded.coarse(values, _COARSE_BITS)


def room_of(ridge: float, size: int, roster: Roster) -> float:
    """Return by how much rounding may change a branch's Z'Z of `size` features with at least this ridge; see above."""
    return float(_SHARE_OF_RIDGE / 2 * ridge * roster.n_counted * np.sqrt(size / roster.n_sites))


@dataclass(frozen=True)
class SparseSums:
    """Vectors of `size` numbers: the places and values of those that are not 0, where that is shorter."""

    size: int
    told: Told = Total

    def of(self, values: Array) -> Array:
        """Return the form of a vector."""
        places = np.flatnonzero(values)
        return np.append(places, values[places]) if 2 * len(places) < self.size else values

    def fits(self, length: int) -> bool:
        """Return whether a vector can have this length."""
        return length == self.size or (length < self.size and length % 2 == 0)

    def plus(self, parts: Sequence[Array]) -> Array:
        """Return the sum of vectors."""
        return self.of(np.sum([self.whole(part) for part in parts], axis=0)) if len(parts) > 1 else parts[0]

    def sent(self, sums: Array) -> Total | Rounded:
        """Return the message that carries a vector. Places need no more than single precision."""
        if len(sums) == self.size or self.told is Total:
            return self.told(sums)
        return single(sums)

    def heard(self, sender: str, message: AnyMessage) -> Array:
        """Return the vector that a message carries."""
        return values_of(sender, message, self.size)

    def whole(self, sums: Array) -> Array:
        """Return all numbers of a vector; a place that does not exist counts for nothing."""
        if len(sums) == self.size:
            return sums
        places, values = np.split(sums, 2)
        there = (places >= 0) & (places < self.size)
        found = np.zeros(self.size)
        np.add.at(found, places[there].astype(np.intp), values[there])
        return found


@dataclass(frozen=True)
class BranchSums:
    """How Z'Z and some further sums over the sites of a branch travel in one vector."""

    size: int  # D, the number of features
    n_beside: int  # how many numbers are beside Z'Z
    room: float = 0.0  # by how much rounding may change a branch's Z'Z, in Frobenius norm
    first: int = 0  # the feature that changes places with the first: the constant, where there is one

    @property
    def most_rows(self) -> int:
        """Of as many rows a factor is sent: with more it is not much smaller than the triangle of Z'Z, but slower."""
        return self.size // 2

    def of_rows(self, features: Array, beside: Array) -> Array:
        """Return the sums over rows with the features Z, at most `most_rows` of them."""
        return self._factored(features[:, self._order], beside)

    def _factored(self, rows: Array, beside: Array) -> Array:
        return np.append(np.asarray(np.linalg.qr(rows, mode="r")).ravel() if len(rows) else [], beside)

    @property
    def _order(self) -> np.ndarray | slice:
        """The order of features in sums, which is its own inverse."""
        if not self.first:
            return slice(None)
        order = np.arange(self.size)
        order[[0, self.first]] = self.first, 0
        return order

    def of_gram(self, gram: Array, beside: Array) -> Array:
        """Return the sums with a given Z'Z."""
        return np.concatenate([pack_symmetric(gram[self._order][:, self._order]), beside])

    def fits(self, length: int) -> bool:
        """Return whether sums can have this length."""
        n_rows, rest = divmod(length - self.n_beside, self.size)
        return length - self.n_beside == self._triangle or (rest == 0 and 0 <= n_rows <= self.most_rows)

    def plus(self, parts: Sequence[Array]) -> Array:
        """Return the sum of parts, each of a length that fits."""
        if len(parts) == 1:
            return parts[0]
        beside = np.sum([part[len(part) - self.n_beside :] for part in parts], axis=0)
        factor, triangle = self._read(parts)
        if triangle is None and len(factor) <= self.most_rows:
            return self._factored(factor, beside)
        packed = pack_symmetric(factor.T @ factor) if len(factor) else 0.0
        return np.append(packed if triangle is None else packed + triangle, beside)

    def sent(self, sums: Array) -> Total | Rounded:
        """Return the message that carries sums: with `room`, in fixed point."""
        own, beside = np.split(sums, [len(sums) - self.n_beside])
        if not self.room or not len(own):
            return Total(sums)
        if len(own) == self._triangle:
            lengths = self._lengths(self.size)
            units = np.full(self.size, self.room * np.sqrt(12) / self.size)
        else:  # a triangular factor: what is below the diagonal is 0
            rows = own.reshape(-1, self.size)
            lengths, own = self._lengths(len(rows)), rows[np.triu_indices(len(rows), m=self.size)]
            sizes = np.maximum(np.linalg.norm(rows, axis=1), np.finfo(float).tiny)
            units = np.minimum(self.room * np.sqrt(6 / len(own)) / sizes, np.sqrt(3 * self.room / len(own)))
        units[0] /= _FINER
        return Rounded.of(own, lengths, units, beside)

    def heard(self, sender: str, message: AnyMessage) -> Array:
        """Return the sums that a message carries."""
        if not isinstance(message, Rounded):
            return values_of(sender, message, -1)
        n_rows = len(message.widths)
        if message.beside.shape != (self.n_beside,) or not (0 < n_rows <= self.most_rows or n_rows == self.size):
            raise MessageError(f"site {sender!r} sent sums of {n_rows} rows and {message.beside.size} numbers", sender)
        own = message.numbers(self._lengths(n_rows), sender)
        if n_rows < self.size:
            rows = np.zeros((n_rows, self.size))
            rows[np.triu_indices(n_rows, m=self.size)] = own
            own = rows.ravel()
        return np.append(own, message.beside)

    def _lengths(self, n_rows: int) -> np.ndarray:
        return self.size - np.arange(n_rows)

    def whole(self, sums: Array) -> tuple[Array, Array]:
        """Return Z'Z and what is beside it."""
        factor, triangle = self._read([sums])
        gram = factor.T @ factor if triangle is None else unpack_symmetric(triangle, self.size)
        return gram[self._order][:, self._order], sums[len(sums) - self.n_beside :]

    @property
    def _triangle(self) -> int:
        return self.size * (self.size + 1) // 2

    def _read(self, parts: Sequence[Array]) -> tuple[Array, Array | None]:
        """Return the rows of all factors, and the sum of all triangles, None where there is none."""
        own = [part[: len(part) - self.n_beside] for part in parts]
        factors = [part for part in own if len(part) != self._triangle]
        triangles = [part for part in own if len(part) == self._triangle]
        rows = np.concatenate(factors) if factors else np.empty(0)
        return rows.reshape(-1, self.size), np.sum(triangles, axis=0) if triangles else None


@dataclass(frozen=True)
class Extremes:
    """The largest of each of `size` numbers, where others are added."""

    size: int

    def fits(self, length: int) -> bool:
        """Return whether a vector can have this length."""
        return length == self.size

    def plus(self, parts: Sequence[Array]) -> Array:
        """Return the largest numbers of vectors."""
        return np.asarray(np.max(parts, axis=0))

    def sent(self, sums: Array) -> Total | Rounded:
        """Return the message that carries a vector."""
        return Total(sums)

    def heard(self, sender: str, message: AnyMessage) -> Array:
        """Return the vector that a message carries."""
        return values_of(sender, message, self.size)


Largest = Array | float | Callable[[Masks], Array | float]
"""A public bound on the entries of every site's vector, which masked sums need; or what gives it under the masks."""


@dataclass(frozen=True)
class Tree:
    """The spanning tree of a run, and the masks of sums over it, where there are some.

    A sum takes 2 height exchanges. Partial sums go up, those of the deepest sites first. What comes of the total comes
    down. Every edge of the tree carries one vector each way, whatever the number of sites; on the way up only what is
    not 0, where that is shorter.

    Under masks a partial sum tells nothing. A site shares masks with its neighbours and with their neighbours. The
    masks of two sites cancel where the partial sums of both have met. All have met at the root alone. So a parent sees
    a child's sum only where no third site shares masks with a site behind that child, as in a network of two sites.
    Masked sums are right to about 1e-18 of `largest`, times the number of sites.
    """

    roster: Roster
    masks: Masks | None = None

    @property
    def largest_response(self) -> float:
        """What no response is above where sums are masked; otherwise infinite."""
        return math.inf if self.masks is None else 2.0**self.masks.responses

    def sum(self, values: Array, largest: Largest = 1.0, told: Told = Total) -> Procedure[Array]:
        """Return the exact sum of all sites' arrays, which are of one shape; of many sites, as `told` rounds it."""
        form, flat = SparseSums(values.size, self.among_many(told)), values.ravel()
        own = form.of(flat) if self.masks is None else flat
        return (yield from self.result(own, form.whole, values.size, largest, form, told)).reshape(values.shape)

    def result(
        self,
        values: Array | Callable[[], Array],
        compute: Callable[[Array], Array],
        n_results: int,
        largest: Largest = 1.0,
        form: Form | None = None,
        told: Told = Total,
    ) -> Procedure[Array]:
        """Return what the root of the tree computes of the sum of all sites' vectors; the sum itself stays at the root.

        Without masks, values may be a function that is called when the site's turn comes, and a `form` may say how
        vectors are added whose entries are not just numbers. The root alone calls `compute`, which returns `n_results`
        numbers. Of many sites, these come down in a message that `told` makes.
        """
        if self.masks is None:
            partial, children = yield from _climb(self.roster, values, Total, "values", form)
            return (yield from self._descend(partial, children, compute, n_results, self.among_many(told)))
        most = largest(self.masks) if callable(largest) else largest
        words = self.masks.hide_over_tree(_made(values) / most, self.roster.n_sites)
        partial, children = yield from _climb(self.roster, words, Masked, "words")
        if self.roster.parent is None:
            partial = most * self.masks.reveal_over_tree(partial, self.roster.n_sites)
        result = yield from self._descend(partial, children, compute, n_results)
        # Who heard another result shares no masks any more.
        self.masks.bind(hashlib.sha256(np.asarray(result, dtype=np.float64).tobytes()).digest())
        return result

    @property
    def rounds(self) -> bool:
        """Whether sums are rounded: in a network of few sites, and under masks, they are not."""
        return self.masks is None and self.roster.n_sites > MANY_SITES

    def among_many(self, told: Told) -> Told:
        """Return what makes messages, where sums are rounded, and otherwise what leaves numbers as they are."""
        return told if self.rounds else Total

    def _descend(
        self,
        partial: Array,
        children: list[str],
        compute: Callable[[Array], Array],
        n_results: int,
        told: Told = Total,
    ) -> Procedure[Array]:
        roster, step = self.roster, 0
        message: AnyMessage = told(compute(partial)) if roster.parent is None else Total(partial)
        while step < roster.height:
            outbox: Outbox = {}
            if step == roster.depth and children:
                outbox = dict.fromkeys(children, message)
            elif step != roster.depth - 1:
                outbox = Quiet((roster.depth - 1 if step < roster.depth else roster.height) - step)
            inbox = yield outbox
            step += passed(inbox)
            due = {roster.parent: (n_results,)} if roster.parent and step == roster.depth else {}
            expect_senders(inbox, due)
            for parent, message in inbox.items():
                expect_shape(parent, Total(values_of(parent, message, n_results)), "values", (n_results,))
        return values_of("", message, n_results)


def tree_of(roll: RollCall, agreement: Agreement | Masking | None) -> Procedure[Tree]:
    """Return the tree that sums of a run go over, masked where keys are agreed on."""
    roster = yield from roll.roster()
    return Tree(roster, (yield from agreement.masks()) if agreement is not None else None)


def values_of(sender: str, message: AnyMessage, size: int) -> Array:
    """Return the numbers of a `Total`, which is due, or of a row of this size, in double precision."""
    if isinstance(message, Rounded) and len(message.widths) == 1 and not message.beside.size:
        return message.numbers(np.array([size]), sender)
    return expect_kind(sender, message, Total).values.astype(np.float64, copy=False)


def _climb(
    roster: Roster,
    own: Array | Callable[[], Array],
    kind: type[Total] | type[Masked],
    field: str,
    form: Form | None = None,
) -> Procedure[tuple[Array, list[str]]]:
    """Send the sum over this site's branch to its parent; return that sum, and the site's children in the tree.

    What was sent is not kept: sums of many sites in one process are more than their rows. Where the site has a parent,
    an empty array takes the place of the sum.
    """
    children: list[str] = []
    total = None if callable(own) else own
    listens, speaks, step = roster.height - roster.depth - 1, roster.height - roster.depth, 0
    while step < roster.height:
        outbox: Outbox = {}
        if step == speaks and roster.parent is not None:
            given = _made(own) if total is None else total
            outbox = {roster.parent: kind(given) if form is None else form.sent(given)}
            del given
            total = np.empty(0)
        elif step != listens:
            outbox = Quiet(listens - step if step < listens else roster.height - step)
        inbox = yield outbox
        outbox = {}
        step += passed(inbox)
        for child in inbox:
            if child == roster.parent or step != listens + 1:
                raise MessageError(f"site {child!r} sent a partial sum out of turn", child)
        if step == listens + 1:
            children = list(inbox)
            total = _plus(_made(own) if total is None else total, inbox, kind, field, form)
        inbox = {}
    return _made(own) if total is None else total, children


def _made(own: Array | Callable[[], Array]) -> Array:
    return own() if callable(own) else own


def _plus(total: Array, inbox: Inbox, kind: type[Total] | type[Masked], field: str, form: Form | None) -> Array:
    if form is not None:
        parts = [total]
        for child, message in inbox.items():
            values = form.heard(child, message)
            expect_shape(child, Total(values), field, (len(values) if form.fits(len(values)) else len(total),))
            parts.append(values)
        return form.plus(parts)
    for message in expect(inbox, kind, **{field: dict.fromkeys(inbox, total.shape)}).values():
        total = total + getattr(message, field)
    return total
