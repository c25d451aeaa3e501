"""The settings of `federation.yaml` as types, with ranges, defaults, and a digest by which people compare two files.

Here are the limits of single settings. The limits of several settings together are in `rules.py`; `Federation`
(`federation.py`) checks both. A setting that is a choice (`k-regular:4`) is kept as a `Choice`; the owner of the
registry binds it to a function.

Pure, and imports no torch: checking a file must be quick.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from fedpeer.algorithms.assignment import ASSIGNMENTS
from fedpeer.config.choice import Choice, ChoiceError, chain, from_data, several
from fedpeer.slicing.models import NeuronClaim, PartialModel

#: Default bound on the exchanges of one averaging: more of them improve no accuracy (`python -m benchmarks.exchanges`).
MAX_EXCHANGES = 4

#: How the peers are simulated: by products of matrices, on this machine or on a Ray cluster; as whole peers in virtual
#: time; or as real peers, in processes of this machine.
EngineName = Literal["vector", "ray", "network", "processes"]


def _spelled(choice: Choice) -> str:
    """Return the choice's text with its settings sorted, so that the digest does not depend on their order."""
    return str(replace(choice, settings=dict(sorted(choice.settings.items()))))


ChoiceField = Annotated[
    Choice,
    BeforeValidator(from_data),
    PlainSerializer(_spelled, return_type=str, when_used="json-unless-none"),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "object", "minProperties": 1, "maxProperties": 1}],
            "description": "name, name:value, name:value,key=value or {name: {key: value}}",
        }
    ),
]

#: Several choices joined by `/`.
_ChainField = Annotated[
    tuple[Choice, ...],
    BeforeValidator(chain),
    PlainSerializer(lambda choices: "/".join(map(_spelled, choices)), return_type=str, when_used="json-unless-none"),
    WithJsonSchema({"type": ["string", "object", "array"], "description": "choices joined by /, or a list of choices"}),
]


#: Several choices side by side.
MetricsField = Annotated[
    tuple[Choice, ...],
    BeforeValidator(several),
    PlainSerializer(lambda choices: [_spelled(each) for each in choices], return_type=list[str], when_used="json"),
    WithJsonSchema({"type": ["string", "array"], "description": "choices joined by commas, or a list of choices"}),
]


#: Experiment trackers side by side.
TrackingField = Annotated[
    tuple[Choice, ...],
    BeforeValidator(several),
    PlainSerializer(lambda choices: [_spelled(each) for each in choices], return_type=list[str], when_used="json"),
    WithJsonSchema({"type": ["string", "array", "object"], "description": "trackers and their settings"}),
]


def _assignment(found: object) -> str:
    """Return the sorted text of a choice of `algorithms/assignment.py`."""
    if isinstance(found, (str, Choice, Mapping)):
        choice = from_data(found)
        if choice.name in ASSIGNMENTS:
            return _spelled(choice)
    raise PydanticCustomError("assignment_type", "alike is expected")


#: How the peers find members that are not written down.
_Assigned = Annotated[
    str,
    BeforeValidator(_assignment),
    WithJsonSchema({"type": ["string", "object"], "description": "alike, or alike,key=value"}),
]

#: Neurons of one part: a count, "all", or a list of indices.
_Neurons = Annotated[int, Field(ge=0)] | Literal["all"] | list[Annotated[int, Field(ge=0)]]


#: Kinds of files that hold a user's own table.
TABLES = ("csv", "parquet")
#: Fraction of a table that a peer holds out by default, and the training examples from which on it does: with fewer,
#: what it learns less is more than what the choice of a round is worth (`python -m benchmarks.tables`).
TABLE_VALIDATION, TABLE_VALIDATION_ROWS = 0.1, 100
#: Largest weight of a class.
WEIGHT_MAX = 1e6
#: Rules for weights of classes, where they are not given by the name of the class.
ClassWeightsRule = Literal["none", "balanced", "auto"]


