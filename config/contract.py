"""The learning contract: the settings that all peers of a federation agree on, in a canonical encoding.

A contract is the content of `federation.yaml` without `simulation` and with all defaults written out, as JSON. `KEYS`
states for each setting whom it concerns, whether it may change while a federation runs, and which release introduced
it. A setting that came after the first release is left out of the encoding if it has its neutral value, so that a
release that does not know the setting encodes the same contract.

Two peers average in a group if the settings that concern that group are the same in both contracts (`group_digest`).
Other differences are reported, key by key (`differences`), and stop nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from fedpeer.config.choice import Choice
from fedpeer.config.pretrained import PRETRAINED, without_paths
from fedpeer.config.reading import UNCHECKED
from fedpeer.config.settings import FederationSettings

_Settings = TypeVar("_Settings", bound=FederationSettings)

#: A contract as plain values, by section.
ContractFields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """One setting of the contract.

    concerns   "average": all peers that average with one another; "slices": the peers of the groups whose averaged
               parameters it determines; "training": each peer by itself, or all peers if the algorithm has a server,
               whose rounds are made of the clients' training; "conduct": each peer by itself
    changes    whether `fedpeer update` may change it while the federation runs; else a new federation is needed
    takes      how a change takes effect, or why it cannot be changed
    since      release that introduced it; "" for the first
    neutral    value with which this setting does what earlier releases did
    """

    concerns: Literal["average", "slices", "training", "conduct"]
    changes: bool
    takes: str
    since: str = ""
    neutral: Any = None


_SHAPE = "networks or averaged slices would have other shapes"
_BEGUN = "it describes how the federation started"
_WEIGHTS = "each peer's initial push-sum weight would be different"
_STEPS = "asynchronous peers count their rounds separately, so rounds of different peers would not match"
_PROMISED = "members joined under this promise of privacy, and what was sent before cannot be masked later"
_COORDINATOR = "a coordinator's rounds and push-sum weights (held or in transit) cannot be converted into one another"
_COUNTED = "a coordinator counts its averagings, so their numbers would belong to other rounds of training"
_UPDATES = "updates in transit are a model in one case and its change in the other"
_NEXT = "from the round that the new contract names"
_OUTER = "with a new optimizer state and a new outer state"
_SHARES = f"{_NEXT}; shares in transit keep their encoding"

#: Every setting by its dotted path; `partial_models.*` is each of the models.
KEYS: Mapping[str, Key] = {
    "name": Key("conduct", True, _NEXT),
    "network": Key("slices", False, _SHAPE),
    "partial_models.*": Key("slices", True, "models may be added or dropped if the others keep their slices"),
    "partial_models.*.members": Key("slices", True, _NEXT),
    "partial_models.*.depends_on": Key("slices", False, _SHAPE),
    "partial_models.*.neurons": Key("slices", False, _SHAPE),
    "partial_models.*.modules": Key("slices", False, _SHAPE),
    "partial_models.*.parameters": Key("slices", False, _SHAPE, since="0.3"),
    "partial_models.*.gossip": Key("average", True, _SHARES, since="0.3"),
    "partial_models.*.outer": Key("average", True, _OUTER, since="0.3"),
    "learning.algorithm": Key("average", True, "its settings may change, but not the algorithm"),
    "learning.loss": Key("training", False, _SHAPE),
    "learning.class_weights": Key("training", True, _NEXT, since="0.3", neutral="none"),
    "learning.optimizer": Key("training", True, "with a new optimizer state"),
    "learning.batch_size": Key("training", True, _NEXT),
    "learning.steps_between_averaging": Key("training", True, _NEXT),
    "learning.passes": Key("training", True, _NEXT),
    "learning.rounds": Key("conduct", True, "a finished peer goes on if there are more"),
    "learning.evaluate_every": Key("conduct", True, _NEXT),
    "learning.evaluate_last": Key("conduct", True, _NEXT, since="0.3", neutral=1),
    "learning.weights": Key("average", False, _WEIGHTS),
    "learning.buffers": Key("slices", False, _SHAPE),
    "learning.frozen": Key("slices", False, _SHAPE, since="0.3", neutral=[]),
    "learning.lora": Key("slices", False, _SHAPE, since="0.3"),
    "learning.optimizer_state": Key("training", True, _NEXT),
    "learning.outer": Key("average", True, _OUTER, since="0.3", neutral="none"),
    "learning.start": Key("training", False, _BEGUN),
    "learning.common_start": Key("training", False, _BEGUN),
    "learning.participation": Key("training", True, _NEXT),
    "learning.everyone_trains": Key("training", True, _NEXT),
    "learning.aggregation": Key("training", True, _NEXT),
    "learning.aggregation_goal": Key("training", False, _UPDATES, since="0.3"),
    "learning.farthest": Key("training", True, _NEXT),
    "learning.privacy": Key("training", False, _PROMISED),
    "learning.mode": Key("average", False, _STEPS),
    "learning.alone_rounds": Key("conduct", True, _NEXT, since="0.3", neutral=10),
    "learning.alone_limit": Key("conduct", True, _NEXT, since="0.3", neutral=86_400.0),
    "gossip.protocol": Key("average", True, f"{_NEXT}; not to or from a coordinator"),
    "gossip.topology": Key("average", True, _NEXT),
    "gossip.tolerance": Key("average", True, _NEXT),
    "gossip.exchanges": Key("average", True, _NEXT),
    "gossip.max_exchanges": Key("average", True, _NEXT, since="0.3"),
    "gossip.every": Key("average", True, f"{_NEXT}; not with a coordinator"),
    "gossip.drift": Key("average", True, _NEXT),
    "gossip.wire": Key("average", True, _SHARES),
    "gossip.privacy": Key("average", False, _PROMISED),
    "gossip.deadline": Key("conduct", True, _NEXT),
    "gossip.gather": Key("conduct", True, _NEXT),
    "gossip.tick": Key("conduct", True, _NEXT),
    "seed": Key("average", False, _BEGUN),
}

#: Keys of the wire encodings in which shares were made under earlier contracts (`wire_forms.py`): a list for all
#: groups, and lists by partial model, for the groups whose encodings differed.
EARLIER, EARLIER_OF_SLICES = "earlier", "earlier_of_slices"
#: Keys beside the settings, which follow from the settings or from earlier contracts.
_BESIDE = ("algorithm", EARLIER, EARLIER_OF_SLICES)
#: Settings beside the partial models that determine which parameters are averaged.
_SHAPING = ("network", "learning.buffers", "learning.frozen", "learning.lora")
#: Settings of a partial model that say how it is averaged; earlier releases have none of them.
_AVERAGED_AS = ("gossip", "outer")
#: Settings in the `gossip` of a partial model that each peer decides by itself, as it does `gossip.deadline`.
_CONDUCT = ("deadline",)
#: Settings of `gossip` whose default follows from other settings, with these other settings.
_FOLLOWING = {"max_exchanges": ("tolerance", "exchanges", "protocol", "privacy")}
#: Most differences in one message; there are fewer settings than that.
DIFFERENCES_MAX = 60
#: The way out for a setting that cannot change.
NEW_FEDERATION = (
    "export the model (fedpeer export), and start a new federation (fedpeer init) with the new file and "
    "learning.start: file:MODEL.safetensors"
)

# ------------------------------------------------------------------------------------------------------ the encoding


def contract_of(federation: FederationSettings) -> dict[str, Any]:
    """Return the contract of a federation as plain values; later settings are left out if they are neutral."""
    contract: dict[str, Any] = _without_paths(federation).model_dump(mode="json", exclude={"simulation"})
    for path, key in _later():
        section, name = path.split(".")
        if contract[section].get(name) == key.neutral:
            del contract[section][name]
    for model in contract["partial_models"].values():
        for name in _AVERAGED_AS:
            if model[name] is None:
                del model[name]
        if not model["parameters"]:
            del model["parameters"]
        if "gossip" in model:
            model["gossip"] = {name: value for name, value in model["gossip"].items() if value is not None}
    return contract


def federation_of(contract: ContractFields, like: _Settings) -> _Settings:
    """Return the federation of a contract; settings that it lacks are taken from `like`, this machine's file."""
    filled = with_neutral({name: value for name, value in contract.items() if name not in _BESIDE})
    made = type(like).model_validate(filled, context=UNCHECKED)
    found: dict[str, Any] = {"simulation": like.simulation}
    plain = _without_paths(like)
    if plain.learning.start == made.learning.start:
        found["learning"] = made.learning.model_copy(update={"start": like.learning.start})
    if plain.network == made.network:
        found["network"] = like.network
    return made.model_copy(update=found)


