"""The model of each peer's best round of a simulation, chosen on the examples that are held out for validation.

The run's folder has it at any time, so a resumed run has it, too. A run without such examples has no best models:
chosen on test examples, their scores would be optimistic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedpeer.learning.models import BestRound
from fedpeer.runs.disk import RunError, read_json, write_json
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.engine import Engine
from fedpeer.sims.record import card, models
from fedpeer.sims.world import World


class BestModels:
    """Keeps the best models of one method with one seed."""

    def __init__(self, run: RunFolder, world: World, method: str, seed: int, *, resumed: bool) -> None:
        """
        Args:
            resumed: whether the run is resumed, with the best models so far.
        """
        self._run, self._world, self._cell = run, world, (method, seed)
        self._path = run.models(method, seed, best=True)
        self._rounds = self._path.with_name(f"{self._path.stem}-rounds.json")
        self._measure = "error" if world.dataset.task == "regression" else "accuracy"
        self._kept: dict[str, torch.Tensor] = {}
        self._best: dict[str, BestRound] = {}
        if resumed:
            self._read()

    def _read(self) -> None:
        if not self._rounds.exists():  # no round was evaluated yet
            return
        try:
            self._best = {peer: BestRound(**found) for peer, found in read_json(self._rounds).items()}
            self._kept = load_file(self._path)
        except (OSError, ValueError, TypeError, SafetensorError):
            raise RunError(f"the best models in {self._path} are damaged; begin the run again") from None

    def _better(self, row: Mapping[str, Any], engine: Engine) -> Mapping[str, tuple[BestRound, torch.Tensor]]:
        """Return the models (n,) of the peers for which this round is the best so far."""
        counts, better = self._measure == "accuracy", dict[str, tuple[BestRound, torch.Tensor]]()
        scores = row[f"validation_{self._measure}"], row["validation_loss"]
        for peer, score, loss, x_n in zip(self._world.peers, *scores, engine.x_Pn, strict=True):
            found = BestRound.of(row["round"], score, loss)
            if found is not None and found.beats(self._best.get(peer), counts=counts):
                better[peer] = found, x_n
        return better

    def consider(self, row: Mapping[str, Any], engine: Engine) -> None:
        """Keep the models of the peers for which this round is the best so far, or those that peers keep themselves.

        Args:
            row: the round's row.
        """
        if row.get(f"validation_{self._measure}") is None:
            return
        kept = engine.best_models(self._best)
        better = self._better(row, engine) if kept is None else kept
        if not better:
            return
        self._best |= {peer: best for peer, (best, _) in better.items()}
        self._kept |= models(self._world, {peer: x_n.clone() for peer, (_, x_n) in better.items()})
        self._run.save_models(*self._cell, self._kept, card(self._world), best=True)
        write_json(self._rounds, {peer: each.model_dump(mode="json") for peer, each in self._best.items()})
