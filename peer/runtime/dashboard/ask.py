"""Client of a peer's dashboard, for `fedpeer status`: one short request for the status, with bounded waits.

Standard library only, so that the command starts at once. The answer comes from another program: it is read up to a
limit, parsed as JSON and checked for its schema; callers must treat its strings as plain text.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

from fedpeer.peer.runtime.dashboard.access import DashboardAddress, DashboardError

#: Seconds for an answer: a running peer answers within milliseconds, over a slow link within a second or two.
PATIENCE_S = 5.0
#: Most bytes of an answer; a status of 64 peers with full curves takes 0.3 MB.
_ANSWER_BYTES_MAX = 16 * 1024 * 1024
_SCHEMA = 1


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token goes to the named address and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask(door: DashboardAddress) -> dict[str, Any]:
    """Return the status from a peer's dashboard.

    Raises:
        DashboardError: nobody answers, the token is wrong, or the answer is not a status.
    """
    request = urllib.request.Request(f"{door.url}/status.json", headers={"Authorization": f"Bearer {door.token}"})
    handlers = [urllib.request.ProxyHandler({}), _NoRedirect()]
    if door.url.startswith("https"):
        handlers.append(urllib.request.HTTPSHandler(context=_context(door.certificate)))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=PATIENCE_S) as answer:
            return _status(door.url, answer)
    except urllib.error.HTTPError as error:
        with error:
            raise DashboardError(_refused(door.url, error.code)) from None
    except (OSError, ValueError) as error:  # a URLError is an OSError; ValueError: an invalid address
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise DashboardError(
            f"No peer answers at {door.url} ({why}): it ended after its last round, as its log says, or it does not "
            "run (fedpeer start --config FILE), or the address is wrong."
        ) from None


def _context(certificate: Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts exactly this certificate, whatever names it has; without one, this machine's.

    Raises:
        DashboardError: the certificate cannot be read.
    """
    context = ssl.create_default_context()
    if certificate is not None:
        try:
            context.load_verify_locations(certificate)
        except OSError as error:  # an SSLError is one
            raise DashboardError(f"{certificate} cannot be read as a certificate ({error}).") from None
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
    return context


def _status(url: str, answer: IO[bytes]) -> dict[str, Any]:
    text = answer.read(_ANSWER_BYTES_MAX + 1)
    try:
        status = json.loads(text) if len(text) <= _ANSWER_BYTES_MAX else None
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict) or status.get("schema") != _SCHEMA:
        raise DashboardError(f"{url} answers, but not with a status that this version of fedpeer reads.")
    return status


def _refused(url: str, code: int) -> str:
    if code == 401:
        return f"{url} rejects this token; use the token file that this peer's file names (dashboard.token_file)."
    return f"{url} answers {code}, which no fedpeer dashboard does; check the address."
