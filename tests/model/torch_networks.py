"""Sample networks of PyTorch's, small, with random weights: what kinds of networks consist of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)


@dataclass(frozen=True)
class Network:
    """How a network is made, and what it takes.

    Attributes:
        make: makes the module, and arguments for a size of the open axes.
        open: for each argument, the names of its open axes.
        script: whether a trace is the same network: it writes nothing.
    """

    make: Callable[[], nn.Module]
    args: Callable[[int], tuple[Tensor, ...]]
    open: tuple[dict[int, str], ...]
    script: bool = True


def image(channels: int = 3, side: int = 16) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda size: (torch.randn(size, channels, side, side),)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.short = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.two(F.relu(self.norms[0](self.one(x)), inplace=True)))
        y += self.short(x)
        return F.relu(y)


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    blocks = [Residual(8, 8, 1), Residual(8, 16, 2), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*stem, *blocks, nn.Flatten(), nn.Linear(16, 10))


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.hardsigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))))
        return x * scale


def mobilenet() -> nn.Module:
    inverted = [nn.Conv2d(8, 24, 1), nn.BatchNorm2d(24), nn.Hardswish()]
    inverted += [nn.Conv2d(24, 24, 3, 2, 1, groups=24), nn.ReLU6(), Squeeze(24)]
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2, 1), nn.Hardswish(), *inverted, nn.Conv2d(24, 8, 1)),
        *(nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 7)),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.low = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(24, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        high = F.leaky_relu(self.first(x), 0.1)
        low = F.elu(self.low(F.max_pool2d(high, 2)))
        wide = F.interpolate(low[:, :8], scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.last(torch.cat([high, self.up(low), wide], 1)).softmax(1)


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 17, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, F.gelu, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.first.expand(x.shape[0], -1, -1), y], 1) + self.places
        return self.head(self.layers(y)[:, 0])


class Words(nn.Module):
    """A transformer over words: of BERT's kind with a mask of padding, or of GPT's, causal."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.words, self.places = nn.Embedding(50, 16, padding_idx=0), nn.Embedding(32, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(2)])
        self.wide, self.back = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        count = words.shape[1]
        x = self.words(words) + self.places(torch.arange(count))
        seen = mask[:, None, None, :].bool()
        if self.causal:
            seen = seen & torch.ones(count, count).tril().bool()
        q, k, v = self.qkv(self.norms[0](x)).reshape(-1, count, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(8)).masked_fill(~seen, -1e4)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        x = x + self.back(F.gelu(self.wide(self.norms[1](x)), approximate="tanh"))
        return x @ self.words.weight.T if self.causal else torch.tanh(x[:, 0])


def words(size: int) -> tuple[Tensor, ...]:
    mask = torch.ones(2, size + 3, dtype=torch.int64)
    mask[1, size + 1 :] = 0
    return torch.randint(1, 50, (2, size + 3)), mask


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.rows = kind(5, 6, batch_first=True, **options)
        self.last = nn.Linear(12 if options.get("bidirectional") else 6, 3)

    def forward(self, x: Tensor) -> Any:
        y, state = self.rows(x)
        return self.last(y), state[0] if isinstance(state, tuple) else state


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 8, 7, padding=3))
        self.up = nn.ConvTranspose1d(8, 4, 8, 4, 2)
        self.wide = nn.Conv1d(4, 4, 3, padding=3, dilation=3)
        self.last = nn.Conv1d(4, 1, 7, padding=3, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(F.leaky_relu(self.first(x), 0.1))
        y = y + self.wide(F.leaky_relu(y, 0.1))
        return torch.tanh(self.last(y))


def generator() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(6, 64), nn.Unflatten(1, (16, 2, 2))]
    layers += [nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.ConvTranspose2d(8, 8, 3, 2, 1, output_padding=1, groups=2), nn.PReLU(8)]
    return nn.Sequential(*layers, nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 3, padding=1))


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group, self.instance = nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True)
        self.layer, self.local = nn.LayerNorm([8, 6, 6]), nn.LocalResponseNorm(3)
        self.root = nn.RMSNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.group(x) + self.instance(x) + self.layer(x) + self.local(x) + self.root(x)
        return F.normalize(F.pixel_shuffle(y, 2), dim=-1)