def _class_weights(found: object) -> object:
    """Read `ham=1,spam=5` as a mapping, and accept numbers as class names: YAML reads the key of `0: 1.0` as one."""
    if isinstance(found, str) and found not in get_args(ClassWeightsRule):
        pieces = (each.rpartition("=") for each in found.split(","))
        pairs = [(name.strip(), weight) for name, _, weight in pieces if name.strip() or weight.strip()]
        try:
            weights = {name: float(weight) for name, weight in pairs}
        except ValueError:
            raise ChoiceError(
                f'"{found[:80]}" gives no weights; write none, balanced, auto, or the weight of each class, such as '
                "ham=1,spam=5"
            ) from None
        names = [name for name, _ in pairs]
        if again := next((name for name in names if names.count(name) > 1), None):
            raise ChoiceError(f'"{again}" has two weights in "{found[:80]}"; leave one')
        for name, weight in weights.items():
            if not 0 < weight <= WEIGHT_MAX:
                raise ChoiceError(f"{name}={weight:g}: write a weight of more than 0 and at most {WEIGHT_MAX:g}")
        return weights
    if isinstance(found, Mapping):
        numbers = (int, float)
        return {
            str(name) if isinstance(name, numbers) and not isinstance(name, bool) else name: weight
            for name, weight in found.items()
        }
    return found


#: The weight of each class in the loss: by a rule, or by the name of the class.
ClassWeightsField = Annotated[
    ClassWeightsRule | Annotated[dict[str, Annotated[float, Field(gt=0, le=WEIGHT_MAX)]], Field(min_length=1)],
    BeforeValidator(_class_weights),
]


class Strict(BaseModel):
    """Frozen settings that reject unknown keys and convert no text to a number and no boolean to an integer."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )


class SliceGossipSettings(Strict):
    """How the group of one partial model averages, where that differs from the federation's `gossip`."""

    mode: Literal["synchronous", "asynchronous"] | None = Field(
        default=None,
        description="whether the group averages in rounds, or while its peers train, as in `learning.mode`",
    )
    protocol: Literal["push-sum", "push-pull", "exact", "coordinator"] | None = Field(
        default=None,
        description="how an average of the group is computed: by gossip, or by a coordinator that it elects",
    )
    every: int | None = Field(default=None, ge=1, le=10_000, description="rounds from one averaging to the next")
    exchanges: int | None = Field(default=None, ge=1, le=10_000, description="exchanges per averaging")
    tolerance: float | None = Field(
        default=None, gt=0, lt=1, description="relative disagreement left after an averaging, instead of exchanges"
    )
    max_exchanges: int | None = Field(
        default=None, ge=1, le=10_000, description="bound on the exchanges that this tolerance takes; default: none"
    )
    topology: ChoiceField | None = Field(default=None, description="graph of the exchanges within the group")
    wire: _ChainField | None = Field(
        default=None, description="wire encoding within the group; groups of several models have the federation's"
    )
    drift: float | None = Field(
        default=None,
        gt=0,
        le=10,
        allow_inf_nan=False,
        description="event-triggered averaging of the group: fraction of its norm by which the slice must have moved",
    )
    privacy: ChoiceField | None = Field(
        default=None, description="noise phase of the group's averagings: none, or noise,pushes=2,scale=1.0"
    )
    deadline: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="seconds that an exchange, or a coordinator, waits for a late peer of the group",
    )


class PartialModelSettings(Strict):
    """One partial model: the neurons it owns, the models it depends on, the peers that implement it."""

    depends_on: list[str] = Field(default=[], description="partial models that this one depends on (transitive)")
    neurons: dict[str, _Neurons] | Literal["all"] = Field(
        default={},
        description='for each part, or a pattern such as "*.lora_A", a number of neurons, "all", or a list of indices; '
        '"all" alone: all parts',
    )
    modules: list[str] = Field(
        default=[], description='names of modules that it owns whole, sliceable or not, or patterns such as "*.norm"'
    )
    parameters: list[str] = Field(
        default=[], description='names of parameters that it owns whole, or patterns such as "*.bias"'
    )
    members: list[str] | Literal["all"] | _Assigned = Field(
        default="all",
        description='ids of the peers that implement it; "all"; or alike,after=20: the peers find groups themselves, '
        "and each group gets its own model (simulations only)",
    )
    gossip: SliceGossipSettings | None = Field(
        default=None,
        description="how its weights are averaged, where that differs from `gossip` and `learning.mode`",
    )
    outer: ChoiceField | None = Field(
        default=None, description="outer steps of its weights, where they differ from `learning.outer`"
    )

    @property
    def automatic(self) -> bool:
        """True if the peers are to find its members themselves."""
        return isinstance(self.members, str) and self.members != "all"


