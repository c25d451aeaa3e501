"""Peers of one start build a network once if they would build the same; each reports its own mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import PeerFile
from fedpeer.learning.holdings import load_dataset
from fedpeer.peer.runtime.prepared import assemble_shared, prepare_peer
from fedpeer.peer.wire.roster import to_bytes
from tests.peer.runtime.people import People

FEDERATION = Federation.model_validate({"simulation": {"peers": 4, "dataset": "digits"}})
LOADED = {"digits": load_dataset(FEDERATION.simulation.dataset)}


@pytest.fixture(scope="module")
def roster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation")
    people = People.at(folder / "people")
    for number in range(1, 5):
        people.identity(f"peer{number}", address=f"http://127.0.0.1:{9000 + number}")
    path = folder / "roster.json"
    path.write_bytes(to_bytes(people.roster))
    return path


def file(roster: Path, part: int, **settings: Any) -> PeerFile:
    return PeerFile.model_validate(
        {
            "id": f"peer{part}",
            "federation": "federation.yaml",
            "roster": str(roster),
            "state": str(roster.parent / f"peer{part}"),
            "transport": "plain-http",
            "data": {"simulation": part},
            **settings,
        }
    )


def test_peers_that_would_build_the_same_share_it_and_others_build_their_own(roster: Path) -> None:
    other = FEDERATION.model_copy(update={"seed": 1})
    alike = [(file(roster, part), FEDERATION) for part in (1, 2)]
    unlike = [(file(roster, 3, network="mlp:64+20+10"), FEDERATION), (file(roster, 4), other)]
    (made,) = assemble_shared([*alike, *unlike], LOADED)
    for peer, federation in (*alike, *unlike):
        alone, mine = (prepare_peer(peer, federation, assembled=each).outfit for each in ((), [made]))
        assert (mine.assembly is made) == ((peer, federation) in alike)
        assert alone.local_task.start().equal(mine.local_task.start())


def test_what_is_wrong_is_left_to_its_peer_and_code_of_ones_own_is_not_run_before_the_fork(
    roster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "network_of_peer3.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'x').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    wrong = file(roster, 1, network="mlp:64+20+9")
    absent = file(roster.parent / "no-roster.json", 2)
    own = file(roster, 3, network="python:network_of_peer3:build")
    elsewhere = file(roster, 4, data={"csv": "ward.csv", "label": "outcome"})
    twice = [each for each in (wrong, absent, own, elsewhere) for _ in range(2)]
    assert assemble_shared([(each, FEDERATION) for each in twice], LOADED) == []
    assert not (tmp_path / "imported").exists()