def with_neutral(settings: ContractFields) -> dict[str, Any]:
    """Return stored settings with the neutral value of each setting that came after the release that wrote them."""
    filled = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    for path, key in _later():
        section, name = path.split(".")
        if isinstance(filled.get(section), dict):
            filled[section].setdefault(name, key.neutral)
    return filled


def _without_paths(federation: _Settings) -> _Settings:
    """Name trained models by the digests of their contents: each machine may have them at other paths."""
    found: dict[str, Any] = {}
    start = federation.learning.start
    if start is not None and start.name == "file":
        settings = {name: value for name, value in start.settings.items() if name == "digest"}
        found["learning"] = federation.learning.model_copy(update={"start": Choice("file", None, settings)})
    # What a file leaves out must not count as set, so nothing else is replaced.
    if federation.network is not None and federation.network.name == PRETRAINED:
        found["network"] = without_paths(federation.network)
    return federation.model_copy(update=found)


def text_of(contract: ContractFields, algorithm: str) -> bytes:
    """Return the canonical encoding. `algorithm`: the one that runs; a simulation may choose it beside the file."""
    whole = {**contract, "algorithm": algorithm}
    return json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def contract_digest(text: bytes) -> bytes:
    """Return the digest of an encoded contract, 32 bytes (BLAKE2b)."""
    return hashlib.blake2b(text, digest_size=32).digest()


