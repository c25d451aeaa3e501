"""`fedpeer update`: sign the next contract of a running federation, and send it to the peers.

`config/contract.py` says what may change and how it takes effect; `peer/node/amending.py` makes a peer adopt it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeer.cli.errors import wrapped
from fedpeer.cli.federation_commands import Folder, delivery_lines, sent
from fedpeer.config.problems import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from fedpeer.config.contract import Difference, HeldContract
    from fedpeer.config.federation import Federation
    from fedpeer.config.settings import SimulationSettings
    from fedpeer.peer.runtime.authority import Authority

#: Seconds in which a contract reaches all peers, with a wide margin; and between two measurements of their round.
NEWS_S, LOOK_S = 5.0, 1.0
#: Least number of rounds between the peers' newest round and the first under the new contract.
_ROUNDS_AHEAD = 2
_NOTHING_SIGNED = ", so nothing was signed"


def update(
    new: Annotated[Path, typer.Argument(metavar="NEW.yaml", help="The changed federation file.")],
    folder: Folder = Path(),
    from_round: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="First round under the new contract; default: soon.", show_default=False),
    ] = None,
) -> None:
    """Change settings of a running federation, such as rounds, optimizer or gossip, without stopping its peers.

    Run it where the authority's key is. A different network needs a new federation.
    """
    from fedpeer.cli.config import ConfigSource, load
    from fedpeer.config.contract import differences, overlaid, text_of
    from fedpeer.learning.anchors import anchored_federation
    from fedpeer.learning.wire_forms import succeeding
    from fedpeer.peer.runtime.authority import open_authority, sign_next

    authority = open_authority(folder)
    written = [
        load(ConfigSource.of_file(file), _NOTHING_SIGNED, roster=True) for file in (folder / "federation.yaml", new)
    ]
    before, after = map(anchored_federation, written, (folder, new.parent))
    held = _in_force(authority, before)
    contract = succeeding(_plain(held.text), overlaid(held, after))
    algorithm = str(after.learning.algorithm)
    differing = differences(_plain(held.text), contract)
    simulated = _simulated([each.simulation for each in written], [each.simulation for each in (before, after)])
    problems = [*_problems(authority, after, differing), *simulated]
    if problems:
        raise ConfigError(str(new), problems, _NOTHING_SIGNED)
    starts = from_round or _soon(authority, before.learning.rounds)
    signed = sign_next(authority, text_of(contract, algorithm), starts, new.read_bytes())
    print(f"Contract {signed.number} is in force {_when(starts)}:\n")
    for each in differing:
        print(wrapped(f"  {each.words('now', 'then')} ({each.key.takes if each.key else ''})"))
    print()
    print("\n".join(delivery_lines(sent(authority, authority.roster, contract=signed), "contract.json")))


def _when(starts: int) -> str:
    return f"from round {starts} on" if starts > 1 else "on each peer as soon as it receives it"


def _plain(text: bytes) -> Any:
    import json

    return json.loads(text)


def _in_force(authority: Authority, file: Federation) -> HeldContract:
    """Return the newest signed contract, or the first one, from a peer's state if there is one here."""
    from fedpeer.config.contract import HeldContract, contract_of, named, text_of
    from fedpeer.peer.runtime.agreement import state_of
    from fedpeer.peer.runtime.contract_file import contract_file, read_contract
    from fedpeer.peer.state.journal import held_of

    signed = read_contract(contract_file(authority.folder / "roster.json"), authority.roster.authority)
    if signed is not None:
        return HeldContract(signed.number, signed.text, named(file))
    states = (state_of(path) for path in sorted(authority.folder.glob("*/*-state")))
    kept = [held for state in states if state is not None and (held := held_of(state)) is not None]
    began = text_of(contract_of(file), str(file.learning.algorithm))
    return HeldContract(0, kept[0].text if kept else began, named(file))


def _simulated(
    written: Sequence[SimulationSettings], absolute: Sequence[SimulationSettings]
) -> Iterator[ConfigProblem]:
    """Yield the settings of simulated peers that differ; data and pretrained networks are compared by content.

    A setting that both files write in the same way is the same: the new file takes the place of the old one.

    Args:
        written: as the two files write it.
        absolute: with absolute paths, and the digests of pretrained networks.
    """
    from fedpeer.config.pretrained import without_paths
    from fedpeer.data.dataset import DataError
    from fedpeer.learning.anchors import same_data

    before, after = ({peer: without_paths(own) for peer, own in each.networks.items()} for each in absolute)
    for name in type(absolute[0]).model_fields:
        if name == "networks" and before == after:
            continue
        if any(getattr(now, name) == getattr(then, name) for now, then in (written, absolute)):
            continue
        text = "it describes simulated peers only and is not part of a contract; leave it unchanged"
        try:
            if name == "dataset" and same_data(*(each.dataset for each in absolute)):
                continue
        except DataError as problem:
            text = f"{problem}, so nobody knows whether the data are the same; put it there, or leave it unchanged"
        yield ConfigProblem(("simulation", name), text)


def _problems(authority: Authority, after: Federation, differing: list[Difference]) -> Iterator[ConfigProblem]:
    """Yield the reasons why this change is impossible."""
    from fedpeer.config.contract import NEW_FEDERATION
    from fedpeer.slicing.models import model_mistakes as wrong_models

    if not differing:
        yield ConfigProblem((), "nothing differs from the contract in force; change a setting first")
    for each in differing:
        if not each.changes:
            yield ConfigProblem(each.keys, f"{each.words('now', 'then')}, and it {each.way()}; {NEW_FEDERATION}")
    for wrong in wrong_models(after.models(), [entry.id for entry in authority.roster.entries]):
        yield ConfigProblem(("partial_models",), wrong.message)
    for each in differing:
        if each.keys[2:] == ("members",) and isinstance(each.theirs, list):
            for entry in authority.roster.entries:
                new = entry.id in {*each.theirs} - {*(each.mine or ())}
                if new and entry.models is not None and each.keys[1] not in entry.models:
                    text = (
                        f"{entry.id} was invited with --models {','.join(entry.models)}, and that counts; leave it out"
                    )
                    yield ConfigProblem(each.keys, f"{text} here, or revoke it and invite it with other --models")


def _soon(authority: Authority, rounds: int) -> int:
    """Return a round that no peer reaches before all have the contract, or 1 if no peer can be asked.

    It follows from the peers' pace over `LOOK_S`.
    """
    first = _furthest(authority)
    if first is None:
        return 1
    began = time.monotonic()
    time.sleep(LOOK_S)
    then = _furthest(authority)
    pace = ((then or first) - first) / (time.monotonic() - began)
    return min((then or first) + max(_ROUNDS_AHEAD, math.ceil(pace * NEWS_S)), rounds + 1)


def _furthest(authority: Authority) -> int | None:
    """Return the newest round of any peer, from the first dashboard that answers on this machine, or None."""
    from fedpeer.cli.status import dashboard_of
    from fedpeer.peer.runtime.dashboard.access import DashboardError
    from fedpeer.peer.runtime.dashboard.ask import ask

    for entry in authority.roster.entries:
        config = authority.folder / entry.id / f"{entry.id}.yaml"
        if config.exists():
            try:
                seen = ask(dashboard_of(config, None, None, None))
            except (DashboardError, ConfigError):
                continue
            return int(max([seen["round"], *(peer["round"] for peer in seen["peers"])]))
    return None
