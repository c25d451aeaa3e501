"""The experiments by name. Imports none of them before it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from fedpeer.config.choice import ChoiceError, nearest
from fedpeer.sims.experiments.experiment import Experiment
from fedpeer.sims.experiments.figure import Figure

#: Name -> where its `Experiment` is.
EXPERIMENTS: Mapping[str, str] = {
    "pfedvem-table1": "fedpeer.sims.experiments.pfedvem:TABLE1",
    "pfedvem-cifar100": "fedpeer.sims.experiments.pfedvem:CIFAR100",
    "virtual-table2": "fedpeer.sims.experiments.virtual:TABLE2",
    "virtual-table3": "fedpeer.sims.experiments.virtual:TABLE3",
    "mocha-table": "fedpeer.sims.experiments.mocha:TABLE",
    "mocha-time": "fedpeer.sims.experiments.mocha_time:TIME",
    "fig7": "fedpeer.sims.experiments.summary_figure:FIG7",
    "fig8": "fedpeer.sims.experiments.writer_figures:FIG8",
    "fig9": "fedpeer.sims.experiments.writer_figures:FIG9",
    "fig10": "fedpeer.sims.experiments.writer_figures:FIG10",
    "fig11": "fedpeer.sims.experiments.writer_figures:FIG11",
    "fig12": "fedpeer.sims.experiments.writer_figures:FIG12",
    "fig13": "fedpeer.sims.experiments.writer_figures:FIG13",
    "fig14": "fedpeer.sims.experiments.writer_figures:FIG14",
    "fig15": "fedpeer.sims.experiments.writer_figures:FIG15",
    "fig16": "fedpeer.sims.experiments.writer_figures:FIG16",
    "fig17": "fedpeer.sims.experiments.mnist_figures:FIG17",
    "fig18": "fedpeer.sims.experiments.mnist_figures:FIG18",
    "fig19": "fedpeer.sims.experiments.mnist_figures:FIG19",
    "fig20": "fedpeer.sims.experiments.semi_local_figures:FIG20",
    "fig21": "fedpeer.sims.experiments.semi_local_figures:FIG21",
    "fig22": "fedpeer.sims.experiments.mnist_figures:FIG22",
    "fig23": "fedpeer.sims.experiments.mnist_figures:FIG23",
    "fig24": "fedpeer.sims.experiments.mnist_figures:FIG24",
    "fig25": "fedpeer.sims.experiments.mnist_figures:FIG25",
    "fig26": "fedpeer.sims.experiments.sensor_figures:FIG26",
    "fig27": "fedpeer.sims.experiments.associative_figure:FIG27",
    "push-sum": "fedpeer.sims.experiments.gossip_figures:PUSH_SUM",
    "message-loss": "fedpeer.sims.experiments.gossip_figures:MESSAGE_LOSS",
    "stragglers": "fedpeer.sims.experiments.gossip_figures:STRAGGLERS",
    "bytes": "fedpeer.sims.experiments.bytes_figure:BYTES",
    "assignment": "fedpeer.sims.experiments.assignment_figure:ASSIGNMENT",
    "lstm-slices": "fedpeer.sims.experiments.recurrent_figure:LSTM",
}


def experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ChoiceError: there is none.
    """
    if name not in EXPERIMENTS:
        raise ChoiceError(f'there is no experiment "{name}"; {nearest(name, list(EXPERIMENTS))}')
    module, _, attribute = EXPERIMENTS[name].partition(":")
    found: Experiment | Figure = getattr(importlib.import_module(module), attribute)
    return found if isinstance(found, Experiment) else found.experiment()
