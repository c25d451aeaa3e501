"""Handshake of two peers: each sends a Hello with what it remembers of the channels between them, and both compare.

No share is exchanged before each has the other's Hello with the present generations and incarnations. A Hello may be
old, since messages are delayed and overtake one another, so only differences that no delay can cause count. This peer
has lost memory if the other has taken a transfer that this peer does not remember making, or knows of a transfer taken
here that this peer does not remember taking: both are durable before they are sent. Each peer finds its own loss; it
learns of the other's loss from the new incarnation in the next Hello.
"""

from __future__ import annotations

import json

from fedpeer.config.capacity import weights_in_hello
from fedpeer.config.contract import contract_digest, differences, differences_text, group_digest
from fedpeer.gossip.incarnations import INCARNATION_AHEAD_MAX, fence, memory
from fedpeer.gossip.proofs import GenerationProof
from fedpeer.gossip.transfers import Incoming, Outgoing
from fedpeer.peer.node.admission import note_roster
from fedpeer.peer.node.amending import on_signed_contract
from fedpeer.peer.node.reminders import is_its_own, own_signature, remind, unproven_reminder
from fedpeer.peer.state.entries import Acked, Met, Returned
from fedpeer.peer.state.events import MessageReceived
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.json_text import parse_json
from fedpeer.peer.wire.messages import ChannelState, Contract, Hello, RosterNews
from fedpeer.peer.wire.roster import to_bytes
from fedpeer.peer.wire.signed_contract import BEGINNING, contract_bytes
from fedpeer.peer.wire.versions import CAPABILITIES


def greet(state: NodeState) -> None:
    """Send a Hello, when it is due, to each peer with which there is reason to compare memories.

    A peer with another roster or contract is such a peer: its Hello, or what was sent with it, may be lost. A finished
    peer still has what a peer that was away needs, so it is greeted until the two have met and agree on both.
    """
    now = state.now
    for peer, other in state.others.items():
        if other.hello_at > now:  # tested first: it holds for nearly all peers, after each event
            continue
        compare = other.compare and state.membership.status(peer) != "finished"
        reason = compare or not other.met or state.unlike(peer)
        if reason and peer in state.peer_groups.group_peers and not state.others.gone(peer):
            other.greeted(now)
            other.compare = False
            send_hello(state, peer, answer=False)


def send_hello(state: NodeState, peer: str, *, answer: bool) -> None:
    """Send a peer a Hello: what this peer is, and what it remembers of the channels between the two."""
    durable, setup = state.durable, state.setup
    shared = [group for group in state.peer_groups.groups.values() if peer in group.members]
    together = [*(group.id for group in shared), *_shared_consensus_groups(state, peer)]
    channels = []
    for group in shared:
        holding = durable.groups[group.id]
        own = memory(holding.out.get(peer, Outgoing()), holding.into.get(peer, Incoming()))
        channels.append(
            ChannelState(
                group=group.id,
                made=own.made,
                acked=own.acked,
                taken=own.taken,
                made_weight=own.made_weight,
                taken_weight=own.taken_weight,
            )
        )
    weights = {g.id: weight for g in shared if (weight := durable.groups[g.id].before.get(peer, 0.0)) > 0}
    before = weights_in_hello(together, weights)
    state.others[peer].unstated = weights.keys() - before.keys()
    state.send(
        peer,
        Hello(
            generation=durable.generation,
            nonce=setup.nonce,
            known_generation=_known_generation(state, peer),
            contract=setup.contract,
            groups=tuple((group, state.digest_of(group)) for group in together),
            channels=tuple(channels),
            round=durable.round,
            begun=durable.round > 0,
            roster=state.peer_groups.roster.number,
            answer=answer,
            left=durable.left,
            capabilities=CAPABILITIES,
            signature=own_signature(state) if state.others.version_of(peer) > 1 else b"",
            before=tuple(sorted(before.items())),
        ),
    )


