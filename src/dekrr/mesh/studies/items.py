"""Signed statements of sites about studies. They pass from site to site as they are, and prove themselves."""

import hashlib
from typing import Literal

import msgspec

from ...errors import KeysError
from ..identity import SiteIdentity, Trust, is_signed

MAX_BYTES = 1 << 18  # of an item
_AHEAD = 3600.0  # seconds by which another site's clock may be ahead


class EarlyError(KeysError):
    """A statement from the future: it may count later."""


class Proposal(msgspec.Struct, frozen=True, tag="proposal", forbid_unknown_fields=True):
    """A study is proposed: its text, as in the file that its proposer wrote."""

    text: str
    time: float


class Decision(msgspec.Struct, frozen=True, tag="decision", forbid_unknown_fields=True):
    """A site approves or refuses a study, or stops it; `by` is a person or the rule of a policy."""

    study: str
    says: Literal["approve", "refuse", "stop"]
    reason: str
    by: str
    time: float


class Call(msgspec.Struct, frozen=True, tag="call", forbid_unknown_fields=True):
    """A site calls for run `number` of a study."""

    study: str
    number: int
    reason: str
    time: float


class Report(msgspec.Struct, frozen=True, tag="report", forbid_unknown_fields=True):
    """A run has ended at a site: how, and the last line of the site's audit trail."""

    study: str
    number: int
    outcome: Literal["model", "failed"]
    reason: str
    audit_line: int
    audit_hash: str
    time: float


class Revocations(msgspec.Struct, frozen=True, tag="revocations", forbid_unknown_fields=True):
    """The authority's list of revoked certificates, passed on."""

    pem: str
    time: float


Body = Proposal | Decision | Call | Report | Revocations
_decoder: msgspec.json.Decoder[Body] = msgspec.json.Decoder(Body)


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement with its signature."""

    site: str  # who says so
    said: str  # the statement, as JSON
    certificate: str  # the site's certificate, as PEM
    signature: str

    @property
    def id(self) -> str:
        """The digest of site and statement."""
        return hashlib.sha256(_signed_part(self.site, self.said)).hexdigest()

    @property
    def body(self) -> Body:
        """The statement."""
        try:
            return _decoder.decode(self.said)
        except msgspec.MsgspecError as error:
            raise KeysError(f"a statement of {self.site!r} that cannot be read: {error}") from None

    def check(self, trust: Trust, now: float) -> Body:
        """Return the statement if its signature counts: under a certificate that was valid when it was made."""
        body = self.body
        if body.time > now + _AHEAD:
            raise EarlyError(f"a statement of {self.site!r} from the future; are the clocks right?")
        certificate = trust.check(self.certificate, self.site, body.time)
        if not is_signed(certificate, _signed_part(self.site, self.said), self.signature):
            raise KeysError(f"a statement in the name of {self.site!r} with a wrong signature")
        return body


def sign(body: Body, identity: SiteIdentity) -> Item:
    """Return a statement, signed."""
    said = msgspec.json.encode(body).decode()
    return Item(identity.site, said, identity.pem, identity.sign(_signed_part(identity.site, said)))


def _signed_part(site: str, said: str) -> bytes:
    return b"dekrr statement 1\n" + msgspec.json.encode([site, said])
