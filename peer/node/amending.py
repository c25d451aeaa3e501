"""How a running peer goes over to the next contract that its authority signed.

It hears of it as of a roster: from anybody, since it carries its own proof; keeps it, and passes it on. In its time it
saves its whole state under the new contract, and its process begins anew on that state, as it would after any stop: so
whatever is under way stays as it is, is repeated until it is acknowledged, and no mass is touched.

In time means: equals who keep step when they begin the round from which it holds, or the next one if they are past it;
who keeps no step, or has finished, at once; and who comes late, when the others are past it. Members of councils when
they are in that round or see that others are, but not in the middle of a training: those who have gone over do not
speak with those who have not, so who waited for the end of a round might wait for ever. What was trained before counts
for the round for which it was trained.
"""

from __future__ import annotations

import json

from fedpeer.config.contract import HeldContract, differences, differences_text
from fedpeer.peer.node.skew import furthest
from fedpeer.peer.state.events import Amend, Evaluate, Persist, Stop
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import Contract
from fedpeer.peer.wire.roster import RosterError
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes, contract_from


def hear_signed(life: NodeState, peer: str, text: bytes) -> SignedContract | None:
    """The signed contract that somebody passes on, taken if it is a later one; None where it is refused."""
    try:
        signed = contract_from(text, life.circle.roster.authority)
    except RosterError as error:
        life.refuse(error.code, peer, str(error))
        return None
    take_over(life, signed)
    return signed


def take_over(life: NodeState, signed: SignedContract) -> None:
    """Keep a contract that is later than all that are known, and tell the others; its signature was checked."""
    if signed.number <= life.contract_number or signed.number in life.unfit:
        return
    reason = life.setup.unfit(signed.text)
    if reason:
        life.unfit.add(signed.number)
        life.note("error", "contract", f"contract {signed.number} cannot be gone over to: {reason}")
        return
    life.signed = signed
    life.effects.append(Amend(signed))
    changes = differences_text(differences(json.loads(life.setup.held.text), json.loads(signed.text)), "now", "then")
    text = f"contract {signed.number} holds from round {signed.starts} on: {changes}"
    life.note("info", "contract", text, number=signed.number, starts=signed.starts)
    for peer, other in life.others.items():
        if other.met:
            tell_signed(life, peer)


def tell_signed(life: NodeState, peer: str) -> None:
    """Pass the newest signed contract on, to every process of another once."""
    other = life.others[peer]
    key = (other.life, other.nonce, life.contract_number)
    if life.signed is not None and other.told_signed != key:
        other.told_signed = key
        life.send(peer, Contract(text=contract_bytes(life.signed)))


def goes_over(life: NodeState) -> bool:
    """Begin anew under the next contract, if it is time; whether this process ends for it."""
    signed, held = life.signed, life.setup.held
    if signed is None or signed.number <= held.number:
        return False
    round = life.ledger.round
    if life.phase in ("gathering", "joining") or life.setup.part is not None:
        round = max(round, furthest(life))
    if life.synchronous and life.phase != "finished" and round < signed.starts:
        return False
    after = HeldContract(signed.number, signed.text, held.file, before=held.text)
    life.effects.append(Persist("snapshot", life.ledger.copy(), after))
    life.phase = "stopped"
    life.note("info", "contract", f"goes over to contract {signed.number} in round {life.ledger.round}")
    life.effects.append(Stop(0, f"goes over to contract {signed.number}", again=True))
    return True


def gone_over(life: NodeState) -> None:
    """The first step under another contract: the state is saved as one that goes by it.

    The evaluation of the round before, for which the process that ended had no time, is made up for.
    """
    held, ledger = life.setup.held, life.ledger
    if held.before:
        done, every = ledger.round - 1, json.loads(held.before)["learning"]["evaluate_every"]
        if done > 0 and not ledger.trained and done % every == 0:
            life.effects.append(Evaluate(done, *life.models()))
        changes = differences_text(differences(json.loads(held.before), json.loads(held.text)), "before", "now")
        life.note("info", "contract", f"contract {held.number} is in force: {changes}", number=held.number)
        life.snapshot()
