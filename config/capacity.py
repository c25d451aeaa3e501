"""Limits of the messages' metadata, and the check whether a federation fits them.

A peer announces to all others which partial models it implements, in one statement, and sends to each the groups that
the two share, in one Hello. Both have to fit into the metadata of a message, whatever ids, addresses and numbers
accompany the names. So the worst case of a federation is measured before anything is started. The vector engine sends
no messages, so nothing is measured for it.

Imports no torch, because files are checked without it. The decoder (`wire_types.py`, `codec.py`) uses the same limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from operator import itemgetter

from fedpeer.algorithms.contract import Method
from fedpeer.gossip.claims import STATEMENT_BYTES_MAX, Advert, Claim, claim_bytes
from fedpeer.slicing.models import ModelGraph, ModelMistake, PartialModel

#: Bytes of metadata. The largest usual message, eight claims of peers with ten partial models each, takes half of it;
#: a hostile message of this size stays under 1 MB when decoded.
METADATA_BYTES_MAX = 4096
#: Elements of one array. The longest real arrays are the groups that two peers share and the partial models of one
#: peer; arrays of this size nested as deep as 4 KiB allow stay under 1 MB when decoded.
ARRAY_MAX = 64
#: Signatures of a certificate (a leader's or another): one from each voter of a majority.
SIGNATURES_MAX = 1024
#: Characters of ids of peers and partial models (the limit of `federation.yaml`), and of groups, which join two models.
NAME_LETTERS_MAX = 100
GROUP_LETTERS_MAX = 250
#: Characters of an address (the limit of a roster).
ADDRESS_LETTERS_MAX = 300

#: The id that takes the most bytes.
_ID = "i" * NAME_LETTERS_MAX


def statement_bytes(models: Sequence[str]) -> int:
    """Return the most bytes that a peer's statement about itself takes: with the longest id and address."""
    advert = Advert(
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
        Claim(about=_ID, incarnation=1, version=1, state="alive", author=_ID, advert=advert, signature=b"")
    )


def hello_bytes(groups: Iterable[str]) -> int:
    """Return the most bytes that the metadata of a Hello about these groups takes.

    These are 217 bytes of numbers, digest, capabilities, signature and marks; both ids with 3 bytes of length each; and
    for each group 81 bytes of numbers and digest, and twice its name. Weights from earlier incarnations are not
    counted: a Hello has as many of them as it has room for.
    """
    return 217 + 2 * (len(_ID) + 3) + sum(81 + 2 * (len(group.encode()) + 3) for group in groups)


def weights_in_hello(groups: Iterable[str], weights: Mapping[str, float]) -> Mapping[str, float]:
    """Return the largest weights, by group: as many as a Hello about these groups has room for.

    Each takes 13 bytes and its group's name; their array takes 2 more than if it is empty.
    """
    room, found = METADATA_BYTES_MAX - hello_bytes(groups) - 2, {}
    for group, weight in sorted(weights.items(), key=lambda each: (-each[1], each[0])):
        room -= 13 + len(group.encode())
        if room < 0:
            break
        found[group] = weight
    return found


def capacity_problem(models: Iterable[PartialModel], method: Method) -> ModelMistake | None:
    """Return why the messages of peers with these otherwise valid partial models would be too large; None if they fit.

    Whether two unrelated models have weights between them depends on the network; here every two of them do.
    """
    graph = ModelGraph(models)
    for model in graph.models.values():
        if len(model.name) > NAME_LETTERS_MAX or not model.name.isprintable():
            text = f"peers send this name to one another; use at most {NAME_LETTERS_MAX} printable characters"
            return ModelMistake(model.place, text)
    named = {peer for model in graph.models.values() if model.members != "all" for peer in model.members}
    kinds: dict[tuple[str, ...], list[str]] = {}
    for peer in [*sorted(named), "", ""]:  # "": a peer that no partial model names; there may be two of them
        kinds.setdefault(graph.implemented(peer), []).append(peer or "every peer")
    for own, (who, *_) in kinds.items():
        if len(own) > ARRAY_MAX:
            return _problem(f"{who} implements {len(own)} of them, and a message has room for {ARRAY_MAX}")
        if (size := statement_bytes(own)) > STATEMENT_BYTES_MAX:
            needs = f"{who} implements {len(own)} of them, whose names may take {size:,} bytes"
            return _problem(f"{needs} in a statement of at most {STATEMENT_BYTES_MAX:,}")
    if method.sharing != "partial models":
        return None
    for own, (who, *same) in kinds.items():
        if _greeting(graph, own, method)[1] <= METADATA_BYTES_MAX:
            continue  # what it shares with another peer is smaller still
        shared = [set(own) & set(other) for other in kinds if other != own or same]
        count, size = max((_greeting(graph, both, method) for both in shared), key=itemgetter(1), default=(0, 0))
        if size > METADATA_BYTES_MAX:
            needs = f"{who} may share {count} groups with another peer, which take {size:,} bytes"
            return _problem(f"{needs} in a Hello of at most {METADATA_BYTES_MAX:,}")
    return None


def _problem(text: str) -> ModelMistake:
    return ModelMistake("partial_models", f"{text}; shorten the models' names, or merge some of them")


def _greeting(graph: ModelGraph, models: Collection[str], method: Method) -> tuple[int, int]:
    """Return how many groups two peers that both implement these models may share, and the bytes of their Hello."""
    pairs = combinations(sorted(models), 2) if method.cross_model else ()
    groups = [*models, *("+".join(pair) for pair in pairs if len(graph.reduced(pair)) == 2)]
    return len(groups), hello_bytes(groups)
