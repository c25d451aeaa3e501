"""Message sizes with which traffic is computed, against the encoding of a real share and its acknowledgement."""

from __future__ import annotations

import pytest
import torch

from fedpeer.gossip.averaging import ACK_BYTES, SHARE_HEAD_BYTES
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.wire.codec import encode
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Ack, Transfer
from fedpeer.peer.wire.versions import NEWEST

#: Bytes allowed for longer names and larger numbers.
ROOM = 10


@pytest.mark.parametrize(("one", "other"), [("peer1", "peer2"), ("peer10", "peer16"), ("ann", "bob")])
@pytest.mark.parametrize("times", [1, 1000])
def test_what_is_computed_is_what_the_encoder_makes(one: str, other: str, times: int) -> None:
    round = 30 * times
    envelope = Envelope(
        federation=bytes(16), sender=one, recipient=other, incarnation=1, to_incarnation=1, version=NEWEST
    )
    share = NumberedTransfer(
        seq=54 * times, round=round, exchange=1, weight=0.2, form="float32", payload=torch.zeros(100)
    )
    transfer = Transfer(group="everyone", share=share, total=11.2 * times, signature=bytes(64))
    ack = Ack(group="everyone", taken=54 * times, round=round, total=11.2 * times, signature=bytes(64))
    head, tail = encode(envelope, transfer)
    assert len(tail) == 400
    assert len(head) == pytest.approx(SHARE_HEAD_BYTES, abs=ROOM)
    assert sum(map(len, encode(envelope, ack))) == pytest.approx(ACK_BYTES, abs=ROOM)
