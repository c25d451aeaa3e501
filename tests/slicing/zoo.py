"""Small networks of every kind that slicing can follow, with an example input and the parts that must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Basic(nn.Module):
    """The basic block of a residual network."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down: nn.Module = nn.Identity()
        if stride > 1:
            self.down = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.down(x)
        return F.relu(y, inplace=True)


class Dense(nn.Module):
    """A dense block: the output of each layer is concatenated with its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.second = nn.Conv2d(6, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(9)
        self.head = nn.Linear(9 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, F.relu(self.first(x))], dim=1)
        x = self.norm(torch.cat((x, F.relu(self.second(x))), 1))
        result: Tensor = self.head(F.max_pool2d(x, 3).flatten(1))
        return result


class Separable(nn.Module):
    """Depthwise and pointwise convolutions with a squeeze-and-excite gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.squeeze = nn.Linear(6, 2)
        self.excite = nn.Linear(2, 6)
        self.point = nn.Conv2d(6, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.depth(self.stem(x)))
        gate = torch.sigmoid(self.excite(F.silu(self.squeeze(x.mean((2, 3))))))
        x = self.point(x * gate[:, :, None, None])
        result: Tensor = self.head(F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1))
        return result


class Words(nn.Module):
    """Tokens, an embedding, a recurrent layer, the last position."""

    def __init__(self, kind: str, layers: int, bidirectional: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.rnn = getattr(nn, kind)(4, 5, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(10 if bidirectional else 5, 11)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> Tensor:
        y, _ = self.rnn(self.embed(tokens), state)
        result: Tensor = self.head(y[:, -1])
        return result


class States(nn.Module):
    """Two recurrent layers over plain features, time first: the final states of one start the other."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(3, 5)
        self.decoder = nn.LSTM(5, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y, state = self.encoder(x.transpose(0, 1))
        y, (h, _) = self.decoder(y, state)
        result: Tensor = self.head(h[0] + y.mean(0))
        return result


class Mixer(nn.Module):
    """Raw parameters, layer norms, functional layers and a scale, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(7, 6))
        self.b = nn.Parameter(torch.randn(7))
        self.up = nn.Parameter(torch.randn(7, 4))
        self.log_scale = nn.Parameter(torch.randn(4))
        self.position = nn.Parameter(torch.randn(1, 3, 4))
        self.norm = nn.LayerNorm(7)
        self.slope = nn.PReLU(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.norm(F.linear(x, self.w, self.b)))
        h = h @ self.up * torch.exp(self.log_scale) + self.position
        h = self.slope(h.permute(0, 2, 1)).permute(0, 2, 1)
        result: Tensor = self.head(F.dropout(h, 0.5, self.training).amax(1))
        return result


class Siamese(nn.Module):
    """One layer used twice, its two results concatenated, and a shortcut from all inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.head = nn.Linear(12, 2)
        self.shortcut = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        a, b = self.body(left), self.body(right)
        result: Tensor = self.head(torch.cat([a, b * b], dim=-1)) + self.shortcut(x)
        return result


class Gated(nn.Module):
    """A gate: one number that scales all features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.gate = nn.Linear(6, 1)
        self.head = nn.Linear(11, 2)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        result: Tensor = self.head(torch.cat([gate * torch.tanh(self.body(x)), gate * x], dim=1))
        return result


class Maxout(nn.Module):
    """The largest of two layers, and of the pieces into which a layer is cut; means of groups of features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(6, 5)
        self.pieces, self.groups, self.head = nn.Linear(5, 8), nn.Linear(4, 9), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.max(self.first(x), self.second(x)).min(torch.ones(()))
        h = h / h.sum()  # a statistic of all neurons, which stay apart
        h = self.pieces(h).unflatten(-1, (4, 2)).max(-1).values
        result: Tensor = self.head(self.groups(h).view(-1, 3, 3).mean(1))
        return result


class PaddedShortcut(nn.Module):
    """A residual block whose shortcut is padded with empty channels, as in the smaller networks of its paper."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 3, 3, padding=1)
        self.wide = nn.Conv2d(3, 5, 3, padding=1)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(F.pad(x, (0, 0, 0, 0, 1, 1)) + self.wide(x))
        result: Tensor = self.head(x.mean(dim=[2, 3]))
        return result


class Noisy(nn.Module):
    """A layer whose weights are a mean and a spread, as in Bayesian networks; its noise is one draw for all."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(4, 5))
        self.spread = nn.Parameter(torch.zeros(4, 5))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.mean + F.softplus(self.spread) * torch.ones_like(self.mean)
        result: Tensor = self.head(torch.relu(F.linear(x, weight)))
        return result


class Attention(nn.Module):
    """Torch's own attention, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(5, 8)
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        mixed, _ = self.attention(h, h, h)
        result: Tensor = self.head((h + mixed).mean(1))
        return result


class CrossAttention(nn.Module):
    """Queries, keys and values of different sizes, a mask, and biases of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 6), nn.Linear(4, 5)
        self.attention = nn.MultiheadAttention(6, 3, kdim=5, vdim=4, add_bias_kv=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        masked = torch.ones(3, 3, dtype=torch.bool).triu(1)
        mixed, scores = self.attention(self.left(x), self.right(x), x, attn_mask=masked)
        result: Tensor = self.head(mixed[-1] * (1 + scores.sum()))
        return result


class Transformer(nn.Module):
    """Tokens, learned positions, torch's encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.randn(6, 8))
        encoder = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoderLayer(8, 4, 10, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) + self.position
        seen = self.encoder(h, mask=nn.Transformer.generate_square_subsequent_mask(6).to(h), is_causal=True)
        result: Tensor = self.head(self.decoder(h, seen)[:, -1])
        return result


class RootMeanSquare(nn.Module):
    """The norm of LLaMA, written by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Grouped(nn.Module):
    """A block as in LLaMA: grouped queries, rotary positions, a gated feed-forward layer, norms by hand."""

    angles: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.groups, self.size = 4, 2, 4
        self.norm, self.after = RootMeanSquare(10), RootMeanSquare(10)
        self.q, self.k, self.v = (nn.Linear(10, heads * self.size, bias=False) for heads in (4, 2, 2))
        self.o = nn.Linear(16, 10, bias=False)
        self.gate, self.up, self.down = nn.Linear(10, 7), nn.Linear(10, 7), nn.Linear(7, 10)
        angles = torch.arange(5)[:, None] / 10 ** (torch.arange(2) / 2)
        self.register_buffer("angles", torch.cat([angles, angles], -1), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.angles.cos() + torch.cat((-second, first), -1) * self.angles.sin()

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        h = self.norm(x)
        q = self.turned(self.q(h).view(batch, length, self.heads, self.size).transpose(1, 2))
        k, v = (layer(h).view(batch, length, self.groups, self.size).transpose(1, 2) for layer in (self.k, self.v))
        k = self.turned(k)
        if self.groups < self.heads:
            k, v = (each.repeat_interleave(self.heads // self.groups, 1) for each in (k, v))
        scores = q @ k.transpose(-2, -1) / self.size**0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1) > 0, float("-inf"))
        mixed = scores.softmax(-1) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        h = self.after(x)
        result: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return result


class Fused(nn.Module):
    """Queries, keys and values from one layer, torch's kernel, and products as `einsum` writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(5, 8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Parameter(torch.randn(4, 2, 8))
        self.q2, self.k2 = nn.Linear(8, 8), nn.Linear(8, 8)
        self.v2 = nn.Parameter(torch.randn(8, 2, 4))
        self.o2 = nn.Linear(8, 8)
        self.nearness = nn.Parameter(torch.randn(4, 1, 3))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        given, x = x, self.into(x)
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, self.nearness)
        mixed = mixed + F.scaled_dot_product_attention(q, k, v, (given[:, None, None, :, 0] > 0).to(q))
        x = x + torch.einsum("bhtd,hde->bte", mixed, self.out)
        q, k = (layer(x).unflatten(-1, (2, 4)) for layer in (self.q2, self.k2))
        v = torch.einsum("bte,ehd->bthd", x, self.v2)
        scores = torch.einsum("bthd,bshd->bhts", q, k).softmax(-1)
        x = x + self.o2(torch.einsum("bhts,bshd->bthd", scores, v).flatten(2))
        result: Tensor = self.head(x.sum(1))
        return result


