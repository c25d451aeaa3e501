"""What a peer's noise comes from (`learning.privacy`, `gossip.privacy`): 32 random bytes that nobody else ever sees.

They are drawn once and kept in its state folder. A folder that was lost begins with others, which protect just as
well.
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
    """The secret of a state folder; where there is none yet a new one, which is kept by `keep`.

    Raises:
        StateError: the file is not what was written there.
    """
    path = folder / _NAME
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return secrets.token_bytes(SECRET_BYTES)
    except OSError as problem:
        raise StateError(f"{path} cannot be read ({problem.strerror}); make it readable for this user alone") from None
    if len(found) != SECRET_BYTES:
        raise StateError(f"{path} is damaged; remove it, and the peer draws another one")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise StateError(f"{path} can be read by others, who could take this peer's noise away; say  chmod 600 {path}")
    return found


def keep_secret(folder: Path, secret: bytes) -> None:
    """Write it, for this user alone, where there is none yet. The folder is held (`Store.open`), so nobody else does.

    Raises:
        StateError: it cannot be written.
        StoreError: not now, since the disk is full, read-only or failing.
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
