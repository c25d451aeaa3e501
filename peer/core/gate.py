"""Whether a message may come in: what its metadata says, held against what we know of the other side.

Nothing of the tail is read here, and no memory of earlier messages is needed: a `ParsedMetadata` passes, with what its
tail has to be, or is `Rejected`. In the order of the table of bad inputs: who and to whom, then the group, then the
shape and the number of bytes, then the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from fedpeer.algorithms.updates import Fault
from fedpeer.gossip.reductions import FLOAT32, NOTHING, Form
from fedpeer.peer.core.ballot_bytes import SIGNATURES_BYTES, has_signatures
from fedpeer.peer.core.fields import PLAIN
from fedpeer.peer.core.messages import (
    Ack,
    ConsensusMessage,
    Contract,
    Envelope,
    Fetch,
    Hello,
    Message,
    Model,
    Reminder,
    RosterNews,
    Transfer,
    Update,
    Value,
    Wanted,
)
from fedpeer.peer.core.refusals import Rejected
from fedpeer.peer.core.roster import ROSTER_BYTES_MAX
from fedpeer.peer.core.sparse_words import packed_bytes_min
from fedpeer.peer.core.versions import NEWEST

#: Bytes of a contract's text: a federation file with a thousand lines has about 40,000.
CONTRACT_BYTES_MAX = 1 << 16
#: Bytes of the tails that are texts.
TEXTS: Mapping[type[Message], int] = {Contract: CONTRACT_BYTES_MAX, RosterNews: ROSTER_BYTES_MAX}


#: What is wrong with the numbers in a content, if anything.
Check: TypeAlias = Callable[[bytes], Fault | None]


def nothing_wrong(content: bytes) -> Fault | None:
    """A check that any content passes."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """What may be said about one averaging group.

    length       D
    forms        in which a transfer may travel, by name
    members      all of the group; `neighbours`: those who may make transfers to us
    weight_max   finite: the most weight that a share can have, the sum of all members'
    """

    length: int
    forms: Mapping[str, Form]
    members: Set[str]
    neighbours: Set[str]
    weight_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CouncilSpec:
    """What may be said in one council: the members of a group who learn by coordinated rounds.

    members        all of them
    update_bytes   bytes of an update's content, the least and the most
    model_bytes    of a model's
    update_fault, model_fault    what is wrong with one of them
    """

    members: Set[str]
    update_bytes: tuple[int, int]
    model_bytes: tuple[int, int]
    update_fault: Check = nothing_wrong
    model_fault: Check = nothing_wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePolicy:
    """What a message is held against.

    federation, me, incarnation    ours
    other    who speaks, as the certificate says; None without certificates (plain HTTP): then the envelope says it
    peers    all in the roster
    groups   every group of the federation by id, also those in which we have no part
    councils by group, also those in which we have no part; none where equals average
    version  of the wire, in which it is answered
    """

    federation: bytes
    me: str
    incarnation: int
    other: str | None
    peers: Set[str]
    groups: Mapping[str, GroupSpec]
    councils: Mapping[str, CouncilSpec] = field(default_factory=dict)
    version: int = NEWEST


@dataclass(frozen=True, slots=True)
class ParsedMetadata:
    """A message without its tail, everything else of it checked.

    `fields` by name; `form` and `length` say how the tail is to be read where it is a tensor; `check` finds what is
    wrong with the numbers of an update or a model.
    """

    envelope: Envelope
    kind: type[Message]
    fields: Mapping[str, Any]
    tail_bytes: int
    form: Form | None = None
    length: int = 0
    check: Check = nothing_wrong

    @property
    def group(self) -> str:
        """The group that it is about; "" where there is none."""
        return str(self.fields.get("group", ""))


def admitted(opening: ParsedMetadata, gate: MessagePolicy) -> ParsedMetadata | Rejected:
    """The message, with the form of its tail, or why it may not come in."""
    wrong = _misdirected(opening, gate)
    if wrong is not None:
        return wrong
    if opening.kind in (ConsensusMessage, Update, Wanted, Model) or (
        opening.kind is Ack and opening.group in gate.councils
    ):
        return _in_council(opening, gate)
    if opening.kind in (Transfer, Ack, Fetch, Value):
        return _grouped(opening, gate)
    return _texted(opening)


def tail_bytes_max(gate: MessagePolicy) -> int:
    """Bytes of the longest tail that this other side may send."""
    us = {gate.me} if gate.other is None else {gate.me, gate.other}
    shared = [each for each in gate.groups.values() if us <= each.members]
    tails = [form.bytes_bounds(each.length)[1] for each in shared for form in (FLOAT32, *each.forms.values())]
    councils = [each for each in gate.councils.values() if us <= each.members]
    tails += [bytes_most for each in councils for _, bytes_most in (each.update_bytes, each.model_bytes)]
    return max([*TEXTS.values(), *tails, SIGNATURES_BYTES[1] if councils else 0])


def about(opening: ParsedMetadata, code: str, text: str = "") -> Rejected:
    """The refusal of this message, naming the transfer where it is one."""
    return Rejected(code, text, opening.group, opening.fields.get("seq", 0))


def _misdirected(opening: ParsedMetadata, gate: MessagePolicy) -> Rejected | None:
    """What is wrong with from whom and to whom."""
    envelope = opening.envelope
    if envelope.federation != gate.federation:
        return about(opening, "wrong_federation", "another federation's name on the envelope")
    if envelope.sender == gate.me:
        return about(opening, "own_message")
    if gate.other is not None and envelope.sender != gate.other:
        return about(opening, "sender_mismatch", f"{gate.other} in the name of {envelope.sender}")
    if envelope.sender not in gate.peers:
        return about(opening, "unknown_peer", envelope.sender)
    if envelope.recipient != gate.me:
        return about(opening, "wrong_recipient", f"meant for {envelope.recipient}")
    # Lanes belong to a pair of incarnations; whoever has not met ours yet may say anything else, but no transfer.
    unmet = envelope.to_incarnation == 0 and opening.kind not in (Transfer, Ack)
    if opening.kind in (Hello, Reminder) or unmet or envelope.to_incarnation == gate.incarnation:
        return None
    return about(opening, "stale_incarnation", f"to incarnation {envelope.to_incarnation}; ours is {gate.incarnation}")


def _grouped(opening: ParsedMetadata, gate: MessagePolicy) -> ParsedMetadata | Rejected:
    """A message about one group: whether the group, its numbers and the tail are what they have to be."""
    spec = gate.groups.get(opening.group)
    if spec is None:
        return about(opening, "unknown_group", opening.group)
    if not {gate.me, opening.envelope.sender} <= spec.members:
        return about(opening, "group_not_shared", opening.group)
    if opening.kind in (Ack, Fetch):
        return _texted(opening)
    if opening.kind is Value:
        return _shaped(opening, opening.fields["value_D"], FLOAT32, spec.length)
    if opening.envelope.sender not in spec.neighbours:
        return about(opening, "not_a_neighbour", opening.group)
    form = spec.forms.get(opening.fields["form"])
    if form is None:
        return about(opening, "wrong_dtype", f"{opening.fields['form']}; allowed: {', '.join(spec.forms)}")
    shaped = _shaped(opening, opening.fields["payload"], form, spec.length)
    if isinstance(shaped, Rejected):
        return shaped
    weight = opening.fields["weight"]
    if not (weight == 0 if form is NOTHING else 0 < weight <= spec.weight_max):  # false for NaN too
        return about(opening, "bad_weight", f"{weight}; at most {spec.weight_max:g}")
    return shaped


def _shaped(opening: ParsedMetadata, shape: tuple[int, ...], form: Form, length: int) -> ParsedMetadata | Rejected:
    """The tail has to be one vector: of the group's length, or within what a reduction makes of it."""
    least, most = (bound // form.dtype.itemsize for bound in form.bytes_bounds(length))
    if len(shape) != 1 or not least <= shape[0] <= most:
        wanted = f"({least},)" if least == most else f"({least}..{most},)"
        return about(opening, "wrong_shape", f"{shape} instead of {wanted}")
    if opening.tail_bytes != shape[0] * form.dtype.itemsize:
        return about(opening, "tail_length_wrong", f"{opening.tail_bytes} bytes for {shape[0]} of {form.name}")
    return replace(opening, form=form, length=length)


def _in_council(opening: ParsedMetadata, gate: MessagePolicy) -> ParsedMetadata | Rejected:
    """A message of coordinated rounds: the council, and how long its tail may be."""
    spec = gate.councils.get(opening.group)
    if spec is None:
        return about(opening, "unknown_group", opening.group)
    if not {gate.me, opening.envelope.sender} <= spec.members:
        return about(opening, "group_not_shared", opening.group)
    if opening.kind is Update:
        return _updating(opening, spec)
    least, most = 0, 0
    if opening.kind is Model:
        least, most = spec.model_bytes
        opening = replace(opening, check=spec.model_fault)
    elif opening.kind is ConsensusMessage and has_signatures(opening.fields["said"]):
        least, most = SIGNATURES_BYTES
    return opening if least <= opening.tail_bytes <= most else _unlike(opening, opening.tail_bytes, least, most)


def _updating(opening: ParsedMetadata, spec: CouncilSpec) -> ParsedMetadata | Rejected:
    """An update: its content is one of this council's, and the tail has it in full or in fewer bytes."""
    size, (least, most) = opening.fields["size"], spec.update_bytes
    if not least <= size <= most:
        return _unlike(opening, size, least, most)
    fewest, most = (size, size) if opening.fields["form"] == PLAIN else (packed_bytes_min(size), size - 1)
    if not fewest <= opening.tail_bytes <= most:
        return _unlike(opening, opening.tail_bytes, fewest, most)
    return replace(opening, check=spec.update_fault)


def _unlike(opening: ParsedMetadata, size: int, least: int, most: int) -> Rejected:
    wanted = f"{least}" if least == most else f"{least} to {most}"
    return about(opening, "tail_length_wrong", f"{size} bytes instead of {wanted}")


def _texted(opening: ParsedMetadata) -> ParsedMetadata | Rejected:
    """A message without a tensor: the tail is a bounded text, or nothing."""
    most = TEXTS.get(opening.kind, 0)
    if opening.tail_bytes > most:
        return about(opening, "tail_length_wrong", f"{opening.tail_bytes} bytes, more than {most}")
    return opening
