"""Keys and certificates, as bytes: of a federation's authority, its peers and a dashboard.

Nothing here decides who is admitted, and nothing is written to disk. The authority's certificate is self-signed, and it
signs each peer's certificate with the peer's id in it; but a peer is recognised by its *key* (`identity.py`), so the
names in a certificate are for people, and for programs that insist on them. All keys are Ed25519 (RFC 8410) except the
dashboard's, which is P-256: browsers accept no Ed25519 certificate.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fedpeer.peer.wire.roster import AUTHORITY

#: A certificate is valid from a day before it was made, since the clocks of the machines that check it may be slow.
_BACKDATED = timedelta(days=1)
#: A peer is revoked by the roster, at once. So certificates need not be short-lived, and nobody has to renew one.
_VALID = timedelta(days=3650)

_PublicKey = Ed25519PublicKey | EllipticCurvePublicKey


def key_pem(key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> bytes:
    """Return the private key as PEM, not encrypted: the mode of its file protects it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def pem(certificate: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def authority_certificate(key: Ed25519PrivateKey, federation: str) -> x509.Certificate:
    """Return the authority's self-signed certificate.

    The authority also uses it for TLS: towards a joining peer, which knows the key from the token, and towards peers
    that it sends a new roster to. So its usages are those of an end entity as well.
    """
    name = _name(AUTHORITY, federation)
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    return _unsigned(name, name, key.public_key(), constraints).sign(key, None)


def peer_certificate(
    authority: x509.Certificate,
    authority_key: Ed25519PrivateKey,
    peer: str,
    public: Ed25519PublicKey,
    host: str,
    made: datetime | None = None,
    expires: datetime | None = None,
) -> x509.Certificate:
    """Return a peer's certificate for one key, signed by the authority.

    `host` is the host in its address; `made` and `expires` default to now and in ten years.
    """
    organisation = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    subject = _name(peer, str(organisation))
    builder = _unsigned(subject, authority.subject, public, constraints, made, expires)
    builder = builder.add_extension(_names(peer, host), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return builder.add_extension(issuer, critical=False).sign(authority_key, None)


def dashboard_certificate(peer: str, host: str) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    """Make a key and a self-signed certificate, for browsers on other machines."""
    key = generate_private_key(SECP256R1())
    name = _name(peer, "fedpeer dashboard")
    builder = _unsigned(name, name, key.public_key(), x509.BasicConstraints(ca=False, path_length=None))
    return key, builder.add_extension(_names("localhost", host), critical=False).sign(key, SHA256())


def request(key: Ed25519PrivateKey, peer: str) -> x509.CertificateSigningRequest:
    """Return a new peer's certificate request: its public key, signed by the private one, which never leaves it."""
    return x509.CertificateSigningRequestBuilder().subject_name(_name(peer, "fedpeer")).sign(key, None)


def _name(common: str, organisation: str) -> x509.Name:
    """Return the subject of a certificate; X.509 allows 64 characters in each part."""
    parts = ((NameOID.ORGANIZATION_NAME, organisation[:64]), (NameOID.COMMON_NAME, common[:64]))
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts])


def _names(name: str, host: str) -> x509.SubjectAlternativeName:
    try:
        other: x509.GeneralName = x509.IPAddress(ip_address(host))
    except ValueError:
        other = x509.DNSName(host)
    return x509.SubjectAlternativeName([x509.DNSName(name), other])


def _unsigned(
    subject: x509.Name,
    issuer: x509.Name,
    public: _PublicKey,
    constraints: x509.BasicConstraints,
    made: datetime | None = None,
    expires: datetime | None = None,
) -> x509.CertificateBuilder:
    """Return a builder with what all certificates have: names, key, dates, and extensions that strict readers want."""
    made = made or datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=constraints.ca,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(made - _BACKDATED)
        .not_valid_after(expires or made + _VALID)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )
