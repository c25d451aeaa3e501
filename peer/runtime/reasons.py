"""Reasons of failed connections: errors of OpenSSL, the system and aiohttp, each as one sentence that helps the user.

Texts only: nothing is decided here.
"""

from __future__ import annotations

import os
import ssl

#: Layers of exceptions to search for an error of TLS; asyncio and aiohttp wrap it in two or three.
_CAUSES_MAX = 8

#: OpenSSL's reasons of a failed handshake, by the end of their names. The first are problems that we found with the
#: other side; the last are alerts, which report problems that the other side found with us.
_REASONS = (
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "it presented no certificate; only peers with one may connect"),
    ("HTTP_REQUEST", "it sent plain HTTP to the TLS port; use an https:// address"),
    ("HTTPS_PROXY_REQUEST", "it used this peer as a proxy; connect to the peer itself"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS; is this the port of a peer?"),
    ("UNSUPPORTED_PROTOCOL", "it does not support TLS 1.3"),
    ("ALERT_PROTOCOL_VERSION", "the other side requires another version of TLS; peers use 1.3 only"),
    ("ALERT_CERTIFICATE_REQUIRED", "the other side requires a certificate, and none was presented"),
    ("ALERT_UNKNOWN_CA", "the other side does not know our authority; it belongs to another federation"),
    ("ALERT_CERTIFICATE_EXPIRED", "the other side says that our certificate is not valid today; compare the clocks"),
    ("ALERT_BAD_CERTIFICATE", "the other side rejected our certificate"),
    ("ALERT_DECRYPT_ERROR", "the other side could not verify our certificate"),
)
#: OpenSSL's codes of verification (X509_V_ERR_...): what is wrong with the other side's certificate.
_UNVERIFIED = {
    7: "its certificate's signature is wrong",
    9: "its certificate is not valid yet; compare the clocks of both machines",
    10: "its certificate has expired; compare the clocks of both machines, or invite it again",
    18: "its certificate is self-signed; the federation's authority has to sign it",
    19: "its certificate is signed by another authority; it belongs to another federation",
    20: "its certificate is signed by another authority; it belongs to another federation",
    21: "its certificate is signed by another authority; it belongs to another federation",
}


def tls_reason(error: BaseException) -> str | None:
    """Return why TLS failed, from an exception or its causes; None if there is no TLS error among them."""
    innermost: ssl.SSLError | None = None
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None:
            break
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLWantReadError | ssl.SSLWantWriteError):
            innermost = cause
        cause = cause.__cause__ or cause.__context__
    if innermost is None:
        return None
    if isinstance(innermost, ssl.SSLCertVerificationError):
        return _UNVERIFIED.get(getattr(innermost, "verify_code", 0)) or str(innermost.args[-1])
    reason = innermost.reason or ""
    known = (text for ending, text in _REASONS if reason.endswith(ending))
    return next(known, reason.replace("_", " ").lower() or "the connection ended during the handshake")


def was_cut(error: OSError) -> bool:
    """Return whether a handshake was cut off or too slow, so that neither side rejected anything.

    A peer that pauses while it connects, or a link that breaks, causes that.
    """
    return not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)


def link_reason(error: BaseException) -> str:
    """Return why a connection failed or broke: the reason of TLS, else of the system, else the error's own text."""
    reason = str(error)
    if isinstance(error, OSError) and error.strerror:  # a number below 0 comes from looking up a name
        reason = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else error.strerror
    reason = reason or ("it took too long" if isinstance(error, TimeoutError) else type(error).__name__)
    return tls_reason(error) or reason
