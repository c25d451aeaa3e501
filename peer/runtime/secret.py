"""Source of a peer's noise (`learning.privacy`, `gossip.privacy`): 32 random bytes that nobody else ever sees.

They are drawn once and kept in the state folder. If the folder was lost, new bytes are drawn, which protect as well.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from fedpeer.peer.runtime.store import StateError, usable

SECRET_BYTES = 32
_NAME = "secret"


def secret_in(folder: Path) -> bytes:
    """Return the secret of a state folder, or a new one if there is none yet; `keep_secret` saves it.

    Raises:
        StateError: the file is damaged, unreadable, or readable by others.
    """
    path = folder / _NAME
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return secrets.token_bytes(SECRET_BYTES)
    except OSError as problem:
        raise StateError(f"{path} cannot be read ({problem.strerror}); make it readable for this user alone") from None
    if len(found) != SECRET_BYTES:
        raise StateError(f"{path} is damaged; remove it, and the peer draws a new one")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise StateError(f"{path} can be read by others, who could remove this peer's noise; run  chmod 600 {path}")
    return found


def keep_secret(folder: Path, secret: bytes) -> None:
    """Write the secret, readable by this user alone, if there is none yet.

    The folder is locked (`Store.open`), so no other process does the same.

    Raises:
        StateError: it cannot be written.
        StoreError: it cannot be written now, since the disk is full, read-only or failing.
    """
    path, fresh = folder / _NAME, folder / f".{_NAME}.tmp"
    if path.exists():
        return
    with usable(folder):
        with suppress(FileNotFoundError):
            fresh.unlink()
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, secret)
            os.fsync(file)
        finally:
            os.close(file)
        fresh.replace(path)
