"""The experiments by name; each is imported only when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from fedpeer.config.choice import ChoiceError, nearest_name
from fedpeer.experiments.experiment import Experiment
from fedpeer.experiments.figure import Figure

#: Name -> where its `Experiment` is.
EXPERIMENTS: Mapping[str, str] = {
    "pfedvem-table1": "fedpeer.experiments.pfedvem:TABLE1",
    "pfedvem-cifar100": "fedpeer.experiments.pfedvem:CIFAR100",
    "virtual-table2": "fedpeer.experiments.virtual:TABLE2",
    "virtual-table3": "fedpeer.experiments.virtual:TABLE3",
    "mocha-table": "fedpeer.experiments.mocha:TABLE",
    "mocha-time": "fedpeer.experiments.mocha_time:TIME",
    "fig7": "fedpeer.experiments.summary_figure:FIG7",
    "fig8": "fedpeer.experiments.writer_figures:FIG8",
    "fig9": "fedpeer.experiments.writer_figures:FIG9",
    "fig10": "fedpeer.experiments.writer_figures:FIG10",
    "fig11": "fedpeer.experiments.writer_figures:FIG11",
    "fig12": "fedpeer.experiments.writer_figures:FIG12",
    "fig13": "fedpeer.experiments.writer_figures:FIG13",
    "fig14": "fedpeer.experiments.writer_figures:FIG14",
    "fig15": "fedpeer.experiments.writer_figures:FIG15",
    "fig16": "fedpeer.experiments.writer_figures:FIG16",
    "fig17": "fedpeer.experiments.mnist_figures:FIG17",
    "fig18": "fedpeer.experiments.mnist_figures:FIG18",
    "fig19": "fedpeer.experiments.mnist_figures:FIG19",
    "fig20": "fedpeer.experiments.semi_local_figures:FIG20",
    "fig21": "fedpeer.experiments.semi_local_figures:FIG21",
    "fig22": "fedpeer.experiments.mnist_figures:FIG22",
    "fig23": "fedpeer.experiments.mnist_figures:FIG23",
    "fig24": "fedpeer.experiments.mnist_figures:FIG24",
    "fig25": "fedpeer.experiments.mnist_figures:FIG25",
    "fig26": "fedpeer.experiments.sensor_figures:FIG26",
    "fig27": "fedpeer.experiments.associative_figure:FIG27",
    "push-sum": "fedpeer.experiments.gossip_figures:PUSH_SUM",
    "message-loss": "fedpeer.experiments.gossip_figures:MESSAGE_LOSS",
    "stragglers": "fedpeer.experiments.gossip_figures:STRAGGLERS",
    "bytes": "fedpeer.experiments.bytes_figure:BYTES",
    "assignment": "fedpeer.experiments.assignment_figure:ASSIGNMENT",
    "slice-rhythms": "fedpeer.experiments.rhythm_table:TABLE",
    "crossed": "fedpeer.experiments.crossed:CROSSED",
    "adapters": "fedpeer.experiments.adapters:ADAPTERS",
    "pretrained": "fedpeer.experiments.pretrained:PRETRAINED",
    "flights": "fedpeer.experiments.flights:FLIGHTS",
    "dfl-table": "fedpeer.experiments.dfl:TABLE",
    "lstm-slices": "fedpeer.experiments.sequence_figures:LSTM",
    "attention-slices": "fedpeer.experiments.sequence_figures:ATTENTION",
}


def experiment(name: str) -> Experiment:
    """Return the experiment of that name.

    Raises:
        ChoiceError: there is no such experiment.
    """
    if name not in EXPERIMENTS:
        raise ChoiceError(f'there is no experiment "{name}"; {nearest_name(name, list(EXPERIMENTS))}')
    module, _, attribute = EXPERIMENTS[name].partition(":")
    found: Experiment | Figure = getattr(importlib.import_module(module), attribute)
    return found if isinstance(found, Experiment) else found.experiment()
