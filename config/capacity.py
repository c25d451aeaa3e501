"""What the wire has room for, and which federations would not fit on it.

A peer tells all others which partial models it implements, in one statement, and greets each with the groups that the
two share, in one Hello. Both have to fit into the metadata of a message, whatever ids, addresses and numbers stand
beside the names. So a federation is measured before anything is started, at its worst; in a simulation by matrices
nothing is told, and nothing is measured.

Light on purpose: files are checked by this without torch. The decoder (`fields.py`, `codec.py`) goes by the same
numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from operator import itemgetter

from fedpeer.algorithms.contract import Method
from fedpeer.gossip.claims import STATEMENT_BYTES_MAX, Advert, Claim, claim_bytes
from fedpeer.slicing.models import ModelGraph, ModelMistake, PartialModel

#: Bytes of metadata. Eight claims of peers with ten partial models each, the largest usual message, take half of it;
#: a hostile one of this size stays under 1 MB once unpacked.
METADATA_BYTES_MAX = 4096
#: Elements of one array. The longest real ones are the groups that two peers share and the partial models of one
#: peer; arrays of this size nested as deep as 4 KiB allow stay under 1 MB when unpacked.
ARRAY_MAX = 64
#: Signatures of a leader certificate or a certificate, one of each of a majority's voters.
SIGNATURES_MAX = 1024
#: Letters of ids of peers and of partial models (as `federation.yaml` allows), and of groups, which join two models.
NAME_LETTERS_MAX = 100
GROUP_LETTERS_MAX = 250
#: Letters of an address: as long as a roster takes.
ADDRESS_LETTERS_MAX = 300

#: An id that takes the most bytes.
_ID = "i" * NAME_LETTERS_MAX


def statement_bytes(models: Sequence[str]) -> int:
    """What a peer's statement about itself takes, at most: with the longest id and address."""
    told = Advert(
        address="a" * ADDRESS_LETTERS_MAX,
        roster=0,
        generation=0,
        nonce=0,
        round=0,
        score=0.0,
        begun=True,
        models=tuple(models),
    )
    return claim_bytes(
        Claim(about=_ID, incarnation=1, version=1, state="alive", author=_ID, advert=told, signature=b"")
    )


def hello_bytes(groups: Iterable[str]) -> int:
    """What the metadata of a Hello about these groups takes, at most.

    201 bytes of numbers, digest, capabilities, signature and marks, both ids with the 3 of their lengths, and for each
    group 81 bytes of numbers and digest, and twice its name.
    """
    return 201 + 2 * (len(_ID) + 3) + sum(81 + 2 * (len(group.encode()) + 3) for group in groups)


def crowding(models: Iterable[PartialModel], method: Method) -> ModelMistake | None:
    """Why peers with these partial models, which are in order otherwise, could not talk about them; None if they can.

    Whether two unrelated models have weights between them only a network tells; here all of them do.
    """
    graph = ModelGraph(models)
    for model in graph.models.values():
        if len(model.name) > NAME_LETTERS_MAX or not model.name.isprintable():
            text = f"peers name it to one another, in at most {NAME_LETTERS_MAX} printable letters; take another name"
            return ModelMistake(model.place, text)
    named = {peer for model in graph.models.values() if model.members != "all" for peer in model.members}
    kinds: dict[tuple[str, ...], list[str]] = {}
    for peer in [*sorted(named), "", ""]:  # and any two whom no partial model names
        kinds.setdefault(graph.implemented(peer), []).append(peer or "every peer")
    for own, (who, *_) in kinds.items():
        if len(own) > ARRAY_MAX:
            return _problem(f"{who} implements {len(own)} of them, and can tell the others of {ARRAY_MAX}")
        if (size := statement_bytes(own)) > STATEMENT_BYTES_MAX:
            told = f"{who} implements {len(own)} of them, and may need {size:,} bytes to tell the others"
            return _problem(f"{told} where a statement has {STATEMENT_BYTES_MAX:,}")
    if method.sharing != "partial models":
        return None
    for own, (who, *alike) in kinds.items():
        if _greeting(graph, own, method)[1] <= METADATA_BYTES_MAX:
            continue  # and so is what it shares with anybody
        shared = [set(own) & set(other) for other in kinds if other != own or alike]
        count, size = max((_greeting(graph, both, method) for both in shared), key=itemgetter(1), default=(0, 0))
        if size > METADATA_BYTES_MAX:
            told = f"{who} may share {count} groups with another peer, and need {size:,} bytes to compare them"
            return _problem(f"{told} where a Hello has {METADATA_BYTES_MAX:,}")
    return None


def _problem(text: str) -> ModelMistake:
    return ModelMistake("partial_models", f"{text}; shorten their names, or join some of them into one")


def _greeting(graph: ModelGraph, models: Collection[str], method: Method) -> tuple[int, int]:
    """How many groups two peers may have that both implement these models, and the bytes of their Hello."""
    pairs = combinations(sorted(models), 2) if method.cross_model else ()
    groups = [*models, *("+".join(pair) for pair in pairs if len(graph.reduced(pair)) == 2)]
    return len(groups), hello_bytes(groups)
