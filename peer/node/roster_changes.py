"""A later roster: how a node takes it over, and what becomes of channels with peers that it revokes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from fedpeer.gossip.proofs import generation_text
from fedpeer.gossip.transfers import Outgoing
from fedpeer.peer.state.consensus_places import consensus_places
from fedpeer.peer.state.entries import Left, Revoked
from fedpeer.peer.state.events import Enrol
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import RosterNews
from fedpeer.peer.wire.roster import Roster, to_bytes
from fedpeer.slicing.models import SlicingError
from fedpeer.topology.graphs import TopologyError


def close_books(state: NodeState, anew: Collection[str] = ()) -> None:
    """Close the channels with revoked peers: open transfers come back, mass that they have is written off by name.

    The same holds for peers that were admitted again with another key: those in `anew` and, if this peer was away
    meanwhile, peers whose stored signature is not by their present key.

    Nobody can know which open transfers a revoked peer has taken, since it is no longer asked. All of them come back,
    so that mass is conserved among the remaining peers; shares that came from it stay, including those that wait.
    """
    durable = state.durable
    known = {p for holding in durable.groups.values() for p in (*holding.out, *holding.into)} | set(durable.met)
    for peer in sorted(p for p in known if p in anew or p not in state.peer_groups.peers or _rekeyed(state, p)):
        before = {group: durable.groups[group] for group in durable.exchanged_with(peer)}
        state.write(Revoked(peer=peer))
        for group, holding in before.items():
            after, channel = durable.groups[group], holding.out.get(peer, Outgoing())
            lost = after.written_off - holding.written_off
            back = channel.weight_until(channel.made) - channel.acked_weight
            had = f"weight {lost:.3g} that it had" if lost >= 0 else f"weight {-lost:.3g} that it gave stays, so less"
            text = f'{peer} is revoked: in "{group}" {had} is written off, and {back:.3g} under way to it comes back'
            state.note("warning", "written_off", text, group=group, peer=peer, lost=lost)


def _rekeyed(state: NodeState, peer: str) -> bool:
    """Return whether this peer was met when it had another key."""
    number, nonce, signature = state.durable.met_as.get(peer, (0, 0, b""))
    if not signature:
        return False
    numbers = state.durable.met[peer], number, nonce
    return not state.verify(peer, generation_text(state.peer_groups.roster.federation_id, peer, *numbers), signature)


def note_gone(state: NodeState, weights: Mapping[str, float]) -> None:
    """Log the weight that is written off in each group that no longer exists."""
    for group, weight in weights.items():
        state.note("warning", "written_off", f'the group "{group}" is gone', group=group, weight=weight)


def adopt_roster(state: NodeState, roster: Roster) -> None:
    """Adopt a later roster: greet new peers, forget revoked ones, and take the groups that follow from it."""
    before, known = set(state.peer_groups.peers), state.peer_groups.roster.by_id
    keys = {peer: entry.key for peer, entry in known.items()}
    anew = {each.id for each in roster.entries if keys.get(each.id, each.key) != each.key and each.id != state.me}
    own = roster.by_id.get(state.me)
    if own is None or own.key != keys[state.me]:  # another key: it was revoked and is invited again, as another process
        state.write(Left())  # the others close their channels with it; if it is admitted again, it joins late
        state.effects.append(Enrol(roster))
        became = "is no longer" if own is None else "has another key"
        state.note("error", "put_out", f"{state.me} {became} in roster {roster.number}")
        state.stop(2, f"{state.me} was revoked by roster {roster.number}{' or an earlier one' if own else ''}")
        return
    try:
        state.goes_by(state.setup.peer_groups_of(roster))
    except (SlicingError, TopologyError) as error:
        # The file's partial models or edges do not fit the remaining peers, which keep their groups under the roster.
        state.note("error", "roster", f"the groups stay as they are: {error}")
        state.peer_groups = replace(state.peer_groups, roster=roster)
    state.membership.set_roster([peer for peer in state.peer_groups.peers if peer not in anew])
    state.membership.set_roster(state.peer_groups.peers)
    close_books(state, anew)
    state.effects.append(Enrol(roster))
    note_gone(state, state.durable.regrouped({g.id: g.index_D for g in state.peer_groups.groups.values()}))
    if state.peer_groups.consensus_by_group or state.durable.consensus_states:
        # The consensus group of a server's clients is there already.
        state.durable.seated(*consensus_places(state.peer_groups, b""))
    state.snapshot()
    gone, new = sorted(before - set(state.peer_groups.peers)), sorted(set(state.peer_groups.peers) - before)
    moved = [each.id for each in roster.entries if each.id in known and each.address != known[each.id].address]
    kinds = {"is new": new, "is revoked": gone, "has another key": sorted(anew), "has another address": sorted(moved)}
    changes = ", ".join(f"{peer} {change}" for change, peers in kinds.items() for peer in peers)
    text = f"roster {roster.number}: {changes or 'the same peers'}"
    state.note("info", "roster", text, number=roster.number)
    for peer in [*gone, *anew]:
        state.others.forget(peer)
    for peer, other in state.others.items():
        other.greet_soon(state.now)
        state.send(peer, RosterNews(number=roster.number, text=to_bytes(roster)))
