"""A trained network that includes its peer's scales: from raw inputs to probabilities, or numbers in the data's units.

Prediction and export use the same network, so both give the same results.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.algorithms.batches import BatchView
from fedpeer.algorithms.losses import Loss
from fedpeer.runs.disk import replacing

#: Version of ONNX's set of operators: the newest that the common runtimes of 2024 know.
_ONNX_OPSET = 18


class ExportError(Exception):
    """The user's model cannot be written in this format; the message has the reason and the way out."""


class Program(nn.Module):
    """Network from raw inputs (N, *F) to probabilities (N, C), or to numbers (N, outputs) in the data's units.

    The loss decides how outputs become probabilities. For classes: by softmax, or for losses with independent outputs
    (`Loss.sigmoids`) by the sigmoid, divided by the sum over the classes. For labels: each by the sigmoid.
    """

    shift_F: Tensor
    scale_F: Tensor
    feature_map_F: Tensor
    target_shift_O: Tensor

    def __init__(
        self,
        network: nn.Module,
        view: BatchView | None,
        loss: Loss,
        *,
        shift: float | tuple[float, ...],
        scale: float,
    ) -> None:
        """
        Args:
            shift: of the numbers to predict, or of each of them.
        """
        super().__init__()
        self.network = network.eval()
        view = view or BatchView()
        for name, field in zip(("feature_map_F", "shift_F", "scale_F"), view.fields(), strict=True):
            if field is not None:
                self.register_buffer(name, field)
        self._mapped, self._scaled = view.feature_map_F is not None, view.scale_F is not None
        self._classifies, self._marks, self._sigmoids = loss.classifies or loss.continues, loss.marks, loss.sigmoids
        self._shift, self._scale = shift, scale
        if isinstance(shift, tuple):
            self.register_buffer("target_shift_O", torch.tensor(shift))

    def forward(self, inputs: Tensor) -> Tensor:
        z: Tensor = self.network(self._seen(inputs))
        if self._marks:
            return z.sigmoid()
        if not self._classifies:
            return z * self._scale + (self.target_shift_O if isinstance(self._shift, tuple) else self._shift)
        if z.shape[-1] == 1:
            return torch.cat([(-z).sigmoid(), z.sigmoid()], dim=-1)
        return (functional.logsigmoid(z) if self._sigmoids else z).softmax(-1)

    def _seen(self, inputs: Tensor) -> Tensor:
        x = inputs.flatten(1)
        if self._mapped:
            x = x[:, self.feature_map_F]
        if self._scaled:
            x = (x - self.shift_F) / self.scale_F
        return x.reshape(inputs.shape)


def write_state_dict(network: nn.Module, path: Path) -> None:
    """Write a file for `module.load_state_dict(safetensors.torch.load_file(path))` in plain PyTorch, strictly."""
    tensors = {name: value.detach().clone().contiguous() for name, value in network.state_dict().items()}
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors))


def write_pt2(program: Program, example: Tensor, path: Path) -> None:
    """Write a program for `torch.export.load(path).module()`, which takes any number of examples.

    Raises:
        ExportError: torch cannot export this network.
    """
    try:
        with warnings.catch_warnings():  # torch warns about its own recurrent layers and its own deprecations
            warnings.simplefilter("ignore")
            exported = torch.export.export(program, (example,), dynamic_shapes=({0: torch.export.Dim("examples")},))
    except Exception as problem:  # a user's own network may raise anything
        raise ExportError(
            f"torch.export cannot export this network: {first_line(problem)}; use --format safetensors"
        ) from problem
    with replacing(path) as temporary, temporary.open("wb") as file:
        torch.export.save(exported, file)


def write_onnx(program: Program, example: Tensor, path: Path) -> None:
    """Write an ONNX graph with the input "inputs" and the output "outputs", which takes any number of examples.

    Raises:
        ExportError: the extra is not installed, or torch cannot export this network.
    """
    if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxscript")):
        raise ExportError("writing ONNX needs onnx and onnxscript; run pip install fedpeer[onnx]")
    # The exporter warns about the operators of each missing package, although the graph needs none of them.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.onnx.export(
                program,
                (example,),
                input_names=["inputs"],
                output_names=["outputs"],
                dynamic_shapes=({0: torch.export.Dim("examples")},),
                opset_version=_ONNX_OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as problem:
        raise ExportError(
            f"torch.onnx cannot export this network: {first_line(problem)}; use --format pt2 or safetensors"
        ) from problem
    assert exported is not None, "dynamo gives a program"
    with replacing(path) as temporary:
        exported.save(temporary)


def first_line(problem: Exception) -> str:
    """Return the first line of an error's text, at most 200 letters, or its kind if it has no text."""
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)[:200]
