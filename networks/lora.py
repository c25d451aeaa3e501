"""Low-rank adapters: a frozen layer and a trained product of two thin layers beside it.

`adapt` puts adapters around layers of any module; `merged` adds adapters into their layers. An adapter's two factors
are modules, `lora_A` and `lora_B`, so a partial model can own one of them, both, or some of the rank's dimensions. A
weight that several layers have in common (an embedding and the head) has one adapter, which changes it for all of them.

Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, section 4.1.
"""

from __future__ import annotations

import copy
import difflib
import fnmatch
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.networks.registry import NetworkError

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
#: Layers that can have an adapter.
ADAPTABLE = (nn.Linear, *_CONVOLUTIONS, nn.Embedding, nn.MultiheadAttention)


class _Changed(nn.Module):
    """A frozen layer whose weight an adapter changes, with weight and bias for a network that uses them elsewhere."""

    base: nn.Module
    lora_A: nn.Module
    lora_B: nn.Module
    scale: float
    #: Whether the factors belong to an embedding.
    embedded: bool

    def __getattr__(self, name: str) -> Any:
        """Return what the network may ask of the layer itself, such as `out_features`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "base" not in self._modules:  # it is being made, or copied
                raise
            return getattr(self.base, name)

    @property
    def weight(self) -> Tensor:
        return cast(Tensor, self.base.weight) + self.change()

    @property
    def bias(self) -> Tensor | None:
        return cast("Tensor | None", getattr(self.base, "bias", None))

    def change(self) -> Tensor:
        """Return the adapter's addition to the layer's weight, in the shape of the weight."""
        a, b = cast(Tensor, self.lora_A.weight), cast(Tensor, self.lora_B.weight)
        if self.embedded:
            return self.scale * (a @ b.mT)
        product: Tensor = torch.tensordot(b.flatten(1), a, dims=1)
        return self.scale * product


class Adapted(_Changed):
    """A frozen layer plus `scale * lora_B(lora_A(x))`; it begins as the layer itself, since lora_B begins with zeros.

    layer   Linear, Conv1d, Conv2d, Conv3d or Embedding, in one group; its parameters are frozen
    rank    outputs of lora_A and inputs of lora_B, >= 1
    scale   factor of the product: alpha / rank in the paper
    """

    def __init__(self, layer: nn.Module, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.rank, self.scale = layer.requires_grad_(False), rank, scale
        self.lora_A, self.lora_B = _factors(layer, rank)
        self.embedded = isinstance(layer, nn.Embedding)
        nn.init.zeros_(cast(Tensor, self.lora_B.weight))

    def forward(self, x: Tensor) -> Tensor:
        # The adapter comes first, so that a partial model finds the layer's outputs under the name of lora_B.
        change: Tensor = self.lora_B(self.lora_A(x)) * self.scale
        result: Tensor = change + self.base(x)
        return result


class TiedAdapted(_Changed):
    """A layer that shares its weight with a layer with an adapter: the same adapter changes it here, too.

    If one of the two layers is an embedding and the other is linear, the factors change places.
    """

    def __init__(self, layer: nn.Module, owner: Adapted) -> None:
        super().__init__()
        self.base, self.scale, self.embedded = layer.requires_grad_(False), owner.scale, owner.embedded
        self.lora_A, self.lora_B = owner.lora_A, owner.lora_B
        self.turned = isinstance(layer, nn.Embedding) != owner.embedded
        if not self.turned:  # a convolution may have a stride of its own
            self.lora_A, self.lora_B = _factors(layer, owner.rank)
            self.lora_A.weight, self.lora_B.weight = owner.lora_A.weight, owner.lora_B.weight

    def forward(self, x: Tensor) -> Tensor:
        a, b = cast(Tensor, self.lora_A.weight), cast(Tensor, self.lora_B.weight)
        if not self.turned:
            change = self.lora_B(self.lora_A(x))
        elif self.embedded:
            change = functional.linear(functional.linear(x, b.mT), a)
        else:
            change = functional.linear(functional.embedding(x, b), a.mT)
        result: Tensor = change * self.scale + self.base(x)
        return result


def _factors(layer: nn.Module, rank: int) -> tuple[nn.Module, nn.Module]:
    """Return the factors of a layer's adapter; the first has the layer's own input, the second its output."""
    if isinstance(layer, nn.Embedding):
        first = nn.Embedding(layer.num_embeddings, rank, padding_idx=layer.padding_idx)
        return first, nn.Linear(rank, layer.embedding_dim, bias=False)
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features, bias=False)
    assert isinstance(layer, _CONVOLUTIONS), "`adapt` has refused other layers"
    kind: Any = next(kind for kind in _CONVOLUTIONS if isinstance(layer, kind))
    windows = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
    first = kind(layer.in_channels, rank, layer.kernel_size, bias=False, **windows)
    return first, kind(rank, layer.out_channels, 1, bias=False)


class ProjectedAttention(nn.Module):
    """`nn.MultiheadAttention` with its four projections as linear layers, so that each can have an adapter.

    It takes the arguments of `nn.MultiheadAttention`, returns no attention weights, and gives the same numbers.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        width = attention.embed_dim
        if attention.bias_k is not None or attention.add_zero_attn:
            raise NetworkError("an attention with bias_k, bias_v or add_zero_attn cannot have an adapter")
        self.num_heads, self.dropout, self.batch_first = attention.num_heads, attention.dropout, attention.batch_first
        # `nn.TransformerEncoderLayer` reads these two to decide on a fused kernel, which it must not use here.
        self._qkv_same_embed_dim, self.in_proj_bias = False, None
        sources = (attention.embed_dim, attention.kdim, attention.vdim)
        biased = attention.in_proj_bias is not None
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(source, width, bias=biased) for source in sources)
        self.out_proj = nn.Linear(width, width, bias=attention.out_proj.bias is not None)
        weights: Sequence[Tensor] = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
        if attention.in_proj_weight is not None:
            weights = attention.in_proj_weight.chunk(3)
        with torch.no_grad():
            for at, layer in enumerate((self.q_proj, self.k_proj, self.v_proj)):
                layer.weight.copy_(weights[at])
                if biased:
                    layer.bias.copy_(attention.in_proj_bias.chunk(3)[at])
        self.out_proj.load_state_dict(attention.out_proj.state_dict())

    @torch.no_grad()
    def joined(self) -> nn.MultiheadAttention:
        """Return an `nn.MultiheadAttention` with these projections, which must not have adapters."""
        layers = [self.q_proj, self.k_proj, self.v_proj]
        made = nn.MultiheadAttention(
            self.out_proj.out_features,
            self.num_heads,
            self.dropout,
            bias=layers[0].bias is not None,
            kdim=layers[1].in_features,
            vdim=layers[2].in_features,
            batch_first=self.batch_first,
        )
        joint: Tensor | None = made.in_proj_weight
        if joint is None:
            for own, layer in zip((made.q_proj_weight, made.k_proj_weight, made.v_proj_weight), layers, strict=True):
                own.copy_(layer.weight)
        else:
            joint.copy_(torch.cat([layer.weight for layer in layers]))
        if made.in_proj_bias is not None:
            made.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
        made.out_proj.load_state_dict(self.out_proj.state_dict())
        return made

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Return the attention's output, and None for its weights."""
        if query.dim() == 2:
            at = 0 if self.batch_first else 1
            one = (each.unsqueeze(at) for each in (query, key, value))
            padding = None if key_padding_mask is None else key_padding_mask[None]
            return self(*one, padding, attn_mask=attn_mask)[0].squeeze(at), None
        if not self.batch_first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        mask = _mask(attn_mask, key_padding_mask, self.num_heads, query)
        found, _ = self._batched(query, key, value, mask)
        return (found if self.batch_first else found.transpose(0, 1)), None

    def _batched(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, None]:
        q, k, v = (
            layer(each).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, each in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


def _mask(given: Tensor | None, padding: Tensor | None, heads: int, query: Tensor) -> Tensor | None:
    """Return the mask to add to the scores (B, H, T, S); in boolean masks True marks scores that are left out."""
    added = None
    if given is not None:
        added = _added(given, query.dtype)
        added = added.reshape(-1, heads, *added.shape[1:]) if added.dim() == 3 else added
    if padding is not None:
        padded = _added(padding, query.dtype)[:, None, None]
        added = padded if added is None else added + padded
    return added


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf) if mask.dtype == torch.bool else mask


