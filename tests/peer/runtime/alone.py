"""A peer that is the only one of its federation, so that its rounds follow one another without waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import PeerFile
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.prepared import Prepared, prepare_peer
from fedpeer.peer.wire.roster import to_bytes
from tests.peer.runtime.people import People


def alone_at(folder: Path, federation: dict[str, Any], **settings: Any) -> Prepared:
    """Prepare ann in a federation of her own; `settings` are keys of her file."""
    people = People.at(folder / "people")
    with bind_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    people.identity("ann", address=f"http://127.0.0.1:{port}")
    (folder / "roster.json").write_bytes(to_bytes(people.roster))
    file = {
        "id": "ann",
        "federation": "federation.yaml",
        "roster": str(folder / "roster.json"),
        "state": str(folder / "state"),
        "transport": "plain-http",
        "listen": f"127.0.0.1:{port}",
        **settings,
    }
    return prepare_peer(PeerFile.model_validate(file), Federation.model_validate(federation))
