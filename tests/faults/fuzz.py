"""Messages with bytes flipped, cut out, doubled and put in: each is a valid message or a named rejection.

The messages are the recorded ones and, for each seed, one of every kind in every version, drawn from its declaration.
"""

from __future__ import annotations

import numpy as np

from fedpeer.algorithms.draws import Draws
from fedpeer.peer.wire.codec import decode
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection
from tests.peer.examples import SPOKEN, frame
from tests.peer.frames import MESSAGES, POLICY, framed

#: Messages per seed.
EACH = 1000


def fuzzed(seed: int) -> None:
    """P10: For any bytes the decoder returns a message or a rejection that the table lists."""
    draws = Draws(seed).numpy("fuzz")
    frames = [framed(message) for message in MESSAGES.values()]
    frames += [frame(kind, version, draws) for version, kind in SPOKEN]
    for _ in range(EACH):
        data = spoilt(bytearray(frames[draws.integers(len(frames))]), draws)
        found = decode(data, POLICY)
        assert not isinstance(found, Rejection) or found.code in REJECTIONS, f"{found} for {data.hex()}"


def spoilt(data: bytearray, draws: np.random.Generator) -> bytes:
    """Return the data with up to four changes, most of them in the first bytes, where the structure is."""
    for _ in range(draws.integers(1, 5)):
        at = int(min(draws.exponential(60), max(len(data) - 1, 0)))
        match draws.integers(5):
            case 0 if data:
                data[at] ^= 1 << int(draws.integers(8))
            case 1 if data:
                data[at] = int(draws.choice([0, 1, 0x7F, 0x80, 0xC1, 0xDD, 0xDF, 0xFF]))
            case 2:
                del data[at : at + int(draws.integers(1, 9))]
            case 3:
                data[at:at] = data[at : at + int(draws.integers(1, 30))]
            case _:
                data[at:at] = draws.bytes(int(draws.integers(1, 9)))
    return bytes(data)
