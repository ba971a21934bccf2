"""Masks among the neighbours of every site: the agreement on keys, and sums that their centre alone can read.

`dekrr.privacy.masks` has the arithmetic and what it hides. Two exchanges agree on keys: a site sends its public key to
its neighbours, and every centre passes the keys of its neighbours on to each other. Counts over all sites need no more.
For sums over rows, a flood of exponents, over as many exchanges as the diameter, tells how large they can be.
"""

from collections.abc import Mapping

import numpy as np

from ..errors import KeysError, MessageError, SettingsError
from ..features import FeatureMap
from ..messages import (
    AnyMessage,
    Coefficients,
    Magnitudes,
    Masked,
    MaskedRound,
    MaskKey,
    MaskKeys,
    Unchanged,
    expect,
    expect_senders,
)
from ..privacy.masks import FixedPoint, KeyPair, Pads, exponent_of, hidden, partners, revealed
from ..scaling import AnyScaling, Scaling, Unscaled
from ..statistics import pack_symmetric
from ..tables.rows import Rows
from ..types import Array
from .roll_call import RollCall, Roster
from .site import Outbox, Procedure, Site

ROOM = 2  # exponents of two above what sums over rows can be
_ROOM_OF_ROUNDS = 9  # the same for the products of rounds, whose coefficients may swing before they settle
MOST_FLOODED = 900
MOST_SPANS = 4.0  # of responses, that predictions are cut to where errors are masked


class Masks:
    """The masks of one site in one epoch of a run.

    `direct` are the neighbours' public keys, and `groups` for each neighbour those of its other neighbours.
    """

    def __init__(
        self, site: Site, keys: KeyPair, groups: Mapping[str, Mapping[str, bytes]], direct: Mapping[str, bytes]
    ) -> None:
        # Sums over rows are at most 2^rows times 2^responses for each response in them; known once the units are.
        self.rows = self.responses = 0
        self.n_products = 0  # with sums over its rows, that it has sent each neighbour in tuning
        self._site = site
        self._sizes = {centre: len(others) + 1 for centre, others in groups.items()}
        context = site.identity.context
        self._pads = {}
        over_tree = partners(direct, keys, [context, "", "tree"])
        for centre, others in groups.items():
            label = [context, centre, direct[centre].hex()]  # a centre that starts from other rows has another key
            self._pads[centre] = Pads(site.name, partners(others, keys, label))
            over_tree += partners(others, keys, [*label, "tree"])
        self._tree = Pads(site.name, over_tree)
        self.n_partners = len({partner for partner, _ in over_tree})  # in sums over the tree: neighbours and theirs
        self._number = 0

    def bind(self, digest: bytes) -> None:
        """Make all further masks depend on what all sites were told."""
        for pads in (self._tree, *self._pads.values()):
            pads.bind(digest)

    def bind_offers(self, digests: Mapping[str, bytes]) -> None:
        """Make all further masks for a centre depend on what it told of its features.

        All sites call this at the same point of a run.
        """
        for centre, digest in digests.items():
            self._pads[centre].bind(digest)

    def tell_solvable(self, n_products: int, n_features: int, lone_neighbor: str) -> None:
        """Tell the site, or refuse, that a neighbour could solve the sums of so many products for this site's sums.

        A combination of the sums is free of all other sites' products once there are more than these have features.
        Where the site refuses, all but one of these may pool what they know, and the rounds to come count as well.
        """
        self.n_products, refuses = n_products, lone_neighbor == "refuse"
        solvable = sorted(
            p for p, size in self._sizes.items() if size > 1 and n_products > n_features * (1 if refuses else size - 1)
        )
        if not solvable:
            return
        who = " and ".join(map(repr, solvable)) + ", with all but one of its other neighbours," * refuses
        text = (
            f"site {self._site.name!r} sends {n_products} masked products with the same sums over its rows. From these "
            f"{who} can solve for the sums of this site alone: masks do not hide them. "
            "Give fewer values of alpha and consensus to choose from, more features, or one number each"
        )
        if refuses:
            raise SettingsError(f'{text}, or set lone_neighbor="warn"')
        self._site.tell(f'{text}, or refuse such runs with lone_neighbor="refuse"')

    def hide(self, values: Mapping[str, Array], exponent: int) -> dict[str, np.ndarray]:
        """Return one masked vector for each neighbour, of numbers of at most 2^exponent.

        All sites call this the same number of times, in the same order.
        """
        number = self._next()
        return {
            p: hidden(own, FixedPoint(exponent, self._sizes[p]), self._pads[p], number) for p, own in values.items()
        }

    def reveal(self, words: Mapping[str, np.ndarray], exponent: int) -> Array:
        """Return the sum over the neighbours of what they hid; a vector."""
        total = np.add.reduce([words[p] for p in sorted(words)])
        return revealed(total, FixedPoint(exponent, len(words)))

    def sum_over_neighbors(self, values: Mapping[str, Array], size: int, exponent: int) -> Procedure[Array]:
        """Send each neighbour a masked vector of entries up to 2^exponent; return this site's sum, `size` long."""
        outbox = {p: Masked(words) for p, words in self.hide(values, exponent).items()}
        inbox = expect((yield outbox), Masked, words=dict.fromkeys(self._site.neighbors, (size + 1,)))
        if not inbox:
            return np.zeros(size)
        return self.reveal({p: message.words for p, message in inbox.items()}, exponent)

    def hide_over_tree(self, values: Array, n_sites: int) -> np.ndarray:
        """Return this site's part of a sum over all sites, masked; entries of at most 1."""
        return hidden(values, FixedPoint(ROOM, n_sites), self._tree, self._next())

    def reveal_over_tree(self, words: np.ndarray, n_sites: int) -> Array:
        """Return the sum over all sites, at the root of the tree."""
        return revealed(words, FixedPoint(ROOM, n_sites))

    def _next(self) -> int:
        self._site.kept.note_words()
        self._number += 1
        return self._number