def _later() -> Iterator[tuple[str, Key]]:
    """Yield the settings of this release that came after the first release."""
    for path, key in KEYS.items():
        section, _, name = path.partition(".")
        if section not in FederationSettings.model_fields or section == "partial_models":
            continue
        kind = FederationSettings.model_fields[section].annotation if key.since else None
        if kind is not None and name in kind.model_fields:  # type: ignore[union-attr]
            yield path, key


# -------------------------------------------------------------------------------------------------- whom it concerns


def group_digest(contract: ContractFields, group: str, *, has_server: bool) -> bytes:
    """Return the digest, 32 bytes, of the settings that concern the averaging group of this id.

    Models that have no part in the group are left out, and so are settings that each peer decides by itself.

    Args:
        has_server: whether the algorithm has a server, so that the settings of training concern everybody.
    """
    models = _models(contract.get("partial_models", {}), group.split("+"), everyone=has_server)
    concerns = {"average", "training"} if has_server else {"average"}
    found = {
        path: _at(contract, path)
        for path, key in KEYS.items()
        if (key.concerns in concerns or path in _SHAPING)
        and not (key.since and _at(contract, path) == key.neutral)  # a release without this setting leaves it out
    }
    found |= {EARLIER: contract[EARLIER]} if EARLIER in contract else {}  # shares are read by it
    of_slices = contract.get(EARLIER_OF_SLICES)
    if isinstance(of_slices, Mapping) and group in of_slices:
        found[EARLIER_OF_SLICES] = of_slices[group]
    return contract_digest(json.dumps([found, models], sort_keys=True).encode())


def _models(all_of: Any, names: Sequence[str], *, everyone: bool) -> dict[str, Any]:
    """Return the models of a group, and those on which they depend, but not how these are averaged."""
    if not isinstance(all_of, Mapping):
        return {}
    found: dict[str, Any] = {}
    waiting = list(all_of) if everyone else [name for name in names if name in all_of]
    while waiting:
        name = waiting.pop()
        if name not in found and name in all_of:
            found[name] = _averaged(all_of[name]) if everyone or name in names else _unaveraged(all_of[name])
            depends = all_of[name].get("depends_on") if isinstance(all_of[name], Mapping) else None
            waiting += [each for each in depends if isinstance(each, str)] if isinstance(depends, list) else []
    return found


def _averaged(model: Any) -> Any:
    """Return a model without the averaging settings that each peer decides by itself."""
    gossip = model.get("gossip") if isinstance(model, Mapping) else None
    if not isinstance(gossip, Mapping):
        return model
    shared = {key: value for key, value in gossip.items() if key not in _CONDUCT}
    return {**_without(model, ("gossip",)), **({"gossip": shared} if shared else {})}


def _without(model: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in model.items() if key not in keys}


def _unaveraged(model: Any) -> Any:
    if not isinstance(model, Mapping):
        return model
    return _without(model, _AVERAGED_AS)


def _at(contract: ContractFields, path: str) -> Any:
    """Return the value at a path; the neutral value if a later setting is left out."""
    value: Any = contract
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return KEYS[path].neutral if value is None and KEYS[path].since else value


