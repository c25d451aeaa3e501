"""A trained network with its peer's scales inside: raw inputs in, probabilities or numbers in the data's units out.

It is what predicts here and what is exported, so both give the same answers.
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
from fedpeer.runs.disk import replacing

#: Version of ONNX's set of operators: the newest that the common runtimes of 2024 know.
_ONNX_OPSET = 18


class ExportError(Exception):
    """The user's model cannot be written in this form; the message says why and what can be done."""


class Program(nn.Module):
    """`(N, *F)` raw inputs -> (N, C) probabilities, or (N, outputs) numbers in units of the data.

    A classifier's outputs become probabilities as its loss understands them: by softmax, or for losses whose outputs
    are independent (`sigmoids`) by the sigmoid, divided by their sum.
    """

    shift_F: Tensor
    scale_F: Tensor
    feature_map_F: Tensor

    def __init__(
        self,
        network: nn.Module,
        view: BatchView | None,
        *,
        classifies: bool,
        sigmoids: bool,
        shift: float,
        scale: float,
    ) -> None:
        super().__init__()
        self.network = network.eval()
        view = view or BatchView()
        for name, field in zip(("feature_map_F", "shift_F", "scale_F"), view.fields(), strict=True):
            if field is not None:
                self.register_buffer(name, field)
        self._mapped, self._scaled = view.feature_map_F is not None, view.scale_F is not None
        self._classifies, self._sigmoids, self._shift, self._scale = classifies, sigmoids, shift, scale

    def forward(self, inputs: Tensor) -> Tensor:
        z: Tensor = self.network(self._seen(inputs))
        if not self._classifies:
            return z * self._scale + self._shift
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
    """What `module.load_state_dict(safetensors.torch.load_file(path))` takes, in plain PyTorch, strictly."""
    tensors = {name: value.detach().clone().contiguous() for name, value in network.state_dict().items()}
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors))


def write_pt2(program: Program, example: Tensor, path: Path) -> None:
    """A program for `torch.export.load(path).module()`; any number of examples at once.

    Raises:
        ExportError: torch cannot export this network.
    """
    try:
        with warnings.catch_warnings():  # of torch about its own recurrent layers, and of its own deprecations
            warnings.simplefilter("ignore")
            exported = torch.export.export(program, (example,), dynamic_shapes=({0: torch.export.Dim("examples")},))
    except Exception as problem:  # whatever torch finds in a user's own network
        raise ExportError(
            f"torch.export cannot export this network: {_first_line(problem)}; use --format safetensors"
        ) from problem
    with replacing(path) as temporary, temporary.open("wb") as file:
        torch.export.save(exported, file)


def write_onnx(program: Program, example: Tensor, path: Path) -> None:
    """A graph with the input "inputs" and the output "outputs"; any number of examples at once.

    Raises:
        ExportError: the extra is not installed, or torch cannot export this network.
    """
    if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxscript")):
        raise ExportError("writing ONNX needs onnx and onnxscript; run pip install fedpeer[onnx]")
    # It warns of each operator of a package that is not there; nobody asked for them.
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
            f"torch.onnx cannot export this network: {_first_line(problem)}; use --format pt2 or safetensors"
        ) from problem
    assert exported is not None, "dynamo gives a program"
    with replacing(path) as temporary:
        exported.save(temporary)


def _first_line(problem: Exception) -> str:
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)[:200]
