"""Setup of a real federation on this machine for a simulation's world: ports, identities, a file for each peer.

`fedpeer init` makes the identities and the roster, as for a user. The peers' own files are written here, since their
data are parts of the simulation and their ports are chosen from the free ones.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fedpeer.config.address import Endpoint, PeerUrl
from fedpeer.config.choice import Choice
from fedpeer.config.peer_file import DashboardSettings, DataSettings, IdentitySettings, PeerFile
from fedpeer.config.rules import used_by
from fedpeer.sims.ends import how_ended
from fedpeer.sims.request import cores
from fedpeer.sims.vector.pool import EngineError
from fedpeer.sims.world import World

HOST = "127.0.0.1"
#: A dashboard's port minus its peer's, as `fedpeer init` assigns them.
_DASHBOARD_OFFSET = 100
#: The range searched for ports: above those of services, below those that systems give to outgoing connections.
PORTS = range(20_000, 32_000)
#: Attempts to find consecutive free ports; if so many fail, something else is wrong.
_TRIES = 100
#: Seconds that `fedpeer init` may take: it makes a key and a certificate for each peer.
_INIT_S = 120.0
#: The longest tick that a federation may have, in seconds.
_TICK_MAX = 10.0
#: Addresses of other peers that each peer contacts first.
_SEEDS = 3


def settle(folder: Path, world: World, method: Choice, device: str, *, code: Sequence[str] = ()) -> dict[str, Path]:
    """Make the federation in a new folder, and return each peer's own file, by id.

    Args:
        code: top-level packages whose code the federation may name.

    Raises:
        EngineError: `fedpeer init` failed; with its message.
    """
    folder.mkdir(parents=True)
    gossip = world.federation.gossip.model_copy(update={"tick": tick_of(world)})
    federation = used_by(method, world.federation).model_copy(update={"gossip": gossip, "seed": world.seed})
    file = folder / "federation.yaml"
    # Every setting is written: a default follows from the data and from other settings, and may be another one there.
    file.write_text(json.dumps(federation.model_dump(mode="json"), indent=2), encoding="utf-8")
    first, made = free_ports(len(world.peers)), folder / "peers"
    words = ["init", str(made), "--federation", str(file), "--peers", ",".join(world.peers), "--port", str(first)]
    outcome = subprocess.run(
        [sys.executable, "-m", "fedpeer", *words], capture_output=True, text=True, timeout=_INIT_S, check=False
    )
    if outcome.returncode:
        raise EngineError(f"fedpeer init ended with {how_ended(outcome.returncode)}: {outcome.stderr.strip()}")
    places = [Endpoint(HOST, first + number) for number in range(len(world.peers))]
    urls = [str(PeerUrl("https", place)) for place in places]
    files, networks = {}, world.federation.own_networks()
    for number, peer in enumerate(world.peers):
        files[peer] = made / peer / f"{peer}.yaml"
        own = PeerFile(
            federation="federation.yaml",
            id=peer,
            data=DataSettings(source=Choice("simulation", number + 1)),
            network=networks.get(peer),
            device=device,  # type: ignore[arg-type]  # "cpu", "cuda" or "mps", as `device_of` says
            listen=str(places[number]),
            address=urls[number],
            seeds=[url for url in urls if url != urls[number]][:_SEEDS],
            dashboard=DashboardSettings(
                listen=str(Endpoint(HOST, places[number].port + _DASHBOARD_OFFSET)), token_file=f"keys/{peer}.token"
            ),
            identity=IdentitySettings(
                certificate=f"keys/{peer}.crt", key=f"keys/{peer}.key", authority="keys/federation-ca.crt"
            ),
            allow_python=list(code),
        )
        files[peer].write_text(json.dumps(own.model_dump(mode="json", exclude_none=True), indent=2), encoding="utf-8")
    return files


def tick_of(world: World) -> float:
    """Return the seconds of a tick: the federation's, or longer if peers share cores.

    Otherwise a peer that waits for a core would count as dead.
    """
    return min(_TICK_MAX, world.federation.gossip.tick * max(1.0, len(world.peers) / cores()))


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports, whose dashboards' ports are free too.

    Another program may take one of them before it is used; then a peer reports that, and the caller tries others.
    """
    assert count <= _DASHBOARD_OFFSET, "a peer's port is no other's dashboard's"
    draws = random.SystemRandom()
    for _ in range(_TRIES):
        first = draws.randrange(PORTS.start, PORTS.stop - count - _DASHBOARD_OFFSET)
        with ExitStack() as held:
            try:
                for port in (first + offset + number for offset in (0, _DASHBOARD_OFFSET) for number in range(count)):
                    held.enter_context(socket.create_server((HOST, port)))
            except OSError:
                continue
            return first
    raise EngineError(f"there are no {count} consecutive free ports between {PORTS.start} and {PORTS.stop}")