# ----------------------------------------------------------------------------------------------------- what differs


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that has different values in two contracts; None: missing.

    of_all   `gossip.protocol`, `gossip.every` and `learning.mode` of both contracts, for slices without values of their
             own; and whether coordinators average as often as `gossip.every` says
    """

    path: str
    mine: Any
    theirs: Any
    of_all: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})

    @property
    def section(self) -> str:
        """First part of the path."""
        return self.path.partition(".")[0]

    @property
    def key(self) -> Key | None:
        """The entry of the setting in `KEYS`; None for a setting of another release."""
        first, *rest = self.path.split(".", 2)
        known = ".".join(["partial_models.*", *rest[1:]]) if first == "partial_models" and rest else self.path
        return KEYS.get(known)

    @property
    def changes(self) -> bool:
        """True if this change is possible while a federation runs."""
        if self.path == "learning.algorithm":
            return _named(self.mine) == _named(self.theirs)
        return self._obstacle is None and self.key is not None and self.key.changes

    @property
    def _obstacle(self) -> str | None:
        """Why averaging cannot be converted to the other value, though the setting may change; None: it can."""
        protocols = (self.mine, self.theirs) if self.path == "gossip.protocol" else self._of_slice("protocol")
        if "coordinator" in protocols and protocols[0] != protocols[1]:
            return _COORDINATOR
        if self.path == "gossip.every" and any(each.get("counted") for each in self.of_all):
            return _COUNTED
        kept = {"every": _COUNTED} if "coordinator" in protocols else {}
        for name, why in {**kept, "mode": _STEPS, "privacy": _PROMISED}.items():
            mine, theirs = self._of_slice(name)
            if mine != theirs:
                return why
        return None

    def _of_slice(self, name: str) -> tuple[Any, Any]:
        """Return a slice's value of a setting in both contracts; None, None if its `gossip` is not what differs."""
        if self.section != "partial_models" or not self.path.endswith(".gossip"):
            return None, None
        own = (each.get(name) if isinstance(each, Mapping) else None for each in (self.mine, self.theirs))
        mine, theirs = (value or of_all.get(name) for value, of_all in zip(own, self.of_all, strict=True))
        return mine, theirs

    def words(self, here: str = "here", there: str = "there") -> str:
        """Return the path and both values as text."""
        path = json.dumps(self.path)[1:-1]  # another peer's key may have any characters
        path = path if len(path) <= 100 else f"{path[:97]}..."
        return f"{path} is {_setting_text(self.mine)} {here} and {_setting_text(self.theirs)} {there}"

    def way(self) -> str:
        """Return a text that says whether the setting may change, and how."""
        takes = self._obstacle or (self.key.takes if self.key is not None else "this release does not know it")
        return f"may change with fedpeer update: {takes}" if self.changes else f"cannot change: {takes}"


def differences(mine: ContractFields, theirs: ContractFields) -> list[Difference]:
    """Return all settings in which two contracts differ, in the order of their paths."""
    of_all = _of_all(mine), _of_all(theirs)
    found = sorted(
        (replace(each, of_all=of_all) for each in _differences(mine, theirs, ())), key=lambda each: each.path
    )
    settings = [each for each in found if each.section not in _BESIDE]
    return settings or [each for each in found if each.section not in (EARLIER, EARLIER_OF_SLICES)]


def _of_all(contract: ContractFields) -> dict[str, Any]:
    protocol, every = _at(contract, "gossip.protocol"), _at(contract, "gossip.every")
    models = contract.get("partial_models")
    own = (
        [each.get("gossip") for each in models.values() if isinstance(each, Mapping)]
        if isinstance(models, Mapping)
        else []
    )
    counted = protocol == "coordinator" or any(
        isinstance(each, Mapping) and each.get("protocol") == "coordinator" and each.get("every") is None
        for each in own
    )
    return {"protocol": protocol, "every": every, "mode": _at(contract, "learning.mode"), "counted": counted}


def _differences(mine: Any, theirs: Any, path: tuple[str, ...]) -> Iterator[Difference]:
    dotted = ".".join(path)
    sections = isinstance(mine, Mapping) and isinstance(theirs, Mapping)
    if sections and dotted not in KEYS and not {"neurons", "gossip"} & {*path[2:]}:
        for name in {**mine, **theirs}:
            yield from _differences(_or_neutral(mine, path, name), _or_neutral(theirs, path, name), (*path, str(name)))
    elif mine != theirs:
        yield Difference(dotted, mine, theirs)