class Single(nn.Module):
    """An attention without heads, whose features can be exchanged in pairs, and a pooling by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(5, 4)
        self.score = nn.Linear(4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.stack([q @ k.T for q, k in zip(self.q(x), self.k(x), strict=True)])
        h = torch.bmm(scores.softmax(-1), self.v(x))
        pooled = torch.bmm(self.score(h).softmax(1).mT, h)
        result: Tensor = self.head(pooled.squeeze(1))
        return result


class Stacked(nn.Module):
    """An attention whose heads are a stack of matrices, with a bias of positions, as BLOOM has it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(5, 8) for _ in range(3))
        self.o, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts = (layer(x).unflatten(-1, (4, 2)).transpose(1, 2).flatten(0, 1) for layer in (self.q, self.k, self.v))
        q, k, v = parts
        far = torch.arange(x.shape[1], dtype=x.dtype).expand(len(q), 1, -1)
        scores = far.baddbmm(batch1=q, batch2=k.mT, beta=-0.5, alpha=0.7)
        mixed = torch.bmm(scores.softmax(-1), v).view(len(x), 4, -1, 2).transpose(1, 2).flatten(2)
        result: Tensor = self.head(self.o(mixed).sum(1))
        return result


class Patches(nn.Module):
    """A class token before patches, rotary positions as complex numbers, biases of relative positions, latents."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, 8, 2, 2)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.norm = RootMeanSquare(8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.each = nn.LayerNorm(4, elementwise_affine=False)
        self.near = nn.Linear(1, 2)
        self.latents = nn.Embedding(3, 8)
        self.reader = nn.MultiheadAttention(8, 4, batch_first=True)
        self.asks = nn.Parameter(torch.randn(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        h = self.norm(x)
        q, k, v = (layer(h).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        turn = torch.polar(torch.ones(5, 2), torch.arange(5)[:, None] / 10.0 ** torch.arange(2)).to(torch.complex128)
        q, k = (
            torch.view_as_real(torch.view_as_complex(self.each(a).double().unflatten(-1, (2, 2))) * turn).flatten(-2)
            for a in (q, k)
        )
        ahead = (torch.arange(5)[:, None, None] - torch.arange(5)[:, None]).to(v)
        mixed = F.scaled_dot_product_attention(q.to(v), k.to(v), v, self.near(ahead).permute(2, 0, 1)[None])
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        latents = self.latents.weight[None].expand(len(x), -1, -1)
        read = latents + self.reader(latents, x, x)[0]
        result: Tensor = self.head(((read @ self.asks).softmax(-1)[..., None] * read).sum(1))
        return result


class Generator(nn.Module):
    """Units that become the pixels of channels, and channels that become pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Linear(5, 4 * 9)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 12, 2, 2)
        self.last = nn.Conv2d(3, 2, 3)
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.widen(x).view(-1, 4, 3, 3)))
        result: Tensor = self.head(self.last(F.pixel_shuffle(self.up(x), 2)).relu().mean((2, 3)))
        return result