class LoraSettings(Strict):
    """Low-rank adapters of some layers, which are frozen (LoRA, Hu et al. 2022)."""

    rank: int = Field(default=8, ge=1, le=100_000, description="rank of each adapter")
    alpha: float | None = Field(
        default=None, gt=0, le=1e6, description="factor of an adapter times its rank; default: the rank, a factor of 1"
    )
    targets: list[str] = Field(
        min_length=1, description='names of layers, or patterns such as "encoder.*"; an attention has four adapters'
    )

    @property
    def scale(self) -> float:
        """Factor of each adapter."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class LearningSettings(Strict):
    """Settings of each peer's training, and of how often the peers average."""

    algorithm: ChoiceField = Field(
        default="partial-averaging", validate_default=True, description="how peers learn together"
    )
    loss: ChoiceField | None = Field(
        default=None,
        description="by name, or your own: python:module:function; default: cross-entropy for classes, "
        "mean-squared-error for numbers, completion for patterns",
    )
    class_weights: ClassWeightsField = Field(
        default="none",
        description="weight of each class in the loss (cross-entropy and binary): none; balanced: n / (k * n_c) for "
        "n_c of a peer's own n training examples, of k classes; auto: balanced where the data have classes and the "
        "training takes weights, else none; or weights by class, such as {ham: 1, spam: 5}, where a class that is left "
        "out has 1",
    )
    optimizer: ChoiceField = Field(
        default="sgd,lr=0.1",
        validate_default=True,
        description="a torch optimizer and its settings, or your own: python:module:function,lr=0.1",
    )
    batch_size: int = Field(default=1, ge=1, le=1_000_000, description="examples in one local step")
    steps_between_averaging: Annotated[int, Field(ge=1)] | Literal["pass"] = Field(
        default=87, description='local steps in a round; "pass": one pass over the peer\'s examples'
    )
    passes: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description='passes over the peer\'s examples in a round, if steps_between_averaging is "pass"',
    )
    rounds: int = Field(default=30, ge=1, le=1_000_000, description="rounds of training and averaging in a run")
    evaluate_every: int = Field(
        default=1, ge=1, description="rounds between two evaluations; the last is always evaluated"
    )
    evaluate_last: int = Field(
        default=1, ge=1, le=1_000_000, description="how many of the last rounds are all evaluated"
    )
    weights: Literal["uniform", "restart", "samples"] = Field(
        default="uniform",
        description="push-sum weights at the start of an averaging: uniform: 1 in the first, then as the last one left "
        "them, which keeps the mean of all peers; restart: 1 in each, so that a peer takes the plain mean of what it "
        "receives (EL-Local); samples: n_i / mean(n) for a peer with n_i examples",
    )
    buffers: Literal["average", "local"] = Field(
        default="average", description="running statistics of batch normalisation: averaged, or kept local (FedBN)"
    )
    frozen: list[str] = Field(
        default=[],
        description='names of parameters that nobody trains, averages or sends, or patterns such as "encoder.*"',
    )
    lora: LoraSettings | None = Field(
        default=None, description="low-rank adapters of layers, which are frozen: rank, alpha, targets"
    )
    optimizer_state: Literal["keep", "reset"] = Field(
        default="keep", description="what happens to momentum and the like after an averaging"
    )
    outer: ChoiceField = Field(
        default="none",
        validate_default=True,
        description="optimizer that takes the change from one averaging to the next as its gradient: none, "
        "nesterov,lr=0.7,momentum=0.9 (DiLoCo) or sgd,lr=1.0,momentum=0.5 (SlowMo); algorithms without a server",
    )
    start: ChoiceField | None = Field(
        default=None,
        description="initial weights: uniform:0.5 (default of a sigmoid mlp), torch (the modules' own initialization; "
        "default of fedpeer's other networks), built (unchanged; default of your own network), file:model.safetensors "
        "(written by fedpeer export)",
    )
    common_start: bool = Field(default=True, description="whether all peers start from the same initial weights")
    participation: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="fraction of the peers that take part in a round (algorithms with a server)",
    )
    everyone_trains: bool | Literal["evaluated"] = Field(
        default=False,
        description="whether peers that do not take part in a round train too, for themselves: never (false), in all "
        "rounds (true), or in those after which models are scored (evaluated); algorithms with a server",
    )
    aggregation: ChoiceField = Field(
        default="mean",
        validate_default=True,
        description="how a round's updates are combined (with a server); all but mean tolerate Byzantine clients",
    )
    aggregation_goal: int | None = Field(
        default=None,
        ge=1,
        description="number of updates that close a round; whoever is slower counts in a later round, with less weight "
        "the older its update is (FedBuff); default: a round waits for all participants (algorithms with a server)",
    )
    farthest: float | None = Field(
        default=None,
        gt=1,
        le=1e6,
        allow_inf_nan=False,
        description="leave out an update that moved more than this many times as far as the median update of its "
        "round; default: none is left out (algorithms with a server)",
    )
    privacy: ChoiceField = Field(
        default="none",
        validate_default=True,
        description="protection of updates before they are sent (algorithms with a server): none, or gaussian,"
        "clip=1.0,noise=1.0 for differential privacy",
    )
    mode: Literal["synchronous", "asynchronous"] = Field(
        default="synchronous",
        description="synchronous: all peers train, then average together; asynchronous: peers exchange while they "
        "train, without waiting (real peers and the network engine)",
    )
    alone_rounds: int = Field(
        default=10,
        ge=0,
        le=1_000_000,
        description="extra trainings of a peer in the same round while no other peer answers; then it waits",
    )
    alone_limit: float | None = Field(
        default=86_400.0,
        gt=0,
        le=1e9,
        allow_inf_nan=False,
        description="seconds without an answer from any other peer after which a peer completes the remaining rounds "
        "by itself and finishes; null: it waits forever (in a simulation at most 600: finished peers stay away)",
    )

    @property
    def changes_network(self) -> bool:
        """True if parameters of the network are frozen, or layers have adapters."""
        return bool(self.frozen) or self.lora is not None

    @property
    def demands_class_weights(self) -> bool:
        """True if classes must have weights, so that what cannot take any is refused; `auto` leaves them out there."""
        return self.class_weights not in ("none", "auto")

    def evaluated(self, round: int) -> bool:
        """Return whether models are scored after this round (1, 2, ...)."""
        return round % self.evaluate_every == 0 or round > self.rounds - self.evaluate_last

    def everyone_in(self, round: int) -> bool:
        """Return whether peers outside this round (1, 2, ...) train too, whatever the algorithm says."""
        return self.everyone_trains is True or (self.everyone_trains == "evaluated" and self.evaluated(round))


