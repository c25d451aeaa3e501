"""fedpeer: learning together without pooling data.

The names listed here are the public API; everything else may change between versions. They are imported when they are
first used (PEP 562), so that `import fedpeer` is quick and `fedpeer --help` needs no torch.

    simulate        simulate many peers on this machine and compare methods
    Results         results of a simulation: scores, trained parameters, the run's folder
    Federation      what all peers agree on: the content of federation.yaml
    ConfigError     all mistakes in the settings, each with the way out
    Dataset         examples and their description
    Share, Split    one peer's part of a data set, and those of all peers
    PartialModel    a slice of the network that some peers share
    CoordinatedAlgorithm    the contract of an algorithm with a server
    AlgorithmError  settings that such an algorithm cannot work with
    OwnTraining     FedAvg whose clients train by a loop of your own: write `fit`
    TrainingContext       the network and the training that such an algorithm is built on
"""

from typing import TYPE_CHECKING, Any

from fedpeer.version import __version__ as __version__

if TYPE_CHECKING:
    from fedpeer.algorithms.coordinated import AlgorithmError, CoordinatedAlgorithm
    from fedpeer.algorithms.servers.own_training import OwnTraining
    from fedpeer.algorithms.training_context import TrainingContext
    from fedpeer.data.dataset import Dataset, Share, Split
    from fedpeer.config.federation import Federation
    from fedpeer.config.problems import ConfigError
    from fedpeer.sims.api import simulate
    from fedpeer.sims.results import Results
    from fedpeer.slicing.models import PartialModel

#: Name -> module that defines it.
_PUBLIC = {
    "AlgorithmError": "fedpeer.algorithms.coordinated",
    "ConfigError": "fedpeer.config.problems",
    "CoordinatedAlgorithm": "fedpeer.algorithms.coordinated",
    "Dataset": "fedpeer.data.dataset",
    "Federation": "fedpeer.config.federation",
    "OwnTraining": "fedpeer.algorithms.servers.own_training",
    "PartialModel": "fedpeer.slicing.models",
    "Results": "fedpeer.sims.results",
    "Share": "fedpeer.data.dataset",
    "Split": "fedpeer.data.dataset",
    "TrainingContext": "fedpeer.algorithms.training_context",
    "simulate": "fedpeer.sims.api",
}

__all__ = [
    "AlgorithmError",
    "ConfigError",
    "CoordinatedAlgorithm",
    "Dataset",
    "Federation",
    "OwnTraining",
    "PartialModel",
    "Results",
    "Share",
    "Split",
    "TrainingContext",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'fedpeer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
