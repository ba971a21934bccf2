"""A site's identity: it signs with its private key, and others check under its certificate.

Sites trust one authority. A certificate counts if the authority has signed it, if it is valid at the time in question,
and if the authority's list of revoked certificates does not have it. The list is an X.509 revocation list.
"""

import base64
import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ..errors import KeysError
from .config import SiteFile, StandingFile
from .keys import Authority, Keys, site_of

REVOKED = "revoked.pem"
_ECDSA = ec.ECDSA(hashes.SHA256())


@dataclass
class Trust:
    """What a site checks others by: the authority's certificate, and its newest list of revoked certificates."""

    authority: x509.Certificate
    revocations: x509.CertificateRevocationList | None = None
    _known: dict[str, x509.Certificate] = field(default_factory=dict)

    def check(self, pem: str, site: str, when: float | None = None) -> x509.Certificate:
        """Return a certificate if it is this site's, was valid at a time (now by default) and is not revoked."""
        known = self.issued(pem, site)
        moment = datetime.datetime.now(datetime.UTC) if when is None else _moment(when)
        if not known.not_valid_before_utc <= moment <= known.not_valid_after_utc:
            raise KeysError(f"the certificate of {site!r} was not valid at {moment:%Y-%m-%d %H:%M} UTC")
        if self.has_revoked(known):
            raise KeysError(f"the certificate of {site!r} with serial number {known.serial_number:x} is revoked")
        return known

    def issued(self, pem: str, site: str) -> x509.Certificate:
        """Return a certificate if the authority has issued it for this site, whenever it is or was valid."""
        known = self._known.get(pem)
        if known is None:
            known = self._parsed(pem)
            self._known[pem] = known
        if site_of(known) != site:
            raise KeysError(f"the certificate of {site_of(known)!r}, used in the name of {site!r}")
        return known

    def has_revoked(self, certificate: x509.Certificate) -> bool:
        """Return whether the list has a certificate."""
        if self.revocations is None:
            return False
        return self.revocations.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None

    def learn(self, pem: str) -> bool:
        """Take a list of revoked certificates if the authority has signed it and it is newer than the one known."""
        found = self._list(pem)
        if self.revocations is not None and _number(found) <= _number(self.revocations):
            return False
        self.revocations = found
        return True

    def number(self, pem: str) -> int:
        """Return the number of a list of revoked certificates that the authority has signed; later ones are larger."""
        return _number(self._list(pem))

    def _list(self, pem: str) -> x509.CertificateRevocationList:
        try:
            found = x509.load_pem_x509_crl(pem.encode())
            valid = found.is_signature_valid(self.authority.public_key())  # type: ignore[arg-type]
        except (ValueError, TypeError, InvalidSignature):
            valid = False
        if not valid:
            raise KeysError("a list of revoked certificates that the authority has not signed")
        return found

    def _parsed(self, pem: str) -> x509.Certificate:
        try:
            found = x509.load_pem_x509_certificate(pem.encode())
            found.verify_directly_issued_by(self.authority)
        except (ValueError, TypeError, InvalidSignature):
            raise KeysError("a certificate that the authority has not signed") from None
        return found


@dataclass(frozen=True)
class SiteIdentity:
    """A site's name, private key, certificate, and what it trusts."""

    site: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    trust: Trust

    @classmethod
    def load(cls, site: str, authority: Path, certificate: Path, key: Path) -> "SiteIdentity":
        """Read a site's files; a list of revoked certificates is read from the certificate's folder."""
        private = serialization.load_pem_private_key(key.read_bytes(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise KeysError(f"{key} is not a key of an elliptic curve; make one with dekrr keys new")
        trust = Trust(x509.load_pem_x509_certificate(authority.read_bytes()))
        revoked = certificate.parent / REVOKED
        if revoked.exists():
            trust.learn(revoked.read_text())
        own = x509.load_pem_x509_certificate(certificate.read_bytes())
        return cls(site, private, own, trust)

    @classmethod
    def of(cls, config: SiteFile | StandingFile, folder: Path) -> "SiteIdentity":
        """Return the identity of a site, after a check of its files."""
        return cls.load(config.site, *Keys.of(config, folder))

    @property
    def pem(self) -> str:
        """The certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def days_left(self) -> float:
        """The days until the certificate ends."""
        left = self.certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        return left.total_seconds() / 86400

    def sign(self, data: bytes) -> str:
        """Return a signature, as text."""
        return base64.b64encode(self.key.sign(data, _ECDSA)).decode()


@dataclass(frozen=True)
class CertificateSigner:
    """Proves whose a public key for masks is: by a certificate of the network's authority, and a signature by its key.

    So a site can check the keys of sites that it has no link to. It is a `dekrr.privacy.masks.Signer`.
    """

    identity: SiteIdentity

    def sign(self, statement: bytes) -> bytes:
        """Return the proof that this site makes the statement."""
        return msgspec.msgpack.encode([self.identity.pem, self.identity.sign(statement)])

    def verify(self, site: str, statement: bytes, proof: bytes) -> None:
        """Raise `KeysError` unless the proof shows that `site` makes the statement."""
        try:
            pem, signature = msgspec.msgpack.decode(proof, type=tuple[str, str])
        except msgspec.MsgspecError as error:
            raise KeysError(f"it has no proof that {site!r} made it: {error}") from None
        if not is_signed(self.identity.trust.check(pem, site), statement, signature):
            raise KeysError(f"it is not signed by the key of {site!r}'s certificate")


def is_signed(certificate: x509.Certificate, data: bytes, signature: str) -> bool:
    """Return whether a signature is that of a certificate's key."""
    public = certificate.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey):
        return False
    try:
        public.verify(base64.b64decode(signature, validate=True), data, _ECDSA)
    except (InvalidSignature, ValueError):
        return False
    return True


def revocation_list(
    authority: Authority, certificates: Iterable[x509.Certificate], before: x509.CertificateRevocationList | None
) -> bytes:
    """Return a list of revoked certificates: those of an earlier list, and more."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(now + datetime.timedelta(days=365))
        .add_extension(x509.CRLNumber(1 if before is None else _number(before) + 1), critical=False)
    )
    serials = {one.serial_number for one in before} if before is not None else set()
    for serial in sorted(serials | {certificate.serial_number for certificate in certificates}):
        revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(revoked)
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _number(revocations: x509.CertificateRevocationList) -> int:
    return revocations.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
