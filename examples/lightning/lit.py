"""A module of PyTorch Lightning, trained in a federation by Lightning's own `Trainer`.

`Digits` is a module as in Lightning's tutorials; nothing in it knows of fedpeer. `LightningPeers` trains it.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import KW_ONLY, dataclass

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedpeer


class Digits(pl.LightningModule):
    """A small network with its loss and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(64, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.relu(self.hidden(x)))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


@dataclass(frozen=True)
class LightningPeers(fedpeer.OwnTraining):
    """FedAvg whose clients train by Lightning's `Trainer`."""

    _: KW_ONLY
    epochs: int = 1
    batch_size: int = 16

    def fit(self, module: nn.Module, x: Tensor, y: Tensor, round: int) -> None:
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        batches = DataLoader(TensorDataset(x, y), batch_size=self.batch_size, shuffle=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as that its loader has no workers of its own
            trainer = pl.Trainer(
                max_epochs=self.epochs,
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(module, batches)
