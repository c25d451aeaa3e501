"""Change of a running peer to the next contract that its authority signed.

A peer receives a contract as it does a roster: from any peer, since it carries its own proof. The peer stores it and
passes it on. When the contract is due, the peer saves its whole state under it, and its process starts again on that
state, as after any stop: transfers under way stay as they are and are repeated until acknowledged, and no mass is
touched.

When a contract is due:

- synchronous peers that average by themselves: when they begin the round from which it holds, or the next one if they
  are past it;
- asynchronous or finished peers: at once;
- late joiners: when the others are past that round;
- members of consensus groups: when they are in that round or see that others are, but not during a training. Peers
  that have changed do not exchange messages with peers that have not, so a peer that waited for the end of a round
  might wait forever. An earlier training counts for the round for which it was done.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from torch import Tensor

from fedpeer.config.contract import HeldContract, differences, differences_text
from fedpeer.peer.node.skew import furthest
from fedpeer.peer.state.events import Amend, Persist
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import Contract
from fedpeer.peer.wire.roster import RosterError
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes, contract_from


def on_signed_contract(state: NodeState, peer: str, text: bytes) -> SignedContract | None:
    """Return the signed contract that a peer passes on, and adopt it if it is later; None if it is rejected."""
    try:
        signed = contract_from(text, state.peer_groups.roster.authority)
    except RosterError as error:
        state.refuse(error.code, peer, str(error))
        return None
    take_over(state, signed)
    return signed


def take_over(state: NodeState, signed: SignedContract) -> None:
    """Store a contract that is later than all that are known, and pass it on; its signature was checked."""
    if signed.number <= state.contracts.number or signed.number in state.contracts.unfit or not _fits(state, signed):
        return
    state.contracts.signed = signed
    state.effects.append(Amend(signed))
    changes = differences_text(differences(json.loads(state.setup.held.text), json.loads(signed.text)), "now", "then")
    text = f"contract {signed.number} takes effect in round {signed.starts}: {changes}"
    state.note("info", "contract", text, number=signed.number, starts=signed.starts)
    for peer, other in state.others.items():
        if other.met:
            state.send(peer, Contract(text=contract_bytes(signed)))


def look_at_found(state: NodeState) -> None:
    """Leave the signed contract that was found at the start aside if this peer cannot change to it."""
    signed = state.contracts.signed
    if signed is not None and signed.number > state.setup.held.number and not _fits(state, signed):
        state.contracts.signed = None


def _fits(state: NodeState, signed: SignedContract) -> bool:
    """Return whether this peer can change to a contract; if not, log why."""
    reason = state.setup.unfit(signed.text, state.peer_groups.roster)
    if reason:
        state.contracts.unfit.add(signed.number)
        state.note("error", "contract", f"this peer cannot change to contract {signed.number}: {reason}")
    return not reason


def goes_over(state: NodeState) -> bool:
    """Stop this process to start again under the next contract, if that is due; return whether it stopped."""
    signed, held = state.contracts.signed, state.setup.held
    if signed is None or signed.number <= held.number:
        return False
    round = state.durable.round
    if state.phase in ("gathering", "joining") or state.peer_groups.consensus_by_group:
        round = max(round, furthest(state))
    if state.synchronous and state.phase != "finished" and round < signed.starts:
        return False
    after = HeldContract(signed.number, signed.text, held.file, before=held.text)
    state.effects.append(Persist("snapshot", state.durable.copy(), after))
    state.note("info", "contract", f"changes to contract {signed.number} in round {state.durable.round}")
    state.stop(0, f"changes to contract {signed.number}", again=True)
    return True


def gone_over(state: NodeState, models: Callable[[], tuple[Tensor, Tensor | None]]) -> None:
    """Save the state under the contract to which the last process changed, if it did.

    Also make up for the evaluation of the round before: the process that ended had no time for it.

    Args:
        models: returns the models (n,) to evaluate, as for an `Evaluate`.
    """
    held, durable = state.setup.held, state.durable
    if held.before:
        done, before = durable.round - 1, json.loads(held.before)["learning"]
        late = before["rounds"] - before.get("evaluate_last", 1) < done < before["rounds"]
        if done > 0 and not durable.trained and (late or done % before["evaluate_every"] == 0):
            state.evaluate(done, *models())
        changes = differences_text(differences(json.loads(held.before), json.loads(held.text)), "before", "now")
        state.note("info", "contract", f"contract {held.number} is in force: {changes}", number=held.number)
        state.snapshot()
