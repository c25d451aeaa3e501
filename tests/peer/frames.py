"""Two peers, and one valid message of each kind between them, for tests of the code that carries messages."""

from __future__ import annotations

import torch

from fedpeer.gossip.claims import Advert, Claim
from fedpeer.gossip.proofs import ChannelProof, GenerationProof
from fedpeer.gossip.reductions import FORMS, Form
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.wire import consensus_wire
from fedpeer.peer.wire.codec import encode
from fedpeer.peer.wire.consensus_messages import (
    Accept,
    Certificate,
    Commit,
    ConsensusContent,
    Heartbeat,
    HeartbeatReply,
    LeaderCertificate,
    Progress,
    Proposal,
    Propose,
    ShortHeartbeat,
    VoteReply,
    VoteRequest,
)
from fedpeer.peer.wire.message_policy import ConsensusSpec, GroupSpec, MessagePolicy
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import (
    Ack,
    ChannelState,
    ConsensusMessage,
    Contract,
    Hello,
    Message,
    ModelReply,
    ModelRequest,
    Ping,
    PingRequest,
    Pong,
    RejectMessage,
    Reminder,
    RosterNews,
    Transfer,
    Update,
    Value,
    ValueRequest,
)
from fedpeer.peer.wire.tails import content_digest
from tests.peer.hostile import Party

FEDERATION = bytes(range(16))
LENGTH = 7
#: Upper bounds of the bytes of an update's and a model's content.
UPDATE_BYTES, MODEL_BYTES = 4 * LENGTH + 1, 4 * LENGTH + 16
MEMBERS = frozenset({"ann", "bob", "cas", "dot"})
PLAIN: dict[str, Form] = {"float32": FORMS["float32"]()}


def spec(**changed: object) -> GroupSpec:
    values = {"length": LENGTH, "forms": PLAIN, "members": MEMBERS, "neighbors": frozenset({"ann"}), "weight_max": 4.0}
    return GroupSpec(**(values | changed))  # type: ignore[arg-type]


#: Policy by which bob reads messages from ann.
POLICY = MessagePolicy(
    federation=FEDERATION,
    me="bob",
    incarnation=3,
    other="ann",
    peers=MEMBERS,
    groups={
        "all": spec(),
        "closed": spec(members=frozenset({"bob", "cas"})),
        "far": spec(neighbors=frozenset({"cas"})),
        **{
            name: spec(forms=PLAIN | {form.name: form})
            for name, form in (
                ("wide", FORMS["float64"]()),
                ("half", FORMS["bfloat16"]()),
                ("bytes", FORMS["int8"]()),
                ("few", FORMS["top-k"](share=0.25)),
            )
        },
    },
    consensus_by_group={
        "all": ConsensusSpec(members=MEMBERS, update_bytes=(20, UPDATE_BYTES), model_bytes=(30, MODEL_BYTES)),
        "closed": ConsensusSpec(members=frozenset({"bob", "cas"}), update_bytes=(0, 40), model_bytes=(0, 40)),
    },
)
ENVELOPE = Envelope(federation=FEDERATION, sender="ann", recipient="bob", incarnation=2, to_incarnation=3)
PARTY = Party(
    federation=FEDERATION,
    sender="ann",
    recipient="bob",
    third="cas",
    incarnation=2,
    to_incarnation=3,
    group="all",
    closed="closed",
    far="far",
    length=LENGTH,
    weight_max=4.0,
)

_ADVERT = Advert(
    address="https://10.0.0.1:7401",
    roster=2,
    generation=5,
    nonce=77,
    round=12,
    score=0.5,
    begun=True,
    models=("everyone", "a"),
)
CLAIMS = (
    Claim(about="ann", incarnation=2, version=9, state="alive", author="ann", advert=_ADVERT, signature=bytes(64)),
    Claim(about="cas", incarnation=1, version=4, state="suspect", author="ann", advert=None, signature=b"s" * 64),
)
_VALUE_D = torch.tensor([1.5, -2.25, 0.0, -0.0, 1e-40, 3e38, -7.0])

HELLO = Hello(
    generation=5,
    nonce=2**63 - 1,
    known_generation=4,
    contract=b"c" * 32,
    groups=(("all", b"a" * 32), ("far", b"f" * 32)),
    channels=(ChannelState(group="all", made=9, acked=7, taken=8, made_weight=1.5, taken_weight=0.25),),
    round=12,
    begun=True,
    roster=2,
    answer=False,
    capabilities=("proofs",),
    signature=b"h" * 64,
    before=(("all", 0.375),),
)
TRANSFER = Transfer(
    group="all",
    share=NumberedTransfer(seq=1, round=12, exchange=3, weight=0.2, form="float32", payload=_VALUE_D),
    total=0.7,
    signature=b"t" * 64,
)

