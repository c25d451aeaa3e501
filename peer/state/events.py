"""What happens to a peer, and what it wants done: the two sides of `Node.step(event) -> effects`.

Effects are to be carried out in their order, and the order is binding: what stands after a `Persist` leaves only when
that is durable. Everything else (sockets, threads, clocks, disks) belongs to who carries them out, which is a real
process or a simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fedpeer.config.contract import HeldContract
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.messages import Message
from fedpeer.peer.wire.roster import Roster
from fedpeer.peer.wire.signed_contract import SignedContract
from fedpeer.peer.wire.versions import NEWEST
from fedpeer.rejection import Rejection

# ---------------------------------------------------------------------------------------------------- what happens


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: `now` counts ticks since the process began, by a clock that never goes back."""

    now: int


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message that passed the codec, from a peer whose identity is certain.

    incarnation, to_incarnation   the sender's own, and this peer's as the sender knows it (0: not at all)
    version   of the wire, in which it came; 0: as an answer, whose version says nothing
    """

    sender: str
    incarnation: int
    to_incarnation: int
    message: Message
    version: int = 0


@dataclass(frozen=True, slots=True)
class NobodyListens:
    """The machine of this peer refuses connections: its process has ended, or has not begun."""

    peer: str


@dataclass(frozen=True, slots=True)
class Trained:
    """A `Train` is done: parameters (n,) and what the learner keeps (k,) after it."""

    round: int
    x_n: Tensor
    s_k: Tensor


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An `Evaluate` is done: accuracy as a fraction or error, and mean loss, on the peer's own test part; `server`: the
    same of the server's model, where there is one."""

    round: int
    score: float
    loss: float
    server: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class ClientTrained:
    """A `TrainClient` is done: the client's state after it, its update with (32 bytes) the digest of that, and what is
    wrong with the numbers in it, if anything."""

    round: int
    client: bytes
    update: bytes
    digest: bytes
    fault: Rejection | None = None


@dataclass(frozen=True, slots=True)
class UpdatesAggregated:
    """An `AggregateUpdates` is done: the content of what is to be decreed (`leaf_bytes.py`), with (32 bytes) the digest
    of that; None where the round leads to numbers that are none. `out`: by client, why its update is not part of it."""

    term: int
    round: int
    content: bytes | None
    digest: bytes = b""
    group: str = EVERYONE
    out: Mapping[str, Rejection] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """A `FinishRound` is done: the client's state after the round, the model (n,) that it uses, (n,) the server's."""

    round: int
    client: bytes
    x_n: Tensor
    server_n: Tensor | None


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """The person at this machine: stop for now and keep everything, or hand all over and go."""

    what: Literal["pause", "leave"]


@dataclass(frozen=True, slots=True)
class NewRoster:
    """A roster was read from this machine's disk (by `fedpeer revoke` and the like); its signature is checked."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class NewContract:
    """A signed contract was read from this machine's disk; its signature is checked."""

    contract: SignedContract


#: A `Rejection`: something of its sender was turned away before it became a message; it counts for the sender's
#: standing.
Event = (
    Tick
    | MessageReceived
    | Rejection
    | NobodyListens
    | Trained
    | Evaluated
    | ClientTrained
    | UpdatesAggregated
    | RoundFinished
    | OperatorCommand
    | NewRoster
    | NewContract
)

# ------------------------------------------------------------------------------------------------- what is to be done


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this durable, after everything persisted before it: a journal entry (frames of bytes, see `journal.py`),
    or a whole snapshot, which makes the entries before it unnecessary; `held`: the contract under which it is kept, if
    not the one in force."""

    kind: Literal["entry", "snapshot"]
    content: object
    held: HeldContract | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Say this to a peer, once, if it can be reached; who repeats is the core. The incarnations go on the envelope, and
    the version of the wire is the one in which it is written.

    stays_true   (group, kind, term) of what was true before and is still; where a save holds this back, the last such
                 one to that peer is said again in its place. None: nothing may be said in its place
    """

    to: str
    message: Message
    incarnation: int
    to_incarnation: int
    version: int = NEWEST
    stays_true: tuple[str, str, int] | None = None


@dataclass(frozen=True, slots=True)
class Train:
    """Take the local steps of this round from parameters (n,) and what the learner kept (k,); `fresh`: nothing yet.

    number   of the training, 1, 2, ...: it says which examples are next. It is the round, and later ones' where a peer
             trains several times in a round because nobody answers.
    """

    round: int
    number: int
    x_n: Tensor
    s_k: Tensor
    fresh: bool


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Measure these parameters (n,) on the peer's own test part, and the server's (n,), or what equals have for the
    average beside models of their own, where there are such."""

    round: int
    x_n: Tensor
    server_n: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TrainClient:
    """Train this client in a round that the server opens so; states as bytes (`leaf_bytes.py`).

    clients   ids of all clients of the round, in the order in which the algorithm counts them
    """

    round: int
    client: bytes
    server: bytes
    clients: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AggregateUpdates:
    """Close the round of a term: the next server, of this one and the updates that came; or the next mean of a group,
    where equals average through a coordinator.

    counted   by client, the last round before this one in which its update counted
    updates   by client, in the order of ids
    clients   ids of all clients of the round, as for `TrainClient`
    """

    term: int
    round: int
    server: bytes
    counted: Mapping[str, int]
    updates: Mapping[str, bytes]
    clients: tuple[str, ...]
    group: str = EVERYONE


@dataclass(frozen=True, slots=True)
class FinishRound:
    """What the client keeps of a round after which the server is this one.

    before, trained    its states before and after its training; `trained` None: it did not train
    counted            whether its update is part of the server
    """

    round: int
    before: bytes
    trained: bytes | None
    server: bytes
    counted: bool


@dataclass(frozen=True, slots=True)
class RejectEffect:
    """Count a rejection. One log line, one metric."""

    rejection: Rejection


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a log line: `what` is a fixed name, `text` the sentence, `fields` the numbers in it."""

    level: Literal["debug", "info", "warning", "error"]
    what: str
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Enrol:
    """Keep this roster on disk, and let in by it from now on."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class Amend:
    """Keep this contract on disk, as the newest that the authority has signed."""

    contract: SignedContract


@dataclass(frozen=True, slots=True)
class Stop:
    """Everything is said and saved; the process may end. `code`: 0, or 2 where the person has to do something;
    `again`: it begins anew on its state, under another contract."""

    code: int
    text: str
    again: bool = False


#: What takes long, and is done beside the node: one after the other, in this order. Each gives the event of its name.
Work = Train | Evaluate | TrainClient | AggregateUpdates | FinishRound
Worked = Trained | Evaluated | ClientTrained | UpdatesAggregated | RoundFinished
Effect = Persist | Send | Work | RejectEffect | Note | Enrol | Amend | Stop