class GossipSettings(Strict):
    """Settings of the averaging in a group."""

    protocol: Literal["push-sum", "push-pull", "exact", "coordinator"] = Field(
        default="push-sum",
        description="how an average is computed: by gossip, or by a coordinator that each group elects",
    )
    topology: ChoiceField = Field(
        default="k-regular:4", validate_default=True, description="graph of the exchanges within a group"
    )
    tolerance: float | None = Field(
        default=1e-4,
        gt=0,
        lt=1,
        description="relative disagreement left after an averaging, which determines the number of exchanges",
    )
    exchanges: int | None = Field(
        default=None, ge=1, le=10_000, description="exchanges per averaging, instead of a tolerance"
    )
    max_exchanges: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="bound on the exchanges that a tolerance takes; default: "
        f"{MAX_EXCHANGES} with the default tolerance, none with a tolerance of your own or a noise phase",
    )
    every: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="rounds of training from one averaging to the next (algorithms without a server)",
    )
    drift: float | None = Field(
        default=None,
        gt=0,
        le=10,
        allow_inf_nan=False,
        description="event-triggered averaging: a peer gives shares of a slice only once the slice has moved by more "
        "than this fraction of its norm since the peer last averaged it, or another peer's share has arrived "
        "(algorithms without a server); default: all peers average",
    )
    wire: _ChainField = Field(
        default="float32",
        validate_default=True,
        description="wire encoding: float32, float64, bfloat16, int8 or top-k:SHARE, optionally followed by /zstd",
    )
    privacy: ChoiceField = Field(
        default="none",
        validate_default=True,
        description="noise phase before the first true share of an average: none, or noise,pushes=2,scale=1.0",
    )
    deadline: float = Field(
        default=30.0, gt=0, le=86_400, description="seconds that a synchronous exchange waits for a late peer"
    )
    gather: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="seconds to wait for the other peers before the first round, and for unreachable peers after the "
        "last round",
    )
    tick: float = Field(default=0.025, ge=0.001, le=10, description="seconds between two checks of what is due")

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        """Bound the exchanges unless the user chose a setting that determines their number or that needs them all.

        The bound is a default: it is not among the settings that the user named (`model_fields_set`).
        """
        chosen = self.model_fields_set & {"tolerance", "exchanges", "max_exchanges"}
        if not chosen and self.protocol in ("push-sum", "push-pull") and self.privacy.name == "none":
            object.__setattr__(self, "max_exchanges", MAX_EXCHANGES)
        return self