class Agreement:
    """The keys for masks of a run, which sites agree on when a sum first needs them, all at the same exchange.

    There is one agreement for an identity. A second one under the same keys would use masks twice. A site that is the
    only neighbour of another warns or refuses (`lone_neighbor`). Where masks are for sums `over_tree` alone, only one
    of two sites has nothing to hide behind.
    """

    def __init__(self, site: Site, roll: RollCall, *, lone_neighbor: str, over_tree: bool = False) -> None:
        self.site = site
        self.roll = roll
        self._refuses_lone = lone_neighbor == "refuse"
        self._over_tree = over_tree
        self._masks: Masks | None = None

    def masks(self) -> Procedure[Masks]:
        """Return masks for sums over the tree; it takes exchanges the first time alone."""
        if self._masks is None:
            self._masks = yield from self._exchange()
        return self._masks

    def _exchange(self) -> Procedure[Masks]:
        """Agree on keys with the other neighbours of every neighbour."""
        roster = yield from self.roll.roster()
        site = self.site
        keys = site.identity.keys()
        proof = site.identity.announce(site.name, site.neighbors, keys.public)
        own = MaskKey(keys.public, sorted(site.neighbors), proof)
        direct = expect((yield site.to_all(own)), MaskKey)
        expect_senders(direct, site.neighbors)
        for p, key in direct.items():
            self._check(key, owner=p, sender=p, centre=site.name)
        inbox = yield {p: MaskKeys({q: key for q, key in direct.items() if q != p}) for p in site.neighbors}
        expect_senders(inbox, site.neighbors)
        groups = {}
        for centre, message in expect(inbox, MaskKeys).items():
            if {*message.keys, site.name} != {*direct[centre].neighbors} or site.name in message.keys:
                raise MessageError(f"site {centre!r} passed on keys of sites that are not its neighbours", centre)
            for q, key in message.keys.items():
                self._check(key, owner=q, sender=centre, centre=centre)
            groups[centre] = {q: key.public for q, key in message.keys.items()}
        if not self._over_tree or roster.n_sites == 2:
            self._tell_lone(groups)
        try:
            return Masks(site, keys, groups, {p: key.public for p, key in direct.items()})
        except ValueError as error:
            raise MessageError(f"a key for masks cannot be used: {error}") from None

    def _check(self, key: MaskKey, owner: str, sender: str, centre: str) -> None:
        """Refuse a key that is not proved to be its owner's, or whose owner is no neighbour of the centre."""
        try:
            self.site.identity.verify(owner, key.neighbors, key.public, key.proof)
        except KeysError as error:
            raise MessageError(f"site {sender!r} sent a key for masks as that of {owner!r}: {error}", sender) from None
        if centre not in key.neighbors or len(key.public) != 32:
            raise MessageError(
                f"site {sender!r} sent a key of {owner!r}, which is not a neighbour of {centre!r}", sender
            )

    def _tell_lone(self, groups: Mapping[str, Mapping[str, bytes]]) -> None:
        """Tell the site, or refuse, what masks cannot hide: it is the only neighbour of another site."""
        lone = sorted(centre for centre, others in groups.items() if not others)
        if not lone:
            return
        names = " and ".join(repr(name) for name in lone)
        text = (
            f"site {self.site.name!r} is the only neighbour of {names}: masks need two neighbours, so sums over this "
            "site's rows arrive there unmasked, and show whether a known row is among them. Add an edge, use privacy"
        )
        if self._refuses_lone:
            raise SettingsError(f'{text}, or set lone_neighbor="warn"')
        self.site.tell(f'{text}, or refuse such runs with lone_neighbor="refuse"')


