"""Adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors.

`PeftModel.from_pretrained` loads the folders that are written here, and folders that PEFT saved are read here. Layers
that are trained beside the adapters, such as a classifier, are the format's `modules_to_save`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fedpeer.networks.lora import Adapted, TiedAdapted
from fedpeer.networks.registry import NetworkError
from fedpeer.runs.disk import replacing, write_json

SETTINGS, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
#: The two factors of a layer's adapter: parameters for an embedding, weights of modules for other layers.
_FACTORS = ("lora_A.weight", "lora_B.weight")
_EMBEDDED = ("lora_embedding_A", "lora_embedding_B")
#: Settings of the format that change what an adapter computes, or what it is added to (PiSSA and others also change the
#: layer itself when they begin), and the values that are supported.
_PLAIN: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "lora_bias": (False, None),
    "use_qalora": (False, None),
    "alora_invocation_tokens": (None,),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal", "mica"),
}


@dataclass(frozen=True, eq=False)
class AdapterFile:
    """An adapter that was read.

    layers    names of the layers that have adapters
    rank      rank of each adapter
    scale     factor of each adapter
    tensors   by name in the model with its adapters: `LAYER.lora_A.weight`, and tensors of layers that were trained
              whole
    """

    layers: tuple[str, ...]
    rank: int
    scale: float
    tensors: Mapping[str, Tensor]


def adapters_in(module: nn.Module) -> dict[str, Adapted]:
    """Return the layers of a module that have adapters, by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, Adapted)}


# ------------------------------------------------------------------------------------------------------------- writing


def write_adapter(model: nn.Module, folder: Path, *, base: str, task: str | None, turned: bool = False) -> None:
    """Write the adapters of a model, and the layers that were trained beside them.

    Args:
        model: the model itself: the format uses its names.
        folder: the folder to write into.
        base: where the model without adapters is.
        task: the format's name of the task, such as SEQ_CLS; None: the format has no name for it.
        turned: whether the weights of the layers are transposed in the format.

    Raises:
        NetworkError: there are no adapters, they differ in rank, or other parameters than whole layers were trained.
    """
    adapted = adapters_in(model)
    if not adapted:
        raise NetworkError("the network has no adapters, which PEFT's format is for; use --format safetensors")
    if any(isinstance(layer, TiedAdapted) for layer in model.modules()):
        raise NetworkError(
            "an adapter changes a weight that several layers have in common, which PEFT's format cannot say; use "
            "--format safetensors"
        )
    kinds = {(_rank(layer), layer.scale) for layer in adapted.values()}
    if len(kinds) > 1:
        raise NetworkError("the adapters differ in rank or factor; use --format safetensors")
    ((rank, scale),) = kinds
    whole = _trained_beside(model, adapted)
    tensors = dict[str, Tensor]()
    for name, layer in adapted.items():
        tensors |= {f"{name}.{key}": value for key, value in _factors(layer).items()}
    for name in whole:
        tensors |= {f"{name}.{key}": value for key, value in model.get_submodule(name).state_dict().items()}
    settings = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank * scale,
        "lora_dropout": 0.0,
        "target_modules": sorted(adapted),
        "modules_to_save": whole or None,
        "bias": "none",
        "fan_in_fan_out": turned,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / TENSORS) as temporary:
        packed = {f"{_PREFIX}{name}": value.detach().clone().contiguous() for name, value in tensors.items()}
        temporary.write_bytes(save(packed, {"format": "pt"}))
    write_json(folder / SETTINGS, settings)


def _rank(layer: Adapted) -> int:
    a = cast(Tensor, layer.lora_A.weight)
    return int(a.shape[1] if isinstance(layer.base, nn.Embedding) else a.shape[0])


def _factors(layer: Adapted) -> dict[str, Tensor]:
    """Return the two factors of an adapter by their names in the format."""
    a, b = cast(Tensor, layer.lora_A.weight), cast(Tensor, layer.lora_B.weight)
    if isinstance(layer.base, nn.Embedding):
        return dict(zip(_EMBEDDED, (a.T, b), strict=True))
    return dict(zip(_FACTORS, (a, b), strict=True))