def _known_generation(state: NodeState, peer: str) -> int:
    """Return the generation of a peer that a Hello to it states; 0: none.

    A peer that has to be reminded of an earlier start is sent a later number, so that it does not go on before it has
    seen the proof; without a proof it is sent 0.
    """
    other = state.others[peer]
    if other.reminded:
        return other.generation + 1 if state.durable.met_as.get(peer, (0, 0, b""))[2] else 0
    return other.generation


def on_hello(state: NodeState, received: MessageReceived, hello: Hello) -> bool:
    """Compare a Hello with what this peer remembers; return whether the two have met by it."""
    if _refuses(state, received, hello):
        return False
    _note_process(state, received, hello)
    peer, other = received.sender, state.others[received.sender]
    other.knows_us = other.knows_us or hello.known_generation == state.durable.generation
    other.seen_in(hello.round, state.now)
    other.begun, other.capabilities = hello.begun, frozenset(hello.capabilities)
    note_roster(state, peer, received.incarnation, hello)
    _agree(state, peer, hello)
    other.giving |= {channel.group for channel in hello.channels if channel.made}
    met = other.met
    if received.to_incarnation == state.durable.incarnation:
        _note_taken(state, peer, hello)
        other.before = dict(hello.before)
        other.met = not hello.left
        if hello.left:
            _take_back(state, peer, hello)
            return False
    if not hello.answer or not other.met or other.shown:
        # An answer that does not name our incarnation yet is answered, too; the next one names it, so this ends. The
        # same holds for the first answer to a Hello that named the other's incarnation before the other's Hello came.
        other.shown = 0 if other.met else other.shown
        send_hello(state, peer, answer=hello.answer or other.met)
    if hello.roster < state.peer_groups.roster.number:
        news = state.peer_groups.roster
        state.send(peer, RosterNews(number=news.number, text=to_bytes(news)))
    if other.met and not met:
        state.note("info", "met", f"met {peer}", peer=peer)
    return other.met and not met


def _refuses(state: NodeState, received: MessageReceived, hello: Hello) -> bool:
    """Refuse a Hello that another peer, an earlier process or an earlier incarnation has made; return whether it is."""
    peer, durable, other = received.sender, state.durable, state.others[received.sender]
    known = durable.met.get(peer, 0)
    if received.to_incarnation > durable.incarnation + INCARNATION_AHEAD_MAX:
        state.refuse("incarnation_jump", peer, f"incarnation {received.to_incarnation} of this peer is too far ahead")
        return True
    if not is_its_own(state, received, hello):
        state.refuse("bad_signature", peer, "its generation and incarnation are not signed by it")
        return True
    remind(state, received, hello)
    if (hello.generation, hello.nonce) < (other.generation, other.nonce):
        state.refuse("duplicate_peer", peer, f"generation {hello.generation}, but {other.generation} is known")
        send_hello(state, peer, answer=True)
        return True
    if known and (code := fence(received.incarnation, known)) is not None:
        state.refuse(code, peer, f"incarnation {received.incarnation}, but {known} is known")
        send_hello(state, peer, answer=True)
        return True
    if (more := unproven_reminder(state, received, hello)) is not None:
        state.refuse("unproven", peer, more)  # until it shows our own signature, the two have not met
        return True
    return False


def _note_process(state: NodeState, received: MessageReceived, hello: Hello) -> None:
    """Note the process and the incarnation that a peer states in a Hello; a new incarnation is made durable."""
    peer, other, known = received.sender, state.others[received.sender], state.durable.met.get(received.sender, 0)
    if (hello.generation, hello.nonce) > (other.generation, other.nonce):
        other.met, other.generation, other.nonce = False, hello.generation, hello.nonce
    if hello.signature:
        other.proof = GenerationProof(
            incarnation=received.incarnation, generation=hello.generation, nonce=hello.nonce, signature=hello.signature
        )
    if received.incarnation > known:
        if known:
            state.note("warning", "reborn_neighbour", f"{peer} lost its memory and has a new incarnation", peer=peer)
        state.write(
            Met(
                peer=peer,
                incarnation=received.incarnation,
                generation=hello.generation,
                nonce=hello.nonce,
                signature=hello.signature,
            )
        )
        other.reminded = False