class Masking:
    """The masks of sums over rows, which are in the units of a run."""

    def __init__(self, agreement: Agreement, rows: Rows, scaling: AnyScaling) -> None:
        self._agreement = agreement
        self._rows = rows
        self._scaling = scaling
        self._masks: Masks | None = None

    def masks(self) -> Procedure[Masks]:
        """Return the masks, once sites know how large their sums can be; it takes exchanges the first time alone."""
        if self._masks is None:
            masks, roster = (yield from self._agreement.masks()), (yield from self._agreement.roll.roster())
            own = self._exponents(roster)
            masks.rows, masks.responses = yield from largest_exponents(self._agreement.site, roster, own)
            self._masks = masks
        return self._masks

    def _exponents(self, roster: Roster) -> list[int]:
        """Return exponents that bound the site's sums: of its rows' weights, and of its responses.

        Without weights, and with bounds that sites agreed on, they are public.
        """
        mass, largest = float(roster.n_rows), 1.0
        if isinstance(self._scaling, Scaling) and self._scaling.limits is not None:
            largest = 3.0  # a response is clipped a span outside its bounds
        if self._rows.n_rows:
            weight = self._rows.sample.arrays().weight
            if weight is not None:
                mass = max(mass, 2 * float(np.sum(weight)) * self._rows.sample.expansion * roster.n_sites)
            if isinstance(self._scaling, Unscaled) or self._rows.n_outputs > 1:
                bounds = self._rows.bounds
                ends = np.abs([bounds.lower, bounds.upper])[:, self._rows.n_columns :]
                largest = float(np.max(ends, initial=0.0))
        return [exponent_of(mass), exponent_of(largest)]


def largest_exponents(site: Site, roster: Roster, own: list[int]) -> Procedure[list[int]]:
    """Return the largest of all sites' exponents, in diameter exchanges."""
    known = own
    for _ in range(roster.diameter):
        inbox = expect((yield site.to_all(Magnitudes(known))), Magnitudes)
        expect_senders(inbox, site.neighbors)
        for p, message in inbox.items():
            if len(message.exponents) != len(own) or not all(0 <= e <= MOST_FLOODED for e in message.exponents):
                raise MessageError(f"site {p!r} announced sums that are too large, or other sums than expected", p)
        known = [max(each) for each in zip(known, *(message.exponents for message in inbox.values()), strict=True)]
    return known