def _or_neutral(section: Mapping[str, Any], path: tuple[str, ...], name: str) -> Any:
    key = KEYS.get(".".join((*path, str(name))))
    return section.get(name, key.neutral if key is not None and key.since else None)


def differences_text(differing: Sequence[Difference], here: str = "here", there: str = "there") -> str:
    """Return the differences with both values on one line: the first DIFFERENCES_MAX, and the number of the others."""
    more = f"; and {len(differing) - DIFFERENCES_MAX} more" if len(differing) > DIFFERENCES_MAX else ""
    return "; ".join(each.words(here, there) for each in differing[:DIFFERENCES_MAX]) + more


def _setting_text(value: Any) -> str:
    """Return a value as YAML writes it, at most 60 characters."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _named(choice: Any) -> str:
    return str(choice).partition(",")[0].partition(":")[0]


# ------------------------------------------------------------------------------------------------------- going on


@dataclass(frozen=True, slots=True)
class HeldContract:
    """The contract in force, as a peer's state keeps it.

    number   number of the signed contract; 0: the file with which the federation began
    text     its encoding
    file     the settings that this machine's file named when it was last read, as JSON
    before   the encoding of the contract before it, until the first process under this contract has begun
    """

    number: int
    text: bytes
    file: bytes
    before: bytes = b""


def remembered(held: HeldContract) -> dict[str, Any]:
    """Return the part of a contract that describes the contracts before it."""
    contract = json.loads(held.text)
    return {name: contract[name] for name in (EARLIER, EARLIER_OF_SLICES) if name in contract}


def named(federation: FederationSettings) -> bytes:
    """Return the settings that a file names, as JSON, without those that it leaves at their defaults."""
    stated = _without_paths(federation).model_dump(mode="json", exclude={"simulation"}, exclude_unset=True)
    return json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()


def overlaid(held: HeldContract, file: FederationSettings) -> dict[str, Any]:
    """Return the contract that this file asks for while `held` is in force.

    A setting that the file names has the file's value. A setting that it leaves out stays as it is, even if a later
    release has another default. A setting that it named before and no longer names gets the default, and so does a
    setting whose default follows from one that was changed.
    """
    now, before = json.loads(named(file)), json.loads(held.file)
    gossip, earlier = (each.setdefault("gossip", {}) for each in (now, before))
    for name, causes in _FOLLOWING.items():
        if any(gossip.get(cause) != earlier.get(cause) for cause in causes):
            earlier.setdefault(name, None)
    return _overlaid(json.loads(held.text), contract_of(file), now, before)


def _overlaid(
    kept: dict[str, Any], fresh: dict[str, Any], now: Any, before: Any, *, sections: bool = True
) -> dict[str, Any]:
    """Overlay setting by setting; `sections`: values that are mappings are sections, and not settings."""
    now, before = (each if isinstance(each, dict) else {} for each in (now, before))
    made = dict(kept)
    for name in {**kept, **fresh, **before}:
        if name in _BESIDE:
            continue
        if name == "partial_models":
            chosen = fresh if name in now or name in before else kept
            made[name] = chosen.get(name, {})
        elif sections and (isinstance(kept.get(name), dict) or isinstance(fresh.get(name), dict)):
            of_section = kept.get(name, {}), fresh.get(name, {}), now.get(name), before.get(name)
            made[name] = _overlaid(*of_section, sections=False)
        elif name in now or name in before:
            if name in fresh:
                made[name] = fresh[name]
            else:
                made.pop(name, None)
    return made


def changed_by_hand(held: HeldContract, file: FederationSettings) -> list[Difference]:
    """Return where this machine's file differs from the contract in force; nothing if the file was not changed."""
    if not held.file or named(file) == held.file:
        return []
    return differences(json.loads(held.text), overlaid(held, file))


def refusal(differing: Sequence[Difference]) -> str:
    """Return the text for a user who changed the file of a peer with a state: each key, both values, the way out."""
    rows = [f"  {each.words('in the state', 'in the file')}; it {each.way()}" for each in differing]
    ways = []
    if any(each.changes for each in differing):
        ways.append("restore the old values, and run fedpeer update NEW.yaml on the machine with the authority's key")
    if not all(each.changes for each in differing):
        ways.append(f"for settings that cannot change, {NEW_FEDERATION}")
    return "\n".join(
        [
            "the federation file was changed, and differs from the contract in the peer's state:",
            *rows,
            f"Way out: {'; '.join(ways)}.",
        ]
    )
