"""A segmentation network of MONAI in a federation of hospitals that mark different structures.

Each hospital has volumes with the same three structures, and masks of two of them: which two is its label set. All
share the U-Net; the head on top of it, with an output for each marked structure, is shared by the hospitals with the
same label set.

The volumes are synthetic: a bright ellipsoid, a dark ball, and a tube that is brighter still, on noise; what is named
later covers the others.
"""

from __future__ import annotations

import numpy as np
import torch
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import fedpeer

#: Edge of a volume in voxels, number of hospitals, and volumes of each.
EDGE, HOSPITALS, VOLUMES = 16, 6, 12
#: Label sets: the two structures, of ellipsoid 0, ball 1 and tube 2, that a hospital marks, in its order.
LABELS, MARKED = ((0, 1), (2, 0), (1, 2)), 2
#: Outputs of a network: a logit for each voxel of each marked structure.
OUTPUTS = MARKED * EDGE**3


class Segmenter(nn.Module):
    """A small U-Net, and a head with an output per voxel for each structure of the label set."""

    def __init__(self) -> None:
        super().__init__()
        self.body = UNet(
            spatial_dims=3, in_channels=1, out_channels=8, channels=(8, 16, 32), strides=(2, 2), norm="instance"
        )
        self.head = nn.Sequential(
            nn.Conv3d(8, 8, kernel_size=3, padding=1), nn.ReLU(), nn.Conv3d(8, MARKED, kernel_size=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map volumes, (B, 1, E, E, E), to logits of each voxel of each structure, (B, 2 * E^3)."""
        return self.head(torch.relu(self.body(x))).flatten(1)


def dice_and_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of MONAI's Dice loss and the binary cross-entropy of each example, (B,)."""
    z, y = (each.reshape(len(outputs), MARKED, EDGE, EDGE, EDGE) for each in (outputs, targets))
    entropy = functional.binary_cross_entropy_with_logits(z, y, reduction="none").flatten(1).mean(1)
    dice = DiceLoss(sigmoid=True, reduction="none")(z, y)
    return entropy + dice.flatten(1).mean(1)


def dice(y: NDArray[np.generic], answers: NDArray[np.generic]) -> float:
    """Return the mean Dice coefficient over examples and structures."""
    truth, found = (np.asarray(each).reshape(-1, EDGE**3) > 0.5 for each in (y, answers))
    sizes = truth.sum(1) + found.sum(1)
    return float(np.mean(2 * (truth & found).sum(1)[sizes > 0] / sizes[sizes > 0]))


def volumes(seed: int = 0) -> fedpeer.Dataset:
    """Return the volumes of all hospitals and their masks, of the two structures that each marks."""
    draws = np.random.default_rng(seed)
    x, masks = (np.stack(each) for each in zip(*(_volume(draws) for _ in range(HOSPITALS * VOLUMES)), strict=True))
    hospital_N = np.repeat(np.arange(HOSPITALS), VOLUMES)
    y = np.stack([mask[list(LABELS[hospital % len(LABELS)])] for mask, hospital in zip(masks, hospital_N, strict=True)])
    voxels = EDGE**3
    return fedpeer.Dataset(
        name="volumes",
        x=x[:, None].astype(np.float32),
        y=y.reshape(len(y), -1).astype(np.float32),
        task="multi-label",
        input_kind="features",
        classes=tuple(f"{place}, voxel {voxel}" for place in ("first", "second") for voxel in range(voxels)),
        user_N=hospital_N,
        user_names=tuple(f"hospital{number + 1}" for number in range(HOSPITALS)),
    )


def _volume(draws: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return one volume, (E, E, E), and the masks of its structures, (3, E, E, E)."""
    place = np.stack(np.meshgrid(*[np.arange(EDGE)] * 3, indexing="ij"), -1) + 0.5
    middle = draws.uniform(4, EDGE - 4, (3, 3))
    ellipsoid = (((place - middle[0]) / draws.uniform(2.5, 4.5, 3)) ** 2).sum(-1) < 1
    ball = ((place - middle[1]) ** 2).sum(-1) < draws.uniform(2, 3) ** 2
    along = draws.integers(3)
    tube = (np.delete(place - middle[2], along, -1) ** 2).sum(-1) < draws.uniform(1, 1.6) ** 2
    x, marked = draws.normal(0, 0.3, (EDGE,) * 3), np.zeros((EDGE,) * 3, dtype=int)
    for number, (inside, bright) in enumerate(((ellipsoid, 1.0), (ball, -1.0), (tube, 2.0)), 1):
        x[inside], marked[inside] = draws.normal(bright, 0.3, inside.sum()), number
    return x, np.stack([marked == number for number in (1, 2, 3)])
