"""Convolutions of a block of peers on a GPU, as matrix products of unfolded images.

Each peer has its own weights, so vmap makes one convolution with a group for each peer. cuDNN's kernels for it either
round float32, or add in an order that differs from run to run, or are exact to three digits. A matrix product of
unfolded images takes about as long, gives float32's numbers, and gives the same bits in every run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.slicing.flat import trainable_copy


def copied_for_block(module: nn.Module) -> nn.Module:
    """Return a copy of a module, for a block of peers; on an NVIDIA GPU its plain convolutions unfold images."""
    on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    return unfolded(module) if on_gpu else trainable_copy(module)


def unfolded(module: nn.Module) -> nn.Module:
    """Return a copy of a module that computes its plain convolutions from unfolded images; the names stay.

    >>> [type(each).__name__ for each in unfolded(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())).children()]
    ['UnfoldedConv2d', 'ReLU']
    """
    module = trainable_copy(module)
    if type(module) is nn.Conv2d:
        return UnfoldedConv2d(module) if _plain(module) else module
    for name, layer in list(module.named_modules()):
        if type(layer) is nn.Conv2d and _plain(layer):
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, UnfoldedConv2d(layer))
    return module


def _plain(layer: nn.Conv2d) -> bool:
    """Return whether a layer has square windows, stride and dilation 1, zero padding and one group."""
    height, width = layer.kernel_size
    return (
        height == width
        and {*layer.stride, *layer.dilation, layer.groups} == {1}
        and layer.padding_mode == "zeros"
        and (layer.padding in ("valid", "same") or len({*layer.padding}) == 1)
        and not (layer.padding == "same" and height % 2 == 0)
        and not (layer._forward_hooks or layer._forward_pre_hooks)
    )


class UnfoldedConv2d(nn.Module):
    """The convolution of a plain layer, whose parameters it shares."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        kernel, padding = layer.kernel_size[0], layer.padding
        self.padding = {"valid": 0, "same": kernel // 2}[padding] if isinstance(padding, str) else int(padding[0])

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = _Convolution.apply(images, self.weight, self.padding)[0]  # type: ignore[no-untyped-call]
        return result if self.bias is None else result + self.bias[:, None, None]


class _Convolution(torch.autograd.Function):
    """The convolution of images (N, C, H, W) with weights (O, C, k, k): (N, O, H', W') and the unfolded images."""

    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor]:
        windows_NKL = _windows(images, weight.shape[-1], padding)
        return _product(weight, windows_NKL, images.shape[-2:], padding), windows_NKL

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
        _, weight, ctx.padding = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(weight, output[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor, None]:
        weight, windows_NKL = ctx.saved_tensors
        weight_grad = torch.bmm(slope.flatten(2), windows_NKL.mT).sum(0).view(weight.shape)
        if not ctx.needs_input_grad[0]:
            return None, weight_grad, None
        # The gradient at the images is a convolution, too: of the slope with the kernels rotated by 180 degrees.
        turned, rest = weight.flip(2, 3).transpose(0, 1), weight.shape[-1] - 1 - ctx.padding
        if rest < 0:  # with more padding than the kernel reaches, the outermost slopes belong to zeros only
            slope = slope[..., -rest:rest, -rest:rest]
        windows_NKL = _windows(slope, weight.shape[-1], max(rest, 0))
        return _product(turned, windows_NKL, slope.shape[-2:], max(rest, 0)), weight_grad, None


class _Windows(torch.autograd.Function):
    """The windows of each place of a result, (N, C * k * k, H' * W'), of images (N, C, H, W). It has no gradient.

    Torch unfolds images one after the other, so the images of all peers are passed as one image of many channels.
    """

    @staticmethod
    def forward(images: Tensor, kernel: int, padding: int) -> Tensor:
        count, channels, height, width = images.shape
        one = images.reshape(1, count * channels, height, width)
        return functional.unfold(one, kernel, padding=padding).view(count, channels * kernel**2, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None], images: Tensor, kernel: int, padding: int
    ) -> tuple[Tensor, int]:
        images = images.movedim(in_dims[0], 0)
        windows: Tensor = _Windows.apply(images.flatten(0, 1), kernel, padding)  # type: ignore[no-untyped-call]
        return windows.view(*images.shape[:2], *windows.shape[1:]), 0


def _windows(images: Tensor, kernel: int, padding: int) -> Tensor:
    windows: Tensor = _Windows.apply(images, kernel, padding)  # type: ignore[no-untyped-call]
    return windows


def _product(weight: Tensor, windows_NKL: Tensor, size: torch.Size, padding: int) -> Tensor:
    """Return the convolution of images of this size, (N, O, H', W')."""
    count, height = len(windows_NKL), size[0] + 2 * padding - weight.shape[-1] + 1
    return torch.bmm(weight.flatten(1).expand(count, -1, -1), windows_NKL).view(count, len(weight), height, -1)
