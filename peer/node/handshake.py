"""How two peers meet: each says Hello with what it remembers of the lanes between them, and both compare.

Nothing is exchanged before each has the other's Hello with the lives and incarnations that hold now. What is compared
can be old, since messages are delayed and overtaken; so only that counts which no delay can cause: if the other has
taken a transfer that I do not remember making, or knows that I took one that I do not remember taking, then it was I
who lost memory, since both are made durable before they are said. Each finds its own loss; the other's it learns from
the new incarnation in the next Hello.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

from fedpeer.config.contract import contract_digest, differences, differences_text, part
from fedpeer.gossip.incarnations import INCARNATION_AHEAD_MAX, fence, memory
from fedpeer.gossip.proofs import LifeProof, life_text
from fedpeer.gossip.transfers import Incoming, Outgoing
from fedpeer.peer.consensus.voting import read_news
from fedpeer.peer.node.admission import note_roster
from fedpeer.peer.node.amending import hear_signed, tell_signed
from fedpeer.peer.node.reminders import is_its_own, own_signature, remind, unproven_reminder
from fedpeer.peer.state.entries import Acked, Left, Met, Returned, Revoked
from fedpeer.peer.state.events import Enrol, Heard, Stop
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.state.seats import consensus_places
from fedpeer.peer.wire.json_text import parse_json
from fedpeer.peer.wire.messages import Contract, Hello, LaneState, RosterNews
from fedpeer.peer.wire.roster import Roster, to_bytes
from fedpeer.peer.wire.signed_contract import BEGINNING
from fedpeer.peer.wire.versions import CAPABILITIES
from fedpeer.slicing.models import SlicingError
from fedpeer.topology.graphs import TopologyError


def greet(life: NodeState) -> None:
    """Say Hello to all with whom there is reason to compare, each in its time.

    Who has finished still has what a peer needs that was away; one that was met has nothing more to compare.
    """
    for peer, other in life.others.items():
        due = (other.compare or not other.met) and other.hello_at <= life.now and peer in life.circle.mates
        gone = ("dead", "left", "finished") if other.met else ("dead", "left")
        if due and life.membership.standing(peer) not in gone:
            other.greeted(life.now)
            other.compare = False
            say_hello(life, peer, answer=False)


def say_hello(life: NodeState, peer: str, *, answer: bool) -> None:
    """What this peer is, and what it remembers of its lanes with that one."""
    ledger, setup = life.ledger, life.setup
    shared = [group for group in life.circle.groups.values() if peer in group.members]
    together = [*(group.id for group in shared), *_councils(life, peer)]
    lanes = []
    for group in shared:
        holding = ledger.groups[group.id]
        own = memory(holding.out.get(peer, Outgoing()), holding.into.get(peer, Incoming()))
        lanes.append(
            LaneState(
                group=group.id,
                made=own.made,
                acked=own.acked,
                taken=own.taken,
                made_weight=own.made_weight,
                taken_weight=own.taken_weight,
            )
        )
    life.send(
        peer,
        Hello(
            life=ledger.life,
            nonce=setup.nonce,
            known_life=_known_life(life, peer),
            contract=setup.contract,
            groups=tuple((group, life.digest_of(group)) for group in together),
            lanes=tuple(lanes),
            round=ledger.round,
            begun=ledger.round > 0,
            roster=life.circle.roster.number,
            answer=answer,
            left=ledger.left,
            capabilities=CAPABILITIES,
            signature=own_signature(life) if life.version_of(peer) > 1 else b"",
            before=tuple((g.id, weight) for g in shared if (weight := ledger.groups[g.id].before.get(peer, 0.0)) > 0),
        ),
    )


def _known_life(life: NodeState, peer: str) -> int:
    """Return the life to tell that peer as its own.

    One that has to be reminded of an earlier life is told a later number, so that it does not go on before it has seen
    what shows that; and none where nothing does."""
    other = life.others[peer]
    if other.reminded:
        return other.life + 1 if life.ledger.met_as[peer][2] else 0
    return other.life


def hear_hello(life: NodeState, heard: Heard, hello: Hello) -> bool:
    """Compare; whether the two have met now."""
    peer, ledger = heard.sender, life.ledger
    other = life.others[peer]
    known = ledger.met.get(peer, 0)
    if heard.to_incarnation > ledger.incarnation + INCARNATION_AHEAD_MAX:
        life.refuse("incarnation_jump", peer, f"incarnation {heard.to_incarnation} of this peer")
        return False
    if not is_its_own(life, heard, hello):
        life.refuse("bad_signature", peer, "its life and incarnation are signed by somebody else")
        return False
    remind(life, heard, hello)
    if (hello.life, hello.nonce) < (other.life, other.nonce):
        life.refuse("duplicate_peer", peer, f"life {hello.life} is over, life {other.life} is known")
        say_hello(life, peer, answer=True)
        return False
    if known and (code := fence(heard.incarnation, known)) is not None:
        life.refuse(code, peer, f"incarnation {heard.incarnation}, and {known} is known")
        say_hello(life, peer, answer=True)
        return False
    if (more := unproven_reminder(life, heard, hello)) is not None:
        life.refuse("unproven", peer, more)  # until it shows our own signature, the two have not met
        return False
    if (hello.life, hello.nonce) > (other.life, other.nonce):
        other.met, other.life, other.nonce = False, hello.life, hello.nonce
    if hello.signature:
        other.proof = LifeProof(
            incarnation=heard.incarnation, life=hello.life, nonce=hello.nonce, signature=hello.signature
        )
    if heard.incarnation > known:
        if known:
            life.note("warning", "reborn_neighbour", f"{peer} lost memory and is new", peer=peer)
        life.write(
            Met(
                peer=peer,
                incarnation=heard.incarnation,
                life=hello.life,
                nonce=hello.nonce,
                signature=hello.signature,
            )
        )
        other.reminded = False
    other.knows_us = other.knows_us or hello.known_life == ledger.life
    other.seen_in(hello.round, life.now)
    other.begun, other.capabilities = hello.begun, frozenset(hello.capabilities)
    note_roster(life, peer, heard.incarnation, hello)
    _agree(life, peer, hello)
    other.giving |= {lane.group for lane in hello.lanes if lane.made}
    met = other.met
    if heard.to_incarnation == ledger.incarnation:
        for lane in hello.lanes:
            holding = ledger.groups.get(lane.group)
            if holding and peer in holding.out and lane.taken > holding.out[peer].acked:
                life.write(Acked(group=lane.group, peer=peer, taken=lane.taken))
        other.before = dict(hello.before)
        other.met = not hello.left
    if hello.left and heard.to_incarnation == ledger.incarnation:
        _take_back(life, peer, hello)
        return False
    if not hello.answer or not other.met or other.shown:
        # An answer that does not name our incarnation yet is answered too; it then does, so this ends. So is the first
        # one to a Hello that named the other's incarnation before this peer had heard a Hello of it.
        other.shown = 0 if other.met else other.shown
        say_hello(life, peer, answer=hello.answer or other.met)
    if hello.roster < life.circle.roster.number:
        news = life.circle.roster
        life.send(peer, RosterNews(number=news.number, text=to_bytes(news)))
    if other.met and not met:
        life.note("info", "met", f"met {peer}", peer=peer)
    return other.met and not met


def _councils(life: NodeState, peer: str) -> set[str]:
    """In which both are."""
    return {id for id, council in life.circle.councils.items() if peer in council.members}


def _take_back(life: NodeState, peer: str, hello: Hello) -> None:
    """It has left, and said for good what it has taken: what is still under way to it stays here."""
    for lane in hello.lanes:
        holding = life.ledger.groups.get(lane.group)
        if holding and peer in holding.out and holding.out[peer].open:
            life.write(Returned(group=lane.group, peer=peer))
    life.changed()


def _agree(life: NodeState, peer: str, hello: Hello) -> None:
    """In which groups the two may average; where their contracts differ, each tells the other its own, once."""
    other = life.others[peer]
    other.said = hello.contract, dict(hello.groups)
    mine = _together(life, peer)
    other.agreed = {group for group in mine if _agreed(life, peer, group)}
    if life.signed is not None and hello.contract != contract_digest(life.signed.text):
        tell_signed(life, peer)
    if hello.contract != life.setup.contract:
        _tell_contract(life, peer)
        return
    theirs = set(other.said[1])
    if other.agreed == mine == theirs or other.differs == hello.contract:
        return
    other.differs = hello.contract
    for id in sorted(mine ^ theirs | mine - other.agreed):
        there = "differs there" if id in theirs and id in mine else f"is known to {'it' if id in theirs else 'us'} only"
        life.refuse(
            "plan_mismatch", peer, f'the group "{id}" {there}; compare partial_models and the networks', group=id
        )


def _together(life: NodeState, peer: str) -> set[str]:
    """Groups and councils in which both are."""
    return {id for id, group in life.circle.groups.items() if peer in group.members} | _councils(life, peer)


def _agreed(life: NodeState, peer: str, group: str) -> bool:
    """Whether the two see the same scalars in a group, under contracts that say the same about it."""
    other = life.others[peer]
    contract, groups = other.said
    if groups.get(group) != life.digest_under(contract, group):
        return False
    if contract == life.setup.contract:
        return True
    served = life.setup.part == "client"
    return contract_digest(other.contract) == contract and part(
        parse_json(other.contract), group, served=served
    ) == part(json.loads(life.setup.held.text), group, served=served)


def _tell_contract(life: NodeState, peer: str) -> None:
    """By which contract this peer goes, to every process of another once."""
    other = life.others[peer]
    if other.told != (other.life, other.nonce):
        other.told = other.life, other.nonce
        life.send(peer, Contract(text=life.setup.held.text))


def hear_contract(life: NodeState, peer: str, contract: Contract) -> None:
    """Name all differences between the two contracts, and average where they say the same."""
    other, mine, text = life.others[peer], life.setup.held.text, contract.text
    if text.startswith(BEGINNING):
        signed = hear_signed(life, peer, text)
        if signed is None or contract_digest(signed.text) != other.said[0]:
            return
        text = signed.text
    if text == mine:
        return
    try:
        theirs = parse_json(text)
        if not isinstance(theirs, dict):
            raise ValueError("it is no mapping")
    except ValueError as error:
        life.refuse("bad_metadata", peer, f"its contract cannot be read: {error}")
        return
    digest = contract_digest(text)
    _tell_contract(life, peer)
    if digest == other.said[0]:
        other.contract = text
        other.agreed = {group for group in _together(life, peer) if _agreed(life, peer, group)}
        life.changed()
    if other.differs != digest:
        other.differs = digest
        life.refuse(
            "plan_mismatch",
            peer,
            f"the federation files differ: {differences_text(differences(json.loads(mine), theirs))}",
        )


def hear_roster(life: NodeState, peer: str, news: RosterNews) -> Roster | None:
    """The roster, if it is a later one by the same authority.

    Who passes on another authority's, or one of another number than it said, pays for it: whoever goes by a roster has
    checked it.
    """
    return read_news(life, peer, news) if news.number > life.circle.roster.number else None


def close_books(life: NodeState, anew: Collection[str] = ()) -> None:
    """With whoever is not in the roster any more: what is open to it comes back, what it has is written off by name.

    So with whoever came in again with another key: those in `anew`, and those whose signature of when they were met is
    not by the key that they have now, where this peer was away meanwhile.

    Nobody can know what of the open transfers it has taken, since it is not asked any more. They come back whole, so
    that mass is conserved among those who stay; what came from it was taken, and stays, with what of it still waits.
    """
    ledger = life.ledger
    known = {p for holding in ledger.groups.values() for p in (*holding.out, *holding.into)} | set(ledger.met)
    for peer in sorted(p for p in known if p in anew or p not in life.circle.peers or _rekeyed(life, p)):
        before = {group: ledger.groups[group] for group in ledger.exchanged_with(peer)}
        life.write(Revoked(peer=peer))
        for group, holding in before.items():
            after, lane = ledger.groups[group], holding.out.get(peer, Outgoing())
            lost = after.written_off - holding.written_off
            back = lane.weight_until(lane.made) - lane.acked_weight
            had = (
                f"{lost:.3g} of weight that it had"
                if lost >= 0
                else f"{-lost:.3g} of weight that it gave stays, so less"
            )
            text = f'{peer} is put out: in "{group}" {had} is written off, and {back:.3g} under way to it comes back'
            life.note("warning", "written_off", text, group=group, peer=peer, lost=lost)


def _rekeyed(life: NodeState, peer: str) -> bool:
    """Whether this peer was met when it had another key."""
    number, nonce, signature = life.ledger.met_as.get(peer, (0, 0, b""))
    if not signature:
        return False
    numbers = life.ledger.met[peer], number, nonce
    return not life.verify(peer, life_text(life.circle.roster.federation_id, peer, *numbers), signature)


def adopt_roster(life: NodeState, roster: Roster) -> None:
    """Go by a later roster: who is new is greeted, who is gone is not spoken to, and the groups are what it says."""
    before, keys = set(life.circle.peers), {entry.id: entry.key for entry in life.circle.roster.entries}
    anew = {each.id for each in roster.entries if keys.get(each.id, each.key) != each.key and each.id != life.me}
    if life.me not in roster.by_id:
        life.write(Left())  # the others close their books with it; should it be let in again, it comes late
        life.effects.append(Enrol(roster))
        life.phase = "stopped"
        life.note("error", "put_out", f"{life.me} is not in roster {roster.number} any more")
        life.effects.append(Stop(2, f"{life.me} was put out of the federation by roster {roster.number}"))
        return
    try:
        life.goes_by(life.setup.circle_of(roster))
    except (SlicingError, TopologyError) as error:
        # The file's partial models or edges do not fit who is left: those who are go on as they were, by the new list.
        life.note("error", "roster", f"the groups stay as they were: {error}")
        life.circle = replace(life.circle, roster=roster)
    life.digests.clear()
    life.membership.set_roster([peer for peer in life.circle.peers if peer not in anew])
    life.membership.set_roster(life.circle.peers)
    close_books(life, anew)
    life.effects.append(Enrol(roster))
    for group, weight in life.ledger.regrouped({g.id: g.index_D for g in life.circle.groups.values()}).items():
        life.note("warning", "written_off", f'the group "{group}" is gone', group=group, weight=weight)
    if life.circle.councils or life.ledger.chambers:
        life.ledger.seated(*consensus_places(life.circle, b""))  # the council of a server's clients is there already
    life.snapshot()
    gone, new = sorted(before - set(life.circle.peers)), sorted(set(life.circle.peers) - before)
    said = [*(f"{peer} is new" for peer in new), *(f"{peer} is put out" for peer in gone)]
    life.note("info", "roster", f"roster {roster.number}: {', '.join(said) or 'other addresses'}", number=roster.number)
    for peer in [*gone, *anew]:
        life.others.pop(peer, None)
        life.standing.pop(peer, None)
    for peer, other in life.others.items():
        other.greet_soon(life.now)
        life.send(peer, RosterNews(number=roster.number, text=to_bytes(roster)))
