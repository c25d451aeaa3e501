"""Preparation of a peer: reads the roster and the keys, loads the data, builds the network.

All mistakes of the user are found here, so the result needs no more checks.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedpeer.algorithms.answer_metrics import AnswerMetric, example_answers
from fedpeer.config.building import metrics_of
from fedpeer.config.choice import Choice
from fedpeer.config.federation import Federation
from fedpeer.config.methods import method_of
from fedpeer.config.peer_file import PeerFile
from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.own.code import imported
from fedpeer.gossip.claims import Sign
from fedpeer.learning.assembly import Assembly, DataShape
from fedpeer.learning.device import device_memory, device_of
from fedpeer.learning.groups import hides_values
from fedpeer.learning.holdings import Outfit, assembly_of, load_dataset, loader_of, outfit
from fedpeer.peer.consensus.capability import Capability
from fedpeer.peer.consensus.roster_keys import VerifyBy
from fedpeer.peer.node.node_setup import outer_rules_of
from fedpeer.peer.node.trainer import LocalTrainer
from fedpeer.peer.runtime.agreement import ContinuationPlan, going_on, state_of
from fedpeer.peer.runtime.contract_file import contract_file, read_contract
from fedpeer.peer.runtime.data_refresh import DataRefresh
from fedpeer.peer.runtime.identity import Identity, load_identity, read_roster
from fedpeer.peer.runtime.roster_file import RosterFile
from fedpeer.peer.runtime.roster_history import history_file, read_history
from fedpeer.peer.runtime.secret import secret_in
from fedpeer.peer.runtime.status import About, Status
from fedpeer.peer.wire.roster import Roster, RosterEntry, RosterError, sign_statement, verify_statement
from fedpeer.runs.trackers.registry import check_installed
from fedpeer.version import __version__


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A peer that is ready to start, with all settings checked.

    federation   federation of the contract in force
    identity     None: plain HTTP on this machine, without identities
    going        contract with which the peer continues
    trainer      the peer's training under the federation's algorithm
    secret       source of its noise, kept in the state folder (`secret.py`); b"": no noise is used
    refresh      looks for changes of its data; None: changes are not taken up
    metrics      further metrics of its model, by name
    earlier      earlier rosters, as far as there is a file of them
    """

    file: PeerFile
    federation: Federation
    roster: Roster
    identity: Identity | None
    outfit: Outfit
    device: str
    going: ContinuationPlan
    trainer: LocalTrainer
    secret: bytes = b""
    refresh: DataRefresh | None = None
    metrics: Mapping[str, AnswerMetric] = field(default_factory=dict)
    earlier: tuple[Roster, ...] = ()

    @property
    def patience(self) -> float:
        """Part of the longest wait before it becomes a candidate for coordinator (`Capability.patience`)."""
        return _patience(self.trainer.examples, self.device, self.file.bandwidth)

    @property
    def folder(self) -> Path:
        """Folder of its state."""
        return Path(self.file.state or f"{self.file.id}-state")


def _patience(examples: int, device: str, bandwidth: float) -> float:
    memory = device_memory(device)
    return Capability(examples=examples, accelerator=device != "cpu", memory=memory, bandwidth=bandwidth).patience


def assemble_shared(peers: Iterable[tuple[PeerFile, Federation]], loaded: Mapping[str, Dataset]) -> list[Assembly]:
    """Build the networks of peers that are about to be forked, once for all who would build the same.

    Only peers that divide one of the loaded data sets (by choice) are looked at, and no network with users' own code is
    built, which may start threads or use a GPU before the fork. What is wrong with a file is left to its own peer.
    """
    wanted = [each for each in (_wanted(file, federation, loaded) for file, federation in peers) if each is not None]
    found: list[Assembly] = []
    for file, settings, shape in wanted:
        alike = sum(each[0].network == file.network and each[1:] == (settings, shape) for each in wanted)
        if alike > 1 and not any(each.fits(settings, shape, file.network) for each in found):
            with suppress(Exception):  # the peer meets the same exception, and reports it
                found.append(assembly_of(file, settings, shape))
    return found


def _wanted(
    file: PeerFile, federation: Federation, loaded: Mapping[str, Dataset]
) -> tuple[PeerFile, Federation, DataShape] | None:
    """Return for which federation and data a peer builds its network; None: it has to do so itself."""
    dataset = loaded.get(str(federation.simulation.dataset))
    if file.data.part is None or dataset is None:
        return None
    with suppress(Exception):  # as above
        settings = _going(file, federation, read_roster(Path(file.roster))).federation
        return None if _own_code(file, settings) else (file, settings, DataShape.of(dataset))
    return None


def _own_code(file: PeerFile, federation: Federation) -> bool:
    """Return whether the network, the loss or the optimizer is a user's own."""
    learning = federation.learning
    chosen = (file.network or federation.network, learning.loss, learning.optimizer)
    return any(each is not None and each.name == "python" for each in chosen)


