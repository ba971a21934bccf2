"""Keys and certificates of a network: a certificate authority, and one certificate per site.

A certificate's common name is the site's name, and its alternative name is the host of the site's endpoint. A neighbour
checks both: it reached the host that it dialled, and the right site answered. Only their owner can read private keys
(mode 0600). No function here replaces a file.
"""

import datetime
import ipaddress
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ImportError("keys need the package cryptography: pip install 'dekrr[mesh]'", name="cryptography") from None

from ..disk import create, is_private
from ..errors import KeysError, SettingsError
from ..labels import NAME
from .config import RelayFile, SiteFile, StandingFile

AUTHORITY_CERTIFICATE, AUTHORITY_KEY = "authority.pem", "authority-key.pem"
CERTIFICATE, KEY, REQUEST = "certificate.pem", "key.pem", "request.pem"
DAYS, WARN_DAYS = 365, 30.0
_CLOCK_SKEW = datetime.timedelta(minutes=5)
Parsed = TypeVar("Parsed")
logger = logging.getLogger("dekrr")


class Keys(NamedTuple):
    """The files of a site's TLS identity: the authority's certificate, the site's certificate, and its private key."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, config: SiteFile | StandingFile | RelayFile, folder: Path) -> "Keys":
        """Return the files that a site's or a relay's file names, after a check of what is in them."""
        name = config.name if isinstance(config, RelayFile) else config.site
        if config.keys is None:
            raise SettingsError(
                f"site {name!r} has no keys. Make some with dekrr keys new and have them signed, or, for a trial on "
                "one machine alone, give --insecure"
            )
        found = cls(*(folder / file for file in (config.keys.authority, config.keys.certificate, config.keys.key)))
        check(*found, name)
        return found


@dataclass(frozen=True)
class Authority:
    """A certificate authority: its certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, network: str, days: int = 10 * DAYS) -> "Authority":
        """Make an authority for a network."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"dekrr authority of {network}"[:64])])
        certificate = (
            _builder(name, name, key.public_key(), _now() - _CLOCK_SKEW, _now() + datetime.timedelta(days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """Read the files that `save` wrote."""
        certificate = _read(folder / AUTHORITY_CERTIFICATE, x509.load_pem_x509_certificate)
        key = _read(folder / AUTHORITY_KEY, lambda data: serialization.load_pem_private_key(data, None))
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise KeysError(f"{folder / AUTHORITY_KEY} is not the key of {folder / AUTHORITY_CERTIFICATE}")
        return cls(certificate, key)

    def save(self, folder: Path) -> None:
        """Write the certificate and the key to a folder."""
        write_new(folder / AUTHORITY_KEY, _pem_of_key(self.key), private=True)
        write_new(folder / AUTHORITY_CERTIFICATE, self.pem)

    @property
    def pem(self) -> bytes:
        """The authority's certificate, which every site needs."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def sign(
        self, request: x509.CertificateSigningRequest, days: float = DAYS, start: datetime.datetime | None = None
    ) -> bytes:
        """Return the certificate for a request that `new_request` made."""
        start = start or _now() - _CLOCK_SKEW
        end = start + datetime.timedelta(days)
        if end > self.certificate.not_valid_after_utc:
            raise KeysError(f"the authority itself is valid only until {self.certificate.not_valid_after_utc:%Y-%m-%d}")
        certificate = (
            _builder(
                request.subject,
                self.certificate.subject,
                request.public_key(),  # type: ignore[arg-type]
                start,
                end,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([_alternative_name(host_of(request))]), critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(request.public_key()),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def new_request(site: str, host: str, key_file: Path | None = None) -> tuple[bytes, bytes]:
    """Return a private key, by default a new one, and the request for its certificate, as PEM.

    `site`: the site's name: letters, digits, dot, dash and underscore. `host`: the host name or address that neighbours
    dial. `key_file`: a key that is there already, for instance of a site at another host than before.
    """
    if not NAME.fullmatch(site):
        raise KeysError(
            f"{site!r} cannot name a site: use up to 63 ASCII letters (a to z), digits, dots, dashes, underscores"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    if key_file is not None:
        found = _read(key_file, lambda data: serialization.load_pem_private_key(data, None))
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise KeysError(f"{key_file} is not a key that dekrr keys new made")
        key = found
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)]))
        .add_extension(x509.SubjectAlternativeName([_alternative_name(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem_of_key(key), request.public_bytes(serialization.Encoding.PEM)


def read_request(path: Path) -> x509.CertificateSigningRequest:
    """Read a request and check its signature, which proves that its maker has the private key."""
    request = _read(path, x509.load_pem_x509_csr)
    try:
        valid = request.is_signature_valid
    except InvalidSignature:
        valid = False
    if not valid:
        raise KeysError(f"{path}: the request is not signed by its own key")
    site_of(request)
    host_of(request)
    return request


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate."""
    return _read(path, x509.load_pem_x509_certificate)


def site_of(named: x509.CertificateSigningRequest | x509.Certificate) -> str:
    """Return the site that a request or a certificate names."""
    names = named.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not NAME.fullmatch(str(names[0].value)):
        raise KeysError("the request or certificate does not name a site: its common name must be the name of a site")
    return str(names[0].value)


def host_of(named: x509.CertificateSigningRequest | x509.Certificate) -> str:
    """Return the host that a request or a certificate names."""
    try:
        names = list(named.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = []
    if len(names) != 1 or not isinstance(names[0], x509.DNSName | x509.IPAddress):
        raise KeysError("the request or certificate must have one alternative name: the host that neighbours dial")
    return str(names[0].value)


def end_of(certificate: Path) -> float:
    """Return when a certificate ends, in seconds since 1970."""
    return _read(certificate, x509.load_pem_x509_certificate).not_valid_after_utc.timestamp()


def warn_of_end(site: str, certificate: Path) -> float | None:
    """Log a warning if a certificate ends within 30 days, and return the days that are left; otherwise return None."""
    days = (end_of(certificate) - time.time()) / 86400
    if days >= WARN_DAYS:
        return None
    logger.warning("%s: the certificate expires in %.1f days; renew it: replace %s", site, days, certificate)
    return days


def check(authority_certificate: Path, certificate: Path, key: Path, site: str) -> None:
    """Raise `KeysError` if a certificate is not this site's, has expired, or does not fit its key or authority."""
    authority = _read(authority_certificate, x509.load_pem_x509_certificate)
    own = _read(certificate, x509.load_pem_x509_certificate)
    if site_of(own) != site:
        raise KeysError(f"{certificate} is the certificate of {site_of(own)!r}, but this site is {site!r}")
    if not own.not_valid_before_utc <= _now() <= own.not_valid_after_utc:
        raise KeysError(
            f"{certificate} is valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M} to "
            f"{own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, not now; ask for a new one: dekrr keys new"
        )
    private = _read(key, lambda data: serialization.load_pem_private_key(data, None))
    if private.public_key() != own.public_key():
        raise KeysError(f"{key} is not the key of {certificate}")
    if not is_private(key):
        raise KeysError(f"{key} can be read by others on this machine; run: chmod 600 {key}")
    try:
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise KeysError(f"{certificate} was not signed by the authority of {authority_certificate}") from None


def write_new(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file that must not exist yet; only its owner can read a private file and the folder made for it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o755)
    try:
        create(path, data, private=private)
    except FileExistsError:
        raise KeysError(f"{path} is already there; nothing is overwritten: move it away first") from None


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    start: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise KeysError(f"{host!r} is not a host name; write a name with letters beyond ASCII as xn--...") from None


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(path: Path, parse: Callable[[bytes], Parsed]) -> Parsed:
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        raise KeysError(f"{path} does not exist; keys are made by dekrr network init or dekrr keys new") from None
    except (ValueError, TypeError) as error:
        raise KeysError(f"{path} cannot be read: {error}") from None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def changed_at(path: Path) -> int:
    """Return when a file was last changed, 0 if it is not there."""
    return path.stat().st_mtime_ns if path.exists() else 0