def _trained_beside(model: nn.Module, adapted: Mapping[str, Adapted]) -> list[str]:
    """Return the layers that were trained whole, without adapters: the outermost of them.

    Raises:
        NetworkError: a layer was trained in part.
    """
    inside = tuple(f"{name}." for name in adapted)
    found = list[str]()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or name.startswith((*inside, *(f"{each}." for each in found))):
            continue
        parents = name.split(".")[:-1]
        layers = (".".join(parents[:depth]) for depth in range(1, len(parents) + 1))
        whole = next((layer for layer in layers if _all_trained(model.get_submodule(layer))), None)
        if whole is None:
            raise NetworkError(
                f"{name} was trained beside the adapters, but not its whole layer, which PEFT's format cannot say; use "
                "--format safetensors"
            )
        found.append(whole)
    return found


def _all_trained(layer: nn.Module) -> bool:
    return all(parameter.requires_grad for parameter in layer.parameters())


# ------------------------------------------------------------------------------------------------------------- reading


def read_adapter(folder: Path) -> AdapterFile:
    """Read an adapter.

    Raises:
        NetworkError: a file is missing or damaged, or the adapter is of a kind that is not supported.
    """
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        held = load_file(folder / TENSORS)
    except FileNotFoundError as problem:
        raise NetworkError(
            f"network hf: adapter={folder}: there is no {problem.filename or folder / TENSORS}; name a folder into "
            "which an adapter was saved with save_pretrained, or by fedpeer export --format peft"
        ) from None
    except (OSError, ValueError, SafetensorError) as problem:
        raise NetworkError(f"network hf: adapter={folder}: it cannot be read ({problem}); save it again") from None
    if not isinstance(settings, dict):
        raise NetworkError(f"network hf: adapter={folder}: {SETTINGS} is damaged; save it again")
    for key, allowed in _PLAIN.items():
        if key in settings and settings[key] not in allowed:
            raise NetworkError(
                f"network hf: adapter={folder}: {key} is {settings[key]}, which is not supported; only plain LoRA is"
            )
    tensors = dict(_named_here(held, folder))
    layers = [name.removesuffix(f".{_FACTORS[0]}") for name in tensors if name.endswith(f".{_FACTORS[0]}")]
    if not layers:
        raise NetworkError(f"network hf: adapter={folder}: {TENSORS} has no adapters")
    rank, scale = _rank_and_scale(settings, folder)
    return AdapterFile(layers=tuple(layers), rank=rank, scale=scale, tensors=tensors)


def _named_here(held: Mapping[str, Tensor], folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of the format with their names in a model with adapters."""
    for name, value in held.items():
        plain = name.removeprefix(_PREFIX)
        if plain == name:
            raise NetworkError(f"network hf: adapter={folder}: {name} does not begin with {_PREFIX}; save it again")
        layer, _, last = plain.rpartition(".")
        if last == _EMBEDDED[0]:
            yield f"{layer}.{_FACTORS[0]}", value.T.contiguous()
        elif last == _EMBEDDED[1]:
            yield f"{layer}.{_FACTORS[1]}", value
        else:
            yield plain, value


def _rank_and_scale(settings: Mapping[str, Any], folder: Path) -> tuple[int, float]:
    """Return the rank of the adapters, and their factor: alpha / r, or alpha / sqrt(r) of rank-stabilised LoRA."""
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or rank < 1 or alpha <= 0:
        raise NetworkError(f"network hf: adapter={folder}: r is {rank} and lora_alpha {alpha}; save it again")
    return rank, alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


@torch.no_grad()
def put_adapter(model: nn.Module, adapter: AdapterFile) -> None:
    """Copy an adapter's tensors into a model whose layers have adapters.

    Raises:
        NetworkError: a tensor is not the model's, or of another shape.
    """
    own = model.state_dict()
    for name, value in adapter.tensors.items():
        if name not in own or own[name].shape != value.shape:
            there = f"of shape {tuple(own[name].shape)}" if name in own else "not there"
            raise NetworkError(
                f"network hf: the adapter's {name} has shape {tuple(value.shape)}, and in the model it is {there}; "
                "take the model that it was trained with, and data with the same classes"
            )
        own[name].copy_(value)