_PROPOSAL = Proposal(term=5, round=12, roster=2, digest=b"m" * 32)
_SIGNED = (("ann", b"a" * 64), ("cas", b"c" * 64), ("dot", b"d" * 64))
#: One message of each kind that an election and a committed round need.
CONSENSUS_CONTENTS: tuple[ConsensusContent, ...] = (
    VoteRequest(term=5, pre=True, roster=2, progress=Progress(applied=11, round=12, term=4)),
    VoteReply(term=5, pre=False, granted=True, signature=b"v" * 64),
    Heartbeat(
        leader_certificate=LeaderCertificate(term=5, candidate="ann", roster=2, votes=_SIGNED),
        progress=Progress(11, 12, 4),
    ),
    HeartbeatReply(term=5, progress=Progress(11, 11, 4)),
    Propose(proposal=_PROPOSAL),
    Accept(term=5, round=12, signature=b"y" * 64),
    Commit(certificate=Certificate(proposal=_PROPOSAL, acceptances=_SIGNED)),
    ShortHeartbeat(term=5, digest=b"l" * 32, progress=Progress(11, 12, 4)),
)


def update(content: bytes) -> Update:
    return Update(group="all", term=5, round=12, digest=content_digest(content), content=content)


_CONTENT = bytes(range(1, UPDATE_BYTES + 1))

#: One message of each kind, one consensus message of each kind, and transfers and updates in all forms.
MESSAGES: dict[str, Message] = {
    "hello": HELLO,
    "contract": Contract(text=b'{"seed":0}'),
    "transfer": TRANSFER,
    "transfer-float64": Transfer(
        group="wide",
        share=NumberedTransfer(seq=2, round=12, exchange=3, weight=4.0, form="float64", payload=_VALUE_D.double()),
    ),
    "transfer-bfloat16": Transfer(
        group="half",
        share=NumberedTransfer(
            seq=2, round=12, exchange=3, weight=5e-324, form="bfloat16", payload=_VALUE_D.bfloat16()
        ),
    ),
    "transfer-int8": Transfer(
        group="bytes",
        share=NumberedTransfer(
            seq=2,
            round=12,
            exchange=3,
            weight=0.2,
            form="int8",
            payload=torch.frombuffer(bytearray(b"\0\0\x80\x3f" + bytes(range(251, 256)) + b"\0\1"), dtype=torch.uint8),
        ),
    ),
    "transfer-top-k": Transfer(
        group="few",
        share=NumberedTransfer(
            seq=2,
            round=12,
            exchange=3,
            weight=0.2,
            form="top-k:0.25",
            payload=torch.cat(
                [torch.tensor([1, 6], dtype=torch.int32).view(torch.uint8), _VALUE_D[:2].view(torch.uint8)]
            ),
        ),
    ),
    "ack": Ack(group="all", taken=8, round=12, total=0.5, signature=b"k" * 64),
    "ping": Ping(number=1, claims=CLAIMS),
    "ping-request": PingRequest(number=2, target="cas", claims=CLAIMS[:1]),
    "pong": Pong(number=2, target="cas", received=False, claims=()),
    "fetch": ValueRequest(group="far"),
    "value": Value(group="all", round=12, value_D=_VALUE_D),
    "roster-news": RosterNews(number=2, text=b'{"number":2}'),
    "refused-duplicate": RejectMessage(code="duplicate_peer", group="", seq=0, text="One is later.", claims=CLAIMS[:1]),
    "reminder": Reminder(
        generation=GenerationProof(incarnation=2, generation=5, nonce=2**62, signature=b"l" * 64),
        channels=(ChannelProof(group="all", way="made", number=9, weight=1.5, signature=b"p" * 64),),
    ),
    "refused": RejectMessage(code="sequence_jump", group="all", seq=9, text="Transfers are numbered one by one."),
    **{
        f"ballot-{consensus_wire.TAGS[type(said)]}": ConsensusMessage(group="all", message=said)
        for said in CONSENSUS_CONTENTS
    },
    "update": update(_CONTENT),
    "update-sparse": update(bytes(8) + _CONTENT[8:16] + bytes(8) + _CONTENT[24:]),
    "wanted": ModelRequest(group="all", digest=b"m" * 32),
    "model": ModelReply(group="all", digest=content_digest(_CONTENT + bytes(8)), content=_CONTENT + bytes(8)),
}


def framed(message: Message, envelope: Envelope = ENVELOPE) -> bytes:
    head, tail = encode(envelope, message)
    return head + bytes(tail)
