"""Events and effects: the two sides of `Node.step(event) -> effects`.

Effects are carried out in their order, and the order is binding: what comes after a `Persist` is sent only once that is
durable. Everything else (sockets, threads, clocks, disks) belongs to the process or simulator that carries them out.
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

# ------------------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: `now` counts ticks since the process started, by a clock that never goes back."""

    now: int


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message that passed the codec, from a peer whose identity is verified.

    incarnation, to_incarnation   the sender's own, and this peer's as the sender knows it (0: not at all)
    version   version of the wire in which it came; 0: not known, since it came as an answer
    """

    sender: str
    incarnation: int
    to_incarnation: int
    message: Message
    version: int = 0


@dataclass(frozen=True, slots=True)
class NobodyListens:
    """The machine of another peer refuses connections: its process has ended, or has not started."""

    peer: str


@dataclass(frozen=True, slots=True)
class Reachability:
    """Others can connect to this peer, or nobody can."""

    reachable: bool


@dataclass(frozen=True, slots=True)
class Trained:
    """A `Train` is done: parameters (n,) and training state (k,) after it.

    sound   whether these are finite; if not, the training does not count
    """

    round: int
    x_n: Tensor
    s_k: Tensor
    sound: bool = True


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An `Evaluate` is done: measurements on the peer's own test part.

    score     accuracy as a fraction, or error; `loss`: mean loss
    server    (score, loss) of the server's model; None: no such model
    metrics   further metrics that this peer's own file names; NaN: not defined here
    validation, server_validation
              as (score, loss) and `server`, on the examples held out for validation; None: no such examples
    """

    round: int
    score: float
    loss: float
    server: tuple[float, float] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: tuple[float, float] | None = None
    server_validation: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class ClientTrained:
    """A `TrainClient` is done.

    client   the client's state after the training, as bytes
    update   the client's update, as bytes; `digest` (32 bytes): of the update
    fault    what is wrong with the numbers of the update; None: nothing
    """

    round: int
    client: bytes
    update: bytes
    digest: bytes
    fault: Rejection | None = None


@dataclass(frozen=True, slots=True)
class UpdatesAggregated:
    """An `AggregateUpdates` is done.

    content   model to propose (`leaf_bytes.py`); None: the round produced NaN or infinite values
    digest    (32 bytes) of the content
    out       by client, why its update is not part of it
    """

    term: int
    round: int
    content: bytes | None
    digest: bytes = b""
    group: str = EVERYONE
    out: Mapping[str, Rejection] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """A `FinishRound` is done: the client's state after the round, the model (n,) it uses, and the server's (n,)."""

    round: int
    client: bytes
    x_n: Tensor
    server_n: Tensor | None


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """A command of the person at this machine: stop and keep everything, or hand everything over and leave."""

    what: Literal["pause", "leave"]


@dataclass(frozen=True, slots=True)
class NewRoster:
    """A roster was read from this machine's disk (written by `fedpeer revoke` and the like); its signature is valid."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class NewContract:
    """A signed contract was read from this machine's disk; its signature is valid."""

    contract: SignedContract


#: A `Rejection` is an event if its sender's bytes were rejected before they became a message; it counts for the
#: sender's reputation.
Event = (
    Tick
    | MessageReceived
    | Rejection
    | NobodyListens
    | Reachability
    | Trained
    | Evaluated
    | ClientTrained
    | UpdatesAggregated
    | RoundFinished
    | OperatorCommand
    | NewRoster
    | NewContract
)

# ----------------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this durable, after everything persisted before it.

    content   a journal entry, or a whole durable state, which makes the entries before it unnecessary (`journal.py`)
    held      contract under which a snapshot is stored; None: the one in force
    """

    kind: Literal["entry", "snapshot"]
    content: object
    held: HeldContract | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to a peer once, if it can be reached; the node makes any repeats.

    incarnation, to_incarnation   this peer's and the recipient's, for the envelope
    version      version of the wire in which the message is written
    stays_true   (group, kind, term) of a message that stays true: while a save holds this one back, the last such
                 message to that peer is sent again in its place. None: nothing may be sent in its place
    """

    to: str
    message: Message
    incarnation: int
    to_incarnation: int
    version: int = NEWEST
    stays_true: tuple[str, str, int] | None = None


@dataclass(frozen=True, slots=True)
class Train:
    """Take the local steps of this round from parameters (n,) and the training state (k,); `fresh`: no state yet.

    number   number of the training, 1, 2, ..., which selects the examples: the round's number, or a later one if a peer
             trains several times in a round because nobody answers
    """

    round: int
    number: int
    x_n: Tensor
    s_k: Tensor
    fresh: bool


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate these parameters (n,) on the peer's own test part.

    server_n   (n,) the server's model, or the estimate of the average if the peer has a model of its own; None: neither
    """

    round: int
    x_n: Tensor
    server_n: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TrainClient:
    """Train this client in a round that starts from this server's state; states as bytes (`leaf_bytes.py`).

    clients   ids of all clients of the round, in the order in which the algorithm numbers them
    """

    round: int
    client: bytes
    server: bytes
    clients: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AggregateUpdates:
    """Close a round: make the server's next state, or the mean of a group, from the updates that arrived.

    counted   by client, the round of its last update that counted
    updates   by client, in the order of ids
    rounds    by client, the round of its update; for a client that is missing here, this round
    clients   ids of all clients of the round, as for `TrainClient`
    """

    term: int
    round: int
    server: bytes
    counted: Mapping[str, int]
    updates: Mapping[str, bytes]
    clients: tuple[str, ...]
    group: str = EVERYONE
    rounds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FinishRound:
    """Make the client's state after a round that ended with this server's state.

    before, trained    client's states before and after its training; `trained` None: it did not train
    counted            whether its update is part of the server's state
    """

    round: int
    before: bytes
    trained: bytes | None
    server: bytes
    counted: bool


@dataclass(frozen=True, slots=True)
class RejectEffect:
    """Count a rejection: one log line, one metric."""

    rejection: Rejection


@dataclass(frozen=True, slots=True)
class Note:
    """Log a line: `what` is a fixed code, `text` the sentence, `fields` the values in it."""

    level: Literal["debug", "info", "warning", "error"]
    what: str
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Enrol:
    """Store this roster on disk, and admit peers by it from now on."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class Amend:
    """Store this contract on disk, as the newest that the authority has signed."""

    contract: SignedContract


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process; everything is sent and saved.

    code    exit code: 0, or 2 if the person has to do something
    again   start the process again on its state, under another contract
    """

    code: int
    text: str
    again: bool = False


#: Long work that is done beside the node, one job at a time and in order. Each job results in the event of its name.
Work = Train | Evaluate | TrainClient | AggregateUpdates | FinishRound
Worked = Trained | Evaluated | ClientTrained | UpdatesAggregated | RoundFinished
Effect = Persist | Send | Work | RejectEffect | Note | Enrol | Amend | Stop