class SimulationSettings(Strict):
    """The peers and their data, read by `simulate` only."""

    peers: int | None = Field(
        default=None, ge=1, le=100_000, description="number of peers; default: 16, or the split's own number"
    )
    dataset: ChoiceField = Field(default="digits", validate_default=True, description="a data set, or a file")
    split: _ChainField | None = Field(
        default=None, description="how examples are divided among the peers; default: the data set's own split"
    )
    validation: float | None = Field(
        default=None,
        ge=0,
        le=0.9,
        description="fraction of each peer's training examples held out, to choose settings and the best round; "
        f"default: {TABLE_VALIDATION} of a table of your own where a peer has {TABLE_VALIDATION_ROWS} or more, else 0",
    )
    fold: int = Field(
        default=0,
        ge=0,
        le=999,
        description="which of the 1 / validation parts of a peer's training examples is held out: 0, 1, ... "
        "(cross-validation)",
    )
    networks: dict[str, ChoiceField] = Field(
        default={},
        description="networks of some peers' own, bigger or smaller, by peer or by partial model, whose members have "
        "it: {peer3: 'mlp:64+50+10'}; the shared slices must fit all of them",
    )
    normalise: Literal["none", "standard", "minmax"] | None = Field(
        default=None,
        description="scaling of the inputs, fitted on each peer's own training examples; default: standard for your "
        "own files and for regression, else none",
    )
    metrics: MetricsField = Field(
        default=(),
        description="further metrics of each peer's last model on its own test part, such as [auc, f1]; default: none, "
        "but balanced-accuracy where classes have weights, and log-loss, brier and ece for a Bayesian algorithm",
    )
    tracking: TrackingField = Field(
        default=(),
        description="experiment trackers that get settings and scores, such as tensorboard, or [tensorboard, "
        "{mlflow: {uri: http://host:5000}}]; default: none",
    )


#: The network that learns from a table of numbers unless another is chosen (`python -m benchmarks.tables`).
TABLE_NETWORK = Choice("mlp", None, {"hidden": "64+32", "activation": "relu"})
TABLE_LEARNING: Mapping[str, Any] = {
    "optimizer": Choice("adam", None, {"lr": "0.003"}),
    "batch_size": 16,
    "steps_between_averaging": "pass",
    "class_weights": "auto",
}