class Ratings(nn.Module):
    """Of a recommender's kind: bags of categories, dense features, products of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 8, mode="sum")
        self.users, self.dense = nn.Embedding(9, 8), nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.last = nn.Linear(8 + 3, 1)

    def forward(self, bags: Tensor, users: Tensor, dense: Tensor) -> Tensor:
        rows = torch.stack([self.bag(bags), self.users(users), self.dense(dense)], 1)
        one, two = torch.triu_indices(3, 3, 1)
        pairs = torch.bmm(rows, rows.mT)[:, one, two]
        return torch.sigmoid(self.last(torch.cat([rows[:, 2], pairs], 1))).squeeze(1)


class Detector(nn.Module):
    """A head without anchors: boxes of the best places, and their classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.classes, self.sides = nn.Conv2d(8, 3, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        scores, kinds = self.classes(y).sigmoid().flatten(2).max(1)
        rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
        centres = torch.stack([columns.flatten(), rows.flatten()])
        left, right = F.softplus(self.sides(y).flatten(2)).chunk(2, 1)
        boxes = torch.cat([centres - left, centres + right], 1).transpose(1, 2)
        best, places = scores.topk(5)
        return best, kinds.gather(1, places), boxes.gather(1, places[..., None].expand(-1, -1, 4))


class Attention(nn.Module):
    """The forms of scaled_dot_product_attention; rotary places; groups of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 32), nn.Linear(16, 16), nn.Linear(16, 16)
        self.many = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        def heads(one: Tensor) -> Tensor:
            return one.unflatten(-1, (-1, 8)).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        turns = torch.arange(x.shape[1])[:, None] * 0.5 ** torch.arange(4)
        cos, sin = torch.cat([turns, turns], -1).cos(), torch.cat([turns, turns], -1).sin()
        q = q * cos + torch.cat([-q[..., 4:], q[..., :4]], -1) * sin
        groups = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        near = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs() < 3
        masked = F.scaled_dot_product_attention(k, k, v, attn_mask=near, scale=0.2)
        biased = F.scaled_dot_product_attention(k, k, v, attn_mask=near.float() * 0.3)
        return groups.transpose(1, 2).flatten(2), masked + biased, self.many(x, x, x)[0]


class Counter(nn.Module):
    """Counts its calls and keeps a mean of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        self.mean.mul_(0.5).add_(x.mean(0), alpha=0.5)
        return x - self.mean, self.calls


class Cache(nn.Module):
    """One step of a decoder whose keys and values lie in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(1, 6, 8), persistent=False)
        self.register_buffer("values", torch.zeros(1, 6, 8), persistent=False)
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys.index_copy_(1, self.place, k)
        self.values.index_copy_(1, self.place, v)
        seen = torch.arange(6) <= self.place
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen[None])
        self.place += 1
        return y


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Any:
        windowed = x * torch.hann_window(16)
        power = torch.fft.rfft(windowed).abs()
        return power.square().clamp_min(1e-6).log(), torch.fft.irfft(torch.fft.rfft(x), n=16)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 5))

    def forward(self, x: Tensor) -> Any:
        y = torch.einsum("bij,kij->bk", x, self.weight)
        z = torch.einsum("bij,bkj->bik", x, x).tril().logsumexp(-1)
        return torch.cumsum(y, 1), z, torch.roll(x, 2, -1).flip(1)


class Choices(nn.Module):
    """Integers, booleans and indices."""

    def forward(self, x: Tensor, flags: Tensor) -> Any:
        odd = x % 2 == 1
        chosen = torch.where(odd & flags, x // 2, -x)
        order = chosen.argsort(dim=-1, stable=True)
        return chosen, odd.any(-1), F.one_hot(order[:, 0], 6), chosen.float().std(-1), x.amax(-1)


class Edges(nn.Module):
    """A layer of a graph network: messages along edges of which several end in one node."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(5, 4)

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.one(x)
        total = torch.zeros_like(y).index_add(0, edges[1], y[edges[0]])
        count = torch.zeros(len(y)).index_put((edges[1],), torch.tensor(1.0), accumulate=True)
        return total, count, (edges[0] - edges[1]) // 2


class Means(nn.Module):
    """The means of messages that end in one node, with and without its own value."""

    def forward(self, x: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        places = ends[:, None].expand(-1, 3)
        start = torch.full((4, 3), 5.0)
        return (
            start.scatter_reduce(0, places, x, "mean"),
            start.scatter_reduce(0, places, x, "mean", include_self=False),
        )


BATCH = ({0: "batch"},)
NETWORKS = {
    "attention": Network(Attention, lambda size: (torch.randn(2, size + 2, 16),), ({1: "length"},)),
    "bert": Network(lambda: Words(False), words, ({1: "length"}, {1: "length"})),
    "cache": Network(Cache, lambda _: (torch.randn(1, 1, 8),), ({},), script=False),
    "choices": Network(
        Choices,
        lambda size: (
            torch.stack([torch.randperm(6) for _ in range(size)]),
            torch.rand(size, 6) > 0.5,
        ),
        BATCH * 2,
    ),
    "counter": Network(Counter, lambda size: (torch.randn(size, 4),), BATCH, script=False),
    "detector": Network(Detector, image(), BATCH),
    "edges": Network(
        Edges,
        lambda size: (torch.randn(4, 5), torch.randint(0, 4, (2, 3 * size))),
        ({}, {1: "edges"}),
    ),
    "generator": Network(generator, lambda size: (torch.randn(size, 6),), BATCH),
    "gpt": Network(lambda: Words(True), words, ({1: "length"}, {1: "length"})),
    "gru": Network(
        lambda: Recurrent(nn.GRU, num_layers=2), lambda size: (torch.randn(size, 7, 5),), BATCH
    ),
    "lstm": Network(
        lambda: Recurrent(nn.LSTM, bidirectional=True),
        lambda size: (torch.randn(size, 7, 5),),
        BATCH,
    ),
    "means": Network(
        Means,
        lambda size: (torch.randn(2 * size, 3), torch.randint(0, 3, (2 * size,))),
        ({0: "edges"}, {0: "edges"}),
    ),
    "mixer": Network(Mixer, lambda size: (torch.randn(size, 4, 5),), BATCH),
    "mobilenet": Network(mobilenet, image(side=32), BATCH),
    "norms": Network(Norms, image(8, 6), BATCH),
    "ratings": Network(
        Ratings,
        lambda size: (
            torch.randint(0, 20, (size, 3)),
            torch.randint(0, 9, (size,)),
            torch.randn(size, 4),
        ),
        BATCH * 3,
    ),
    "resnet": Network(resnet, image(side=32), ({0: "batch"},)),
    "spectrum": Network(Spectrum, lambda size: (torch.randn(size, 16),), BATCH),
    "speech": Network(Speech, lambda size: (torch.randn(1, 4, 8 + size),), ({2: "time"},)),
    "unet": Network(UNet, image(), BATCH),
    "vit": Network(ViT, image(), BATCH),
}


def made(name: str) -> tuple[nn.Module, Network]:
    """Return a network in the mode eval, always with the same weights."""
    torch.manual_seed(sum(map(ord, name)))
    network = NETWORKS[name]
    module = network.make()
    for norm in module.modules():  # statistics that are not those of a new network
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.uniform_(-0.5, 0.5)
            norm.running_var.uniform_(0.5, 2)
    return module.eval(), network


def open_sizes(network: Network) -> tuple[dict[int, Any], ...]:
    """Return the open sizes of a network, as torch.export takes them."""
    dims = {
        name: torch.export.Dim(name, min=1, max=64)
        for axes in network.open
        for name in axes.values()
    }
    return tuple({axis: dims[name] for axis, name in axes.items()} for axes in network.open)
