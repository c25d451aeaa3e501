"""Names that a peer may have."""

from __future__ import annotations

import re

#: An id is a folder's name, a certificate's common name (at most 64 characters) and a DNS name in the certificate.
PEER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_id(text: str) -> bool:
    """Return whether a peer may have this id."""
    return PEER_ID.fullmatch(text) is not None
