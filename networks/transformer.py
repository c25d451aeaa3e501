"""The transformer: blocks of attention and a feed-forward layer over a sequence, then a dense layer on its last place.

A causal transformer, for continuing text, has the dense layer on each place, which sees only itself and earlier places.

Parts: embedding (everything that is added along the sequence), blockN.q (a head with its queries, keys and values is a
neuron), blockN.up (a unit of the feed-forward layer), output.

Source: Vaswani et al., Attention Is All You Need, NeurIPS 2017; norms before the layers as in Xiong et al., On Layer
Normalization in the Transformer Architecture, ICML 2020.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.networks.rows import as_sequences


class TransformerBlock(nn.Module):
    """Attention and a feed-forward layer, each added to its input.

    width   numbers at each place
    heads   heads of the attention; they divide the width
    hidden  units of the feed-forward layer
    causal  whether a place sees only itself and the places before it
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before_attention, self.before_layer = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, width) to the same shape."""
        seen = self.before_attention(x)
        q, k, v = (layer(seen).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if self.causal:
            scores = scores + torch.full(scores.shape[-2:], -math.inf, device=x.device).triu(1)
        weights = scores.softmax(-1)
        x = x + self.dropout(self.o((weights @ v).transpose(1, 2).flatten(2)))
        result: Tensor = x + self.dropout(self.down(functional.gelu(self.up(self.before_layer(x)))))
        return result


class Transformer(nn.Module):
    """The transformer.

    features    numbers at each place of the sequence; None: tokens 0..vocabulary-1
    vocabulary  number of tokens, if inputs are tokens
    length      places of the sequence
    outputs     number of logits
    layers      blocks
    causal      whether there are logits for each place, which sees only itself and the places before it
    """

    def __init__(
        self,
        features: int | None,
        vocabulary: int,
        length: int,
        outputs: int,
        *,
        width: int,
        heads: int,
        hidden: int,
        layers: int,
        dropout: float,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.embedding = nn.Embedding(vocabulary, width) if features is None else nn.Linear(features, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        for number in range(1, layers + 1):
            self.add_module(f"block{number}", TransformerBlock(width, heads, hidden, dropout, causal=causal))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map sequences to logits, (B, outputs), or (B, T, outputs) if causal.

        Sequences are (B, T) int64, (B, T, F) float, or images (B, C, H, W), which are sequences of their rows.
        """
        h = self.embedding(as_sequences(x, tokens=isinstance(self.embedding, nn.Embedding))) + self.position
        for block in self.children():
            h = block(h) if isinstance(block, TransformerBlock) else h
        logits: Tensor = self.output(self.norm(h if self.causal else h[:, -1]))
        return logits