def adapt(module: nn.Module, targets: Sequence[str], rank: int, scale: float) -> nn.Module:
    """Put adapters around the layers of these names, in place, and return the module, or its replacement.

    Args:
        targets: names of layers, or patterns such as "encoder.*"; an attention has four adapters.
        rank: rank of each adapter, >= 1.
        scale: factor of each adapter.

    Raises:
        NetworkError: no layer has one of the names, a layer cannot have an adapter, or the rank is larger than a layer.
    """
    chosen, owners = set[str](), dict[Tensor | None, Adapted]()
    named = module.named_modules(remove_duplicate=False)
    layers = {name: layer for name, layer in named if isinstance(layer, ADAPTABLE)}
    inside = tuple(f"{name}." for name, layer in layers.items() if isinstance(layer, nn.MultiheadAttention))
    layers = {name: layer for name, layer in layers.items() if not name.startswith(inside)}
    for target in targets:
        found = fnmatch.filter(layers, target)
        if not found:
            listed = ", ".join(filter(None, layers)) or "none"
            raise NetworkError(
                f'learning.lora.targets: no layer that can have an adapter is named "{target}"; there are {listed}'
            )
        chosen.update(found)
    first = {layers[name]: name for name in sorted(chosen, reverse=True)}
    for layer, name in sorted(first.items(), key=lambda each: each[1]):
        if isinstance(layer, nn.MultiheadAttention):
            parts = ProjectedAttention(layer)
            for own, projection in list(parts.named_children()):
                setattr(parts, own, _adapted(f"{name}.{own}", projection, rank, scale))
            module = _with(module, layer, parts)
        elif layer._parameters.get("weight") not in owners:
            owners[layer._parameters.get("weight")] = adapted = _adapted(name, layer, rank, scale)
            module = _with(module, layer, adapted)
    for layer, name in {layer: name for name, layer in reversed(layers.items())}.items():
        # A weight that is computed at each access, as by a parametrization, is shared with no other layer.
        weight = layer._parameters.get("weight")
        owner = None if weight is None else owners.get(weight)
        if owner is not None and owner.base is not layer:
            _check_plain(name, layer)
            module = _with(module, layer, TiedAdapted(layer, owner))
    return module