def _note_taken(state: NodeState, peer: str, hello: Hello) -> None:
    """Close the transfers that a peer has taken, by its Hello."""
    for channel in hello.channels:
        holding = state.durable.groups.get(channel.group)
        if holding and peer in holding.out and channel.taken > holding.out[peer].acked:
            state.write(Acked(group=channel.group, peer=peer, taken=channel.taken))


def _shared_consensus_groups(state: NodeState, peer: str) -> tuple[str, ...]:
    """Return the ids of the consensus groups that this peer shares with `peer`, in the plan's order."""
    return tuple(id for id, consensus in state.peer_groups.consensus_by_group.items() if peer in consensus.members)


def _take_back(state: NodeState, peer: str, hello: Hello) -> None:
    """Take back the transfers under way to a peer that has left; what it has taken is final."""
    for channel in hello.channels:
        holding = state.durable.groups.get(channel.group)
        if holding and peer in holding.out and holding.out[peer].open:
            state.write(Returned(group=channel.group, peer=peer))
    state.others.changed()


def _agree(state: NodeState, peer: str, hello: Hello) -> None:
    """Note the groups in which the two may average; send our contracts if they differ, else report differing groups."""
    other = state.others[peer]
    other.announced = hello.contract, dict(hello.groups)
    mine = _together(state, peer)
    other.agreed = {group for group in mine if _agreed(state, peer, group)}
    signed, held = state.contracts.signed, state.setup.held
    if signed is not None and hello.contract != contract_digest(signed.text):
        state.send(peer, Contract(text=contract_bytes(signed)))
    if hello.contract != state.setup.contract:
        if signed is None or signed.text != held.text:
            state.send(peer, Contract(text=held.text))
        return
    theirs = set(other.announced[1])
    if other.agreed == mine == theirs or other.differs == hello.contract:
        return
    other.differs = hello.contract
    for id in sorted(mine ^ theirs | mine - other.agreed):
        there = "differs there" if id in theirs and id in mine else f"is known to {'it' if id in theirs else 'us'} only"
        state.refuse(
            "plan_mismatch", peer, f'the group "{id}" {there}; compare partial_models and the networks', group=id
        )


def _together(state: NodeState, peer: str) -> set[str]:
    """Return the ids of the groups and consensus groups that this peer shares with `peer`."""
    exchanged = {id for id, group in state.peer_groups.groups.items() if peer in group.members}
    return exchanged.union(_shared_consensus_groups(state, peer))


def _agreed(state: NodeState, peer: str, group: str) -> bool:
    """Return whether the two see the same scalars in a group, under contracts that agree about it."""
    other = state.others[peer]
    contract, groups = other.announced
    if groups.get(group) != state.digest_under(contract, group):
        return False
    if contract == state.setup.contract:
        return True
    if contract_digest(other.contract) != contract:
        return False
    theirs, mine = parse_json(other.contract), json.loads(state.setup.held.text)
    has_server = state.setup.has_server
    return group_digest(theirs, group, has_server=has_server) == group_digest(mine, group, has_server=has_server)


def on_contract(state: NodeState, peer: str, contract: Contract) -> None:
    """Compare a peer's contract with ours: report all differences, and average in the groups where they agree."""
    other, mine, text = state.others[peer], state.setup.held.text, contract.text
    if text.startswith(BEGINNING):
        signed = on_signed_contract(state, peer, text)
        if signed is None or contract_digest(signed.text) != other.announced[0]:
            return
        text = signed.text
    if text == mine:
        return
    try:
        theirs = parse_json(text)
        if not isinstance(theirs, dict):
            raise ValueError("it is not a mapping")
    except ValueError as error:
        state.refuse("bad_metadata", peer, f"its contract cannot be read: {error}")
        return
    digest, other.contract = contract_digest(text), text
    other.agreed = {group for group in _together(state, peer) if _agreed(state, peer, group)}
    state.others.changed()
    if other.differs != digest:
        other.differs = digest
        state.refuse(
            "plan_mismatch",
            peer,
            f"the federation files differ: {differences_text(differences(json.loads(mine), theirs))}",
        )