def fewest_of(site: Site, roster: Roster, own: int) -> Procedure[int]:
    """Return the least of all sites' numbers, or the most that can be told, in diameter exchanges."""
    (most_missing,) = yield from largest_exponents(site, roster, [MOST_FLOODED - min(own, MOST_FLOODED)])
    return MOST_FLOODED - most_missing


def unit_of(feature_map: FeatureMap) -> Array:
    """Return the amplitudes, by which features are divided to be at most 1; 1 where an amplitude is 0."""
    return np.where(feature_map.amplitudes == 0, 1.0, feature_map.amplitudes)


def unit_of_gram(feature_map: FeatureMap) -> Array:
    """Return what the packed Gram matrix of a map is divided by to be at most the number of rows."""
    unit = unit_of(feature_map)
    return pack_symmetric(np.outer(unit, unit))


def largest_sums(feature_map: FeatureMap, n_outputs: int, masks: Masks) -> Array:
    """Return public bounds on a site's sums Z'Z (packed), Z'y and y'y."""
    rows, responses = 2.0**masks.rows, 2.0**masks.responses
    of_moment = np.repeat(np.abs(unit_of(feature_map)), n_outputs)
    of_energy = np.array([responses**2 * n_outputs])
    return np.asarray(rows * np.concatenate([np.abs(unit_of_gram(feature_map)), responses * of_moment, of_energy]))


class MaskedRounds:
    """The rounds under masks: p sends j its theta_p and, masked, C_jp theta_p / |N_p|, over its own rows.

    `products` are C_pj / |N_j| over this site's rows, shape (..., D_p, D_j), in units of p's amplitudes; `units` are
    this site's amplitudes, in a shape that coefficients can be multiplied by; `factor` is consensus / N. Products that
    are too large are refused or, where they belong to a candidate that is hopeless, cut (`is_cut`).
    """

    behind = 2.0

    def __init__(
        self, masks: Masks, products: Mapping[str, Array], units: Array, factor: float, *, is_cut: bool = False
    ) -> None:
        self._masks = masks
        self._products = products
        self._units = units
        self._factor = factor
        self._is_cut = is_cut
        self._exponent = masks.rows + masks.responses + _ROOM_OF_ROUNDS
        self._shape: tuple[int, ...] = ()

    def outbox(self, message: Coefficients | Unchanged, known: Array) -> Outbox:
        """Return the messages of a round; `known` are the coefficients as neighbours know them."""
        self._shape = known.shape
        values = {p: product @ known for p, product in self._products.items()}
        if self._is_cut:
            most = 2.0**self._exponent
            values = {p: np.clip(np.nan_to_num(value), -most, most) for p, value in values.items()}
        return {p: MaskedRound(message, words) for p, words in self._masks.hide(values, self._exponent).items()}

    def read(self, inbox: Mapping[str, AnyMessage]) -> tuple[Mapping[str, AnyMessage], Array | float]:
        """Return the neighbours' coefficients, and consensus / N sum_p C_jp theta_p / |N_p| for the residual."""
        due = (int(np.prod(self._shape)) + 1,)
        heard = expect(inbox, MaskedRound, words=dict.fromkeys(self._products, due))
        if not heard:
            return {}, 0.0
        total = self._masks.reveal({p: message.words for p, message in heard.items()}, self._exponent)
        pull = self._factor * self._units * total.reshape(self._shape)
        return {p: message.coefficients for p, message in heard.items()}, np.asarray(pull)


def products_of(cross: Array, feature_map: FeatureMap, n_neighbors: int) -> Array:
    """Return C_pj / |N_j| in units of p's amplitudes, for `MaskedRounds`."""
    return np.asarray(cross / (unit_of(feature_map)[:, None] * n_neighbors))
