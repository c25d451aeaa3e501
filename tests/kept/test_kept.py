"""This release reads the states, the journal entries and a run of an earlier one."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, get_args

import pytest

from fedpeer.cli.peer_config import load_peer
from fedpeer.cli.simulate_options import resumed_request
from fedpeer.gossip.averaging import MESSAGE_HEAD_BYTES, SHARE_EXTRA_BYTES
from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing
from fedpeer.peer.runtime.prepared import prepare_peer
from fedpeer.peer.runtime.store import Store
from fedpeer.peer.state import tags
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.state.entries import Began, Entry
from fedpeer.peer.state.journal import durable_state_of, entry_bytes, entry_of, snapshot_bytes
from fedpeer.peer.wire import consensus_wire
from fedpeer.peer.wire.consensus_messages import ConsensusContent
from fedpeer.peer.wire.framing import DIGEST_BYTES
from fedpeer.peer.wire.messages import KINDS, Message
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.prepare import prepare_simulation as prepare_simulation
from fedpeer.sims.simulate import run_prepared
from tests.kept.everything import ENTRIES, OWNER, durable
from tests.kept.release import FOLDER, PEERS, moved, unpacked
from tests.peer.runtime.whole import whole

#: Bytes as the release wrote them, by name.
WRITTEN = {
    name: bytes.fromhex(data)
    for name, data in (line.split() for line in (FOLDER / "entries.txt").read_text(encoding="ascii").splitlines())
}

#: Kinds of entries that the release did not have.
ADDED = {"VoteLost", "OthersAhead"}

# ------------------------------------------------------------------------------------------------------------- tags

#: Tags and numbers, as they are on disks and wires already. Rows may be added; none may change.
ENTRY_TAGS = (
    "Started Began Learnt Opened Closed Took Acked Met Reborn Adopted Returned Left "
    "Stood Bound Stored Studied Kept Averaged Called Sworn"
)
CONSENSUS_TAGS = "canvass answer lead follow propose accept commit"
KIND_NUMBERS = (
    "Hello Contract Transfer Ack Ping PingRequest Pong ValueRequest Value RosterNews RejectMessage "
    "ConsensusMessage Update ModelRequest ModelReply"
)


def test_the_tags_of_entries_stay_and_each_kind_has_one() -> None:
    assert " ".join(tags.ENTRIES).startswith(ENTRY_TAGS)
    assert set(tags.TAGS) == set(get_args(Entry))
    assert len(tags.TAGS) == len(tags.ENTRIES)


def test_each_field_that_is_kept_has_a_stored_name() -> None:
    rows = [*tags.ENTRIES.values(), tags.PARCEL, tags.OUTGOING, tags.INCOMING]
    assert {row.made for row in rows} == {*get_args(Entry), NumberedTransfer, Outgoing, Incoming}
    for row in rows:
        assert set(row.names) == {each.name for each in dataclass_fields(row.made)}
        assert len(set(row.names.values())) == len(row.names)


def test_the_tags_of_consensus_messages_stay_and_each_kind_has_one() -> None:
    assert " ".join(consensus_wire.TAGS.values()).startswith(CONSENSUS_TAGS)
    assert set(consensus_wire.TAGS) == set(get_args(ConsensusContent))


def test_the_numbers_of_messages_stay_and_each_kind_has_one() -> None:
    """Numbers of messages stay, and each kind has one; `wire-v1.txt` has the bytes that follow for each kind."""
    assert list(KINDS) == list(range(1, len(KINDS) + 1))
    assert " ".join(kind.__name__ for kind in KINDS.values()).startswith(KIND_NUMBERS)
    assert set(KINDS.values()) == set(get_args(Message))


# ----------------------------------------------------------------------------------------------------------- entries


def within(data: bytes) -> bytes:
    """Return a frame without the version of its format and the digest, which differ between the releases."""
    return data[:4] + data[6:-DIGEST_BYTES]


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in ADDED])
def test_an_entry_is_written_and_read_as_the_release_did(name: str) -> None:
    assert within(entry_bytes(ENTRIES[name])) == within(WRITTEN[name])
    assert entry_bytes(entry_of(WRITTEN[name])) == entry_bytes(ENTRIES[name])


def test_an_exchange_with_all_that_shares_ever_had_is_read() -> None:
    """An inactive exchange with the fields of real and of masked shares is read, although no peer writes it."""
    assert entry_of(WRITTEN["Opened"]) == ENTRIES["Opened-inactive"]


def test_there_are_bytes_of_every_kind_of_entry() -> None:
    assert {type(each) for each in ENTRIES.values()} == set(get_args(Entry))
    assert WRITTEN.keys() | ADDED == {*ENTRIES, "Opened", "snapshot"}


def test_a_snapshot_of_the_release_is_read_to_the_last_field() -> None:
    whole_one = durable()
    found = durable_state_of(WRITTEN["snapshot"], (), whole_one.rules, whole_one.index, OWNER)
    assert snapshot_bytes(found, OWNER) == snapshot_bytes(whole_one, OWNER)


# ------------------------------------------------------------------------------------------------------------ states


def resumed(folder: Path, peer: str) -> DurableState:
    """Return the durable state of a peer that is started on its kept state."""
    found: list[DurableState] = []
    config = load_peer(folder / peer / f"{peer}.yaml")
    with whole(prepare_peer(config.file, config.federation)) as running:
        found.append(running.inside(running.state.durable.copy))
        assert not [line for line in running.lines if line.what in ("snapshot_corrupt", "journal_corrupt")]
    return found[0]


def kept_rounds(folder: Path, peer: str) -> int:
    """Return the round in which the peer was killed, read from its journal alone."""
    with Store.open(folder / peer / f"{peer}-state") as store:
        return max(entry.round for entry in map(entry_of, store.recover().entries) if isinstance(entry, Began))


def test_killed_peers_of_the_release_go_on_and_nothing_of_the_mass_is_missing(tmp_path: Path) -> None:
    folder = moved(unpacked("gossip", tmp_path))
    rounds = {peer: kept_rounds(folder, peer) for peer in PEERS}
    durable_states = {peer: resumed(folder, peer) for peer in PEERS}
    assert {peer: each.round for peer, each in durable_states.items()} == rounds
    assert min(rounds.values()) > 1
    assert all(set(each.met) == set(PEERS) - {peer} for peer, each in durable_states.items())
    holdings = {peer: each.groups["everyone"] for peer, each in durable_states.items()}
    assert any(each.waiting for each in holdings.values())
    under_way = [
        share.weight
        for peer, holding in holdings.items()
        for other, channel in holding.out.items()
        for share in channel.open
        if share.seq > holdings[other].into[peer].taken
    ]
    assert under_way
    total = sum(each.weight for each in holdings.values()) + sum(under_way)
    assert total == pytest.approx(3.0, rel=1e-12)


def test_killed_peers_of_a_coordinated_release_go_on_with_what_they_promised(tmp_path: Path) -> None:
    folder = moved(unpacked("server", tmp_path))
    consensus_states = {peer: resumed(folder, peer).consensus_states["everyone"] for peer in PEERS}
    assert all(each.hard_state.voted in PEERS and each.hard_state.term >= 1 for each in consensus_states.values())
    assert all(each.holding.applied is not None and each.content is not None for each in consensus_states.values())
    studies = [each.pending for each in consensus_states.values() if each.pending is not None]
    assert studies
    assert all(pending.update for pending in studies)


# --------------------------------------------------------------------------------------------------------------- run


def test_an_interrupted_run_of_the_release_ends_with_the_numbers_of_an_uninterrupted_one(tmp_path: Path) -> None:
    kept = RunFolder.open(unpacked("runs", tmp_path), "last")
    assert [kept.status] == ["interrupted"]
    assert (kept.path / "checkpoint.safetensors").exists()
    before = measured(kept)
    request = resumed_request({"resume": kept.id}, None)(kept.read("settings") or {})
    run_prepared(prepare_simulation(request), kept)
    anew = RunFolder.create(tmp_path / "anew", name="anew", settings={}, environment={})
    run_prepared(prepare_simulation(request), anew)
    assert measured(kept)[: len(before)] == before
    counted_now = [{**row, "bytes_sent": bytes_now(row)} for row in before]
    assert counted_now + measured(kept)[len(before) :] == measured(anew)
    assert kept.status == "finished"


def bytes_now(row: dict[str, Any]) -> list[int]:
    """Return the bytes that this release counts for a row of the release before.

    The earlier release counted a share's head like any other, and no acknowledgement."""
    more = SHARE_EXTRA_BYTES - MESSAGE_HEAD_BYTES
    return [size + more * shares for size, shares in zip(row["bytes_sent"], row["messages_sent"], strict=True)]


def measured(run: RunFolder) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.rows()]