class FederationSettings(Strict):
    """The content of `federation.yaml`, setting by setting."""

    name: str = Field(default="federation", min_length=1, max_length=100, description="a name for people")
    network: ChoiceField | None = Field(default=None, description="the network; default: one that fits the data set")
    partial_models: dict[str, PartialModelSettings] = Field(
        default={}, description="slices and the peers that share them; weights outside them are local to each peer"
    )
    learning: LearningSettings = Field(default=LearningSettings(), description="how peers learn")
    gossip: GossipSettings = Field(default=GossipSettings(), description="how peers average")
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="seed of all random numbers")
    simulation: SimulationSettings = Field(default=SimulationSettings(), description="read by `simulate` only")

    @model_validator(mode="after")
    def _suited(self) -> Self:
        """Fill in defaults that suit a user's own table, where the user chose nothing.

        The papers' defaults suit the papers' tasks: sigmoid units, one example a step. These are defaults, too: they
        are not among the settings that the user named (`model_fields_set`). Texts need a network for tokens, which is
        the default of such data.
        """
        dataset = self.simulation.dataset
        if dataset.name in TABLES:
            if "text" not in dataset.settings and not self.model_fields_set & {"network", "partial_models"}:
                object.__setattr__(self, "network", TABLE_NETWORK)
            learning = self.learning.model_copy()  # it may be the caller's own
            for name, value in TABLE_LEARNING.items():
                if name not in learning.model_fields_set:
                    object.__setattr__(learning, name, value)
            object.__setattr__(self, "learning", learning)
        return self

    def models(self) -> tuple[PartialModel, ...]:
        """Return the partial models as `slicing` takes them, without those whose members the peers are to find."""
        return tuple(
            PartialModel(
                name,
                tuple(each.depends_on),
                each.neurons if each.neurons == "all" else {part: _claim(of) for part, of in each.neurons.items()},
                tuple(each.modules),
                "all" if isinstance(each.members, str) else tuple(each.members),
                tuple(each.parameters),
            )
            for name, each in self.partial_models.items()
            if not each.automatic
        )

    def own_networks(self) -> dict[str, Choice]:
        """Return the network of each simulated peer that has one of its own."""
        found: dict[str, Choice] = {}
        for name, choice in self.simulation.networks.items():
            found |= dict.fromkeys(self.peers_of(name), choice)
        return found

    def peers_of(self, name: str) -> Sequence[str]:
        """Return the members of the partial model of that name, if there is one, or else the peer of that name."""
        model = self.partial_models.get(name)
        return [name] if model is None or isinstance(model.members, str) else model.members

    @property
    def automatic(self) -> tuple[str, ...]:
        """Names of the partial models whose members the peers are to find."""
        return tuple(name for name, each in self.partial_models.items() if each.automatic)

    def decided(self, name: str, groups: Sequence[Sequence[str]] | Literal["all"]) -> Self:
        """Return the federation with this model replaced by one per group, `name1`, `name2`, ..., or given to all."""
        each = self.partial_models[name]
        if groups == "all":
            found = {name: each.model_copy(update={"members": "all"})}
        else:
            found = {
                f"{name}{number}": each.model_copy(update={"members": list(group)})
                for number, group in enumerate(groups, 1)
            }
        rest = {other: model for other, model in self.partial_models.items() if other != name}
        return self.model_copy(update={"partial_models": {**rest, **found}})

    def digest(self) -> str:
        """Return the BLAKE2b-256 digest, in hex, of everything but `simulation`.

        `fedpeer config check` prints its beginning; peers compare contracts (`contract.py`). It does not depend on the
        order of keys in the file.
        """
        return _digest(self.model_dump(mode="json", exclude={"simulation"}))


class RunOptions(Strict):
    """Options of a simulation beside its federation: how many runs, on which device, by which engine."""

    repeats: int = Field(default=1, ge=1, le=1_000, description="number of seeds: S, S+1, ...")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(default="auto", description="where models are trained")
    workers: int | None = Field(default=None, ge=1, le=1_024, description="training processes; default: one per core")
    engine: EngineName = Field(default="vector", description="how the peers are simulated")
    faults: str = Field(default="", description="faults of the simulated network; default: none")
    address: str = Field(default="", description="a Ray cluster, HOST:PORT or auto; default: one on this machine")
    shards: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Ray processes that share one run; default: whole runs are spread",
    )


def _claim(neurons: _Neurons) -> NeuronClaim:
    return tuple(neurons) if isinstance(neurons, list) else neurons


def _digest(contract: Any) -> str:
    text = json.dumps(contract, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
