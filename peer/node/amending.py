"""How a running peer goes over to the next contract that its authority signed.

It hears of it as of a roster: from anybody, since it carries its own proof; keeps it, and passes it on. In its time it
saves its whole state under the new contract, and its process begins anew on that state, as it would after any stop: so
whatever is under way stays as it is, is repeated until it is acknowledged, and no mass is touched.

In time means: equals who keep step when they begin the round from which it holds, or the next one if they are past it;
who keeps no step, or has finished, at once; and who comes late, when the others are past it. Members of consensus
groups when they are in that round or see that others are, but not in the middle of a training: those who have gone over
do not speak with those who have not, so who waited for the end of a round might wait for ever. What was trained before
counts for the round for which it was trained.
"""

from __future__ import annotations

import json

from fedpeer.config.contract import HeldContract, differences, differences_text
from fedpeer.peer.node.skew import furthest
from fedpeer.peer.state.events import Amend, Evaluate, Persist
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import Contract
from fedpeer.peer.wire.roster import RosterError
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes, contract_from


def on_signed_contract(state: NodeState, peer: str, text: bytes) -> SignedContract | None:
    """The signed contract that somebody passes on, taken if it is a later one; None where it is refused."""
    try:
        signed = contract_from(text, state.peer_groups.roster.authority)
    except RosterError as error:
        state.refuse(error.code, peer, str(error))
        return None
    take_over(state, signed)
    return signed


def take_over(state: NodeState, signed: SignedContract) -> None:
    """Keep a contract that is later than all that are known, and tell the others; its signature was checked."""
    if signed.number <= state.contracts.number or signed.number in state.contracts.unfit:
        return
    reason = state.setup.unfit(signed.text)
    if reason:
        state.contracts.unfit.add(signed.number)
        state.note("error", "contract", f"contract {signed.number} cannot be gone over to: {reason}")
        return
    state.contracts.signed = signed
    state.effects.append(Amend(signed))
    changes = differences_text(differences(json.loads(state.setup.held.text), json.loads(signed.text)), "now", "then")
    text = f"contract {signed.number} holds from round {signed.starts} on: {changes}"
    state.note("info", "contract", text, number=signed.number, starts=signed.starts)
    for peer, other in state.others.items():
        if other.met:
            send_signed_contract(state, peer)


def send_signed_contract(state: NodeState, peer: str) -> None:
    """Pass the newest signed contract on, to every process of another once."""
    other = state.others[peer]
    key = (other.generation, other.nonce, state.contracts.number)
    if state.contracts.signed is not None and other.sent_signed != key:
        other.sent_signed = key
        state.send(peer, Contract(text=contract_bytes(state.contracts.signed)))


def goes_over(state: NodeState) -> bool:
    """Begin anew under the next contract, if it is time; whether this process ends for it."""
    signed, held = state.contracts.signed, state.setup.held
    if signed is None or signed.number <= held.number:
        return False
    round = state.durable.round
    if state.phase in ("gathering", "joining") or state.setup.part is not None:
        round = max(round, furthest(state))
    if state.synchronous and state.phase != "finished" and round < signed.starts:
        return False
    after = HeldContract(signed.number, signed.text, held.file, before=held.text)
    state.effects.append(Persist("snapshot", state.durable.copy(), after))
    state.note("info", "contract", f"goes over to contract {signed.number} in round {state.durable.round}")
    state.stop(0, f"goes over to contract {signed.number}", again=True)
    return True


def gone_over(state: NodeState) -> None:
    """The first step under another contract: the state is saved as one that goes by it.

    The evaluation of the round before, for which the process that ended had no time, is made up for.
    """
    held, durable = state.setup.held, state.durable
    if held.before:
        done, every = durable.round - 1, json.loads(held.before)["learning"]["evaluate_every"]
        if done > 0 and not durable.trained and done % every == 0:
            state.effects.append(Evaluate(done, *state.models()))
        changes = differences_text(differences(json.loads(held.before), json.loads(held.text)), "before", "now")
        state.note("info", "contract", f"contract {held.number} is in force: {changes}", number=held.number)
        state.snapshot()
