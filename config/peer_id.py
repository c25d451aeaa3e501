"""What a peer may be called."""

from __future__ import annotations

import re

#: An id is a folder's name, a certificate's common name (at most 64 letters) and a DNS name in it.
PEER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_id(text: str) -> bool:
    """Whether a peer may be called so."""
    return PEER_ID.fullmatch(text) is not None