def _going(file: PeerFile, federation: Federation, roster: Roster) -> ContinuationPlan:
    signed = read_contract(contract_file(Path(file.roster)), roster.authority)
    return going_on(Path(file.state or f"{file.id}-state"), federation, signed)


def prepare_peer(
    file: PeerFile,
    federation: Federation,
    load: Callable[[Choice], Dataset] = load_dataset,
    assembled: Iterable[Assembly] = (),
) -> Prepared:
    """Read the roster and the keys, load the data, build the network.

    Args:
        federation: this machine's federation file; if there is a state, its contract is in force.
        load: loads a data set; processes with the same one may share it.
        assembled: networks that are built already (`assemble_shared`); one that fits is taken.

    Raises:
        SnapshotForeignError: the file differs from the state.
        RosterError, IdentityError, DataError, NetworkError, SlicingError, TrackingError, ...: the user's mistakes.
    """
    check_installed([each.name for each in file.tracking], "tracking")
    roster = read_roster(Path(file.roster))
    if file.id not in roster.by_id:
        text = f"{file.id} is not in {file.roster} (number {roster.number}); it lists {', '.join(roster.by_id)}"
        raise RosterError("unknown_peer", text)
    identity = None
    if file.transport == "https":
        assert file.identity is not None, "checked with the file"
        identity = load_identity(
            file.id,
            Path(file.identity.certificate),
            Path(file.identity.key),
            Path(file.identity.authority),
            roster,
        )
    device = device_of(file.device)
    going = _going(file, federation, roster)
    federation = going.federation
    refresh = DataRefresh(file, federation, device) if file.data.refresh else None
    made, algorithm = outfit(file, federation, device, load, assembled), federation.learning.algorithm
    data = made.dataset
    hides = method_of(algorithm).has_server or hides_values(federation)
    secret = secret_in(Path(file.state or f"{file.id}-state")) if hides else b""
    begun = roster.number > 1 and state_of(Path(file.state or f"{file.id}-state")) is not None
    trainer = trainer_of(made, file, roster, device, secret, begun=begun)
    if refresh is not None and trainer.server_side is not None and trainer.server_side.spec.fixed:
        raise DataError(f"data.refresh: {algorithm.name} keeps a number for each example; leave it out")
    return Prepared(
        file=file,
        federation=federation,
        roster=roster,
        identity=identity,
        outfit=made,
        device=device,
        going=going,
        trainer=trainer,
        secret=secret,
        refresh=refresh,
        metrics=metrics_of(file.metrics, data.task, imported, example_answers(data.task, data.y, len(data.classes))),
        earlier=read_history(history_file(Path(file.roster)), roster.authority),
    )


def trainer_of(
    made: Outfit, file: PeerFile, roster: Roster, device: str, secret: bytes, *, begun: bool
) -> LocalTrainer:
    """Return a peer's training on its data, under the federation's algorithm; `begun`: as for a `LocalTrainer`."""
    algorithm = made.assembly.federation.learning.algorithm
    return LocalTrainer(
        made.local_task,
        algorithm,
        loader_of(file),
        tuple(roster.by_id),
        patience=_patience(made.local_task.examples, device, file.bandwidth),
        secret=secret,
        outer=outer_rules_of(made.assembly, roster, file.id, algorithm),
        begun=begun,
    )


def initial_status(prepared: Prepared) -> Status:
    """Return the peer's status, which has only its constant parts so far."""
    federation = prepared.outfit.assembly.federation
    return Status(
        About(
            federation=federation.name,
            peer=prepared.file.id,
            version=__version__,
            mode=federation.learning.mode,
            rounds=federation.learning.rounds,
            device=prepared.device,
            transport=prepared.file.transport,
            score_name="error" if prepared.outfit.dataset.task == "regression" else "accuracy",
        )
    )


def signatures(prepared: Prepared, members: RosterFile) -> tuple[Sign, VerifyBy]:
    """Return functions that sign our claims, and verify others' by the key of a roster's entry.

    Without identities (plain HTTP) both use a keyed hash that proves nothing.
    """
    if prepared.identity is None:
        me = prepared.file.id
        return lambda text: _unproven(me, text), lambda entry, text, it: hmac.compare_digest(
            _unproven(entry.id, text), it
        )
    key, federation = prepared.identity.key, members.roster.federation_id

    def verify_by(entry: RosterEntry, text: bytes, signature: bytes) -> bool:
        return verify_statement("claim", federation, text, entry.key, signature)

    return lambda text: sign_statement(key, "claim", federation, text), verify_by


def _unproven(author: str, text: bytes) -> bytes:
    return hashlib.blake2b(text, key=author.encode()).digest()
