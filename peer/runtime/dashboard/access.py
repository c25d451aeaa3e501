"""Access to a peer's dashboard: its address, token and certificate, checked before anything listens.

Used by the listener and by `fedpeer status`, so it imports no web framework. The token is in a file that only its owner
can read; with it one can see everything that the dashboard shows, and change nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fedpeer.config.address import Endpoint, PeerUrl, loopback
from fedpeer.config.peer_file import DashboardSettings

#: Fewest characters of a token: 128 bits in hexadecimal. `fedpeer init` writes longer ones.
_TOKEN_MIN = 32
#: Most characters of a token; a longer file is not a token file.
_TOKEN_MAX = 1024


class DashboardError(Exception):
    """The user's mistake about a dashboard; the message names the place, the problem and the way out."""


@dataclass(frozen=True, slots=True)
class DashboardAddress:
    """A dashboard's URL and token, and the certificate that it presents if the URL is https."""

    url: str
    token: str
    certificate: Path | None = None

    @property
    def login(self) -> str:
        """Address with the token, for a browser."""
        return f"{self.url}/?token={quote(self.token)}"


@dataclass(frozen=True, slots=True)
class DashboardListener:
    """Address on which a dashboard listens. Beyond this machine's loopback it always has a certificate with its key."""

    host: str
    port: int
    token: str
    certificate: Path | None = None
    key: Path | None = None

    @property
    def door(self) -> DashboardAddress:
        """Address and token for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        scheme = "https" if self.certificate else "http"
        return DashboardAddress(str(PeerUrl(scheme, Endpoint(host, self.port))), self.token, self.certificate)

    def context(self) -> ssl.SSLContext | None:
        """Return the listener's TLS context; None without a certificate.

        Raises:
            DashboardError: certificate and key cannot be read or do not belong together, or others can read the key.
        """
        if self.certificate is None:
            return None
        if self.key is not None and os.name == "posix" and self.key.is_file() and self.key.stat().st_mode & 0o007:
            raise DashboardError(f"dashboard.key {self.key} can be read by others; run  chmod 600 {self.key}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # an SSLError is one
            raise DashboardError(
                f"dashboard.certificate {self.certificate} with its key {self.key} cannot be used ({error}); "
                "both must be PEM files that belong together."
            ) from None
        return context


def listener(settings: DashboardSettings, folder: Path) -> DashboardListener:
    """Return the listener that a peer file's `dashboard:` describes; file names are relative to `folder`.

    Raises:
        DashboardError: the token file is invalid, or the dashboard is open to other machines without a certificate.
    """
    host, port = Endpoint.read(settings.listen)
    certificate, key = (folder / name if name else None for name in (settings.certificate, settings.key))
    if not loopback(host) and (certificate is None or key is None):
        raise DashboardError(
            f"dashboard.listen: {settings.listen} is open to other machines, which needs dashboard.certificate and "
            "dashboard.key (ECDSA P-256, which browsers accept). "
            f"Or listen on 127.0.0.1:{port} and reach it through ssh -L {port}:127.0.0.1:{port}."
        )
    return DashboardListener(host, port, read_token(folder / settings.token_file), certificate, key)


def read_token(file: Path) -> str:
    """Return the token in a file.

    Raises:
        DashboardError: there is none, it is too short, or others can read it.
    """
    way_out = f"fedpeer init writes one; by hand: (umask 077; openssl rand -hex 32 > {file})."
    try:
        with file.open(encoding="utf-8") as stream:
            if os.name == "posix" and os.fstat(stream.fileno()).st_mode & 0o077:
                raise DashboardError(f"{file} can be read by other users of this machine; run  chmod 600 {file}")
            token = stream.read(_TOKEN_MAX + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DashboardError(f"the dashboard's token {file} cannot be read ({reason}); {way_out}") from None
    if not _TOKEN_MIN <= len(token) <= _TOKEN_MAX or not token.isascii() or not token.isprintable() or " " in token:
        raise DashboardError(
            f"{file} is not a token, which is one line of {_TOKEN_MIN} to {_TOKEN_MAX} letters and digits; {way_out}"
        )
    return token


def same(one: str, other: str) -> bool:
    """Return whether two texts are equal, in constant time, so that a token cannot be guessed letter by letter."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def cookie_of(token: str) -> str:
    """Return the cookie for a token; the token cannot be recovered from it."""
    return hmac.new(token.encode(), b"fedpeer dashboard cookie", hashlib.sha256).hexdigest()