class Cells(nn.Module):
    """Recurrent cells in a loop; the first state of one is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(3, 5), nn.GRUCell(5, 4)
        self.start = nn.Parameter(torch.randn(5))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, g = self.start.expand(len(x), 5), torch.zeros(len(x), 4).to(x)
        c = torch.zeros_like(h)
        for now in x.unbind(1):
            h, c = self.first(now, (h, c))
            g = self.second(h, g)
        result: Tensor = self.head(g)
        return result


class Branching(nn.Module):
    """A module whose forward pass depends on the values and writes into a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 8)
        self.other = nn.Linear(5, 8)

    def forward(self, x: Tensor) -> Tensor:
        result = torch.zeros(len(x), 8, dtype=x.dtype)
        result[:, :4] = (self.inner(x) if x.sum() >= 0 else self.other(x))[:, :4]
        return result


class Masked(nn.Module):
    """Values that masks choose are written into tensors, and read from them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 8), nn.Linear(8, 6), nn.Linear(6, 4)
        self.shift = nn.Parameter(torch.zeros(6))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[x.isnan() | (x > 2)] = 0
        h = self.first(x)
        h[h < 0] *= 0.1
        silent = h.mean(-1) < 0
        h[silent] = 0
        h = self.second(h)
        low = (h < 0.5) & ~torch.isinf(h)
        h[low] = h[low].square()
        h[:, 0] = h[:, 1] + self.shift
        h = self.third(h)
        rest = torch.zeros_like(h)
        rest[h > 0] = h[h > 0]
        rest[0, h[0] < 0] = 1
        rest[:, 2:][~(rest[:, 2:] > 1)] = 0
        result: Tensor = self.head(torch.empty_like(rest).copy_(rest).sum(1))
        return result


class Bilinear(nn.Module):
    """A layer for which slicing has no rule, between others."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(5, 8)
        self.pairs = nn.Bilinear(8, 8, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        result: Tensor = self.head(self.pairs(h, h))
        return result


@dataclass(frozen=True)
class Specimen:
    """A small network, its input shape and its parts.

    `same`: pairs of neurons that can be exchanged in every hidden part (with grouped convolutions: within a group).
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    parts: dict[str, int]
    tokens: int = 0
    same: tuple[tuple[int, int], ...] = ((0, 1), (-1, 0))

    def example(self, batch: int = 3) -> Tensor:
        """Return a (B, *shape) input that differs at every element (tokens repeat)."""
        size = batch * int(torch.tensor(self.shape).prod())
        values = torch.arange(size).reshape(batch, *self.shape)
        return values * 7 % self.tokens if self.tokens else torch.sin(values.double() * 1.7)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 2), nn.Flatten(), nn.Linear(4 * 4, 5)
    )


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), Basic(4, 4, 1), Basic(4, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.ZeroPad1d(1),
        nn.Conv1d(3, 4, 3),
        nn.GroupNorm(1, 4),
        nn.ELU(),
        nn.AvgPool1d(2),
        nn.InstanceNorm1d(4, affine=True),
        nn.Conv1d(4, 6, 3, groups=2),
        nn.Flatten(),
        nn.Linear(6 * 2, 2),
    )


ZOO = {
    "mlp": Specimen(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Dropout(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
        (6,),
        {"input": 6, "0": 5, "3": 4, "5": 3},
    ),
    "image-mlp": Specimen(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 4), nn.Tanh(), nn.Linear(4, 2)),
        (2, 3, 3),
        {"input": 18, "1": 4, "3": 2},
    ),
    "maxout": Specimen(Maxout, (6,), {"input": 6, "first": 5, "pieces": 4, "groups": 3, "head": 2}),
    "cnn": Specimen(cnn, (2, 8, 8), {"input": 2, "0": 6, "3": 4, "5": 5}),
    "conv1d": Specimen(conv1d, (3, 8), {"input": 3, "1": 4, "6": 6, "8": 2}, same=((0, 1), (-1, -2))),
    "resnet": Specimen(resnet, (3, 8, 8), {"input": 3, "0": 4, "1.conv1": 4, "2.conv1": 6, "2.conv2": 6, "5": 3}),
    "densenet": Specimen(Dense, (2, 6, 6), {"input": 2, "first": 4, "second": 3, "head": 5}),
    "separable": Specimen(Separable, (3, 6, 6), {"input": 3, "stem": 6, "squeeze": 2, "point": 8, "head": 4}),
    "lstm": Specimen(lambda: Words("LSTM", 1, False), (7,), {"input": 11, "embed": 4, "rnn": 5, "head": 11}, tokens=11),
    "lstm-2-both-ways": Specimen(
        lambda: Words("LSTM", 2, True),
        (7,),
        {"input": 11, "embed": 4, **{f"rnn.l{k}{way}": 5 for k in (0, 1) for way in ("", "_reverse")}, "head": 11},
        tokens=11,
    ),
    "gru": Specimen(
        lambda: Words("GRU", 2, False), (7,), {"input": 11, "embed": 4, "rnn.l0": 5, "rnn.l1": 5, "head": 11}, tokens=11
    ),
    "rnn": Specimen(lambda: Words("RNN", 1, False), (7,), {"input": 11, "embed": 4, "rnn": 5, "head": 11}, tokens=11),
    "states": Specimen(States, (4, 3), {"input": 3, "encoder": 5, "head": 2}),
    "by-hand": Specimen(Mixer, (3, 6), {"input": 6, "w": 7, "up": 4, "head": 3}),
    "gated": Specimen(Gated, (6,), {"input": 6, "body": 5, "gate": 1, "head": 2}),
    "padded-shortcut": Specimen(PaddedShortcut, (2, 4, 4), {"input": 2, "stem": 5, "head": 4}, same=((0, 1), (3, 4))),
    "mean-and-spread": Specimen(Noisy, (5,), {"input": 5, "mean": 4, "head": 2}),
    "attention": Specimen(Attention, (6, 5), {"input": 5, "into": 8, "attention": 4, "head": 3}),
    "cross-attention": Specimen(
        CrossAttention,
        (3, 4),
        {"input": 4, "left": 6, "right": 5, "attention": 3, "attention.out_proj": 6, "head": 2},
    ),
    "transformer": Specimen(
        Transformer,
        (6,),
        {
            "input": 11,
            "embed": 8,
            "encoder.layers.0.self_attn": 2,
            "encoder.layers.0.linear1": 12,
            "encoder.layers.1.self_attn": 2,
            "encoder.layers.1.linear1": 12,
            "decoder.self_attn": 4,
            "decoder.multihead_attn": 4,
            "decoder.linear1": 10,
            "head": 11,
        },
        tokens=11,
    ),
    "grouped": Specimen(Grouped, (5, 10), {"q": 2, "gate": 7, "input": 10}),
    "fused": Specimen(Fused, (3, 5), {"input": 5, "into": 8, "qkv": 4, "q2": 2, "head": 3}),
    "single": Specimen(Single, (4, 5), {"input": 5, "q": 6, "v": 4, "score": 1, "head": 3}),
    "transposed": Specimen(
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 6, 3, stride=2, groups=2),
            nn.ReLU(),
            nn.Conv2d(6, 4, 3),
            nn.GLU(1),
            nn.Flatten(),
            nn.Linear(2 * 25, 3),
        ),
        (2, 3, 3),
        {"input": 2, "0": 6, "2": 2, "5": 3},
        same=((0, 1), (-1, -2)),
    ),
    "stacked": Specimen(Stacked, (3, 5), {"input": 5, "q": 4, "o": 6, "head": 3}),
    "patches": Specimen(
        Patches,
        (2, 4, 4),
        {"input": 2, "patch": 8, "q": 2, "latents": 8, "reader": 4, "asks": 1, "head": 3},
    ),
    "generator": Specimen(Generator, (5,), {"input": 5, "widen": 4, "up": 3, "last": 2, "head": 3}),
    "cells": Specimen(Cells, (4, 3), {"input": 3, "first": 5, "second": 4, "head": 2}),
    "masked": Specimen(Masked, (4, 5), {"input": 5, "first": 8, "second": 6, "third": 4, "head": 3}),
    "siamese": Specimen(Siamese, (8,), {"input": 4, "body.0": 6, "head": 2}),
}


class Normalized(nn.Module):
    """Batch normalization in a block, and buffers that are none of its statistics: a table, and a mask of weights."""

    table: Tensor
    mask: Tensor

    def __init__(self, features: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0.5, 1.5, features))
        self.block = nn.Sequential(nn.Linear(features, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.block.register_buffer("mask", torch.ones(5, features))
        self.head = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.block(x * self.table))
        return result


#: What `buffers: local` keeps of it.
ITS_NORMALIZATION = {
    "table", "block.mask", "block.1.weight", "block.1.bias", "block.1.running_mean", "block.1.running_var"
}  # fmt: skip