def _check_plain(name: str, layer: nn.Module) -> None:
    """Check that a convolution or an embedding computes what torch's own does.

    An embedding that multiplies its rows (Gemma, BART), or a convolution that standardises its weight, would not do so
    with what an adapter adds. Linear layers often have a `forward` of their own that computes the same.

    Raises:
        NetworkError: it has a `forward` of its own.
    """
    plain = (nn.Embedding, *_CONVOLUTIONS)
    kind = next((kind for kind in plain if isinstance(layer, kind)), None)
    if kind is not None and type(layer).forward is not kind.forward:
        raise NetworkError(
            f"learning.lora.targets: {name} is a {type(layer).__name__}, which computes something else than torch's "
            f"{kind.__name__}, and an adapter would not be added to that; name other layers"
        )


def _adapted(name: str, layer: nn.Module, rank: int, scale: float) -> Adapted:
    _check_plain(name, layer)
    if getattr(layer, "groups", 1) != 1:
        raise NetworkError(f"learning.lora.targets: {name} is a convolution in groups, which cannot have an adapter")
    if layer._parameters.get("weight") is None:
        raise NetworkError(
            f"learning.lora.targets: {name} computes its weight from other parameters (weight norm, pruning, another "
            "parametrization), to which an adapter cannot be added; make its weight a plain parameter first, as "
            "torch.nn.utils.parametrize.remove_parametrizations does, or name other layers"
        )
    weight = cast(Tensor, layer.weight)
    most = min(len(weight), weight[0].numel())
    if rank > most:
        raise NetworkError(
            f"learning.lora.rank = {rank} is larger than the rank of {name}, {most}; write a smaller one, or name "
            "other layers in targets"
        )
    return Adapted(layer, rank, scale)


def _with(module: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Return the module with a layer replaced, under all of its names."""
    if module is old:
        return new
    for parent in list(module.modules()):
        for name in [name for name, layer in parent._modules.items() if layer is old]:
            setattr(parent, name, new)
    return module


@torch.no_grad()
def merged(module: nn.Module) -> nn.Module:
    """Return a copy of a module in which adapters are added into their layers, under the layers' own names."""
    module = copy.deepcopy(module)
    for layer in list(module.modules()):
        if isinstance(layer, Adapted):
            weight = cast(Tensor, layer.base.weight)
            weight.copy_(weight + layer.change())
        if isinstance(layer, Adapted | TiedAdapted):
            module = _with(module, layer, layer.base)
    for layer in list(module.modules()):
        if isinstance(layer, ProjectedAttention):
            module = _with(module, layer, layer.joined())
    return module


def freeze(module: nn.Module, names: Sequence[str]) -> None:
    """Freeze the parameters of a module that have these names, or match these patterns, such as "encoder.*".

    Raises:
        NetworkError: no parameter has one of the names, or no parameter is left to train.
    """
    known = dict(module.named_parameters(remove_duplicate=False))
    for name in names:
        found = [each for each in known if fnmatch.fnmatchcase(each, name) or f"{each}.".startswith(f"{name}.")]
        if not found:
            near = difflib.get_close_matches(name, [*known, *(each.rpartition(".")[0] for each in known)], n=1)
            listed = f"there are {', '.join(list(known)[:8])}" + (" ..." if len(known) > 8 else "")
            hint = f'did you mean "{near[0]}"?' if near else listed
            raise NetworkError(f'learning.frozen: no parameter is named "{name}"; {hint}')
        for each in found:
            known[each].requires_grad_(False)
