"""Export the modules that the pass tests read, with both of PyTorch's ONNX exporters.

Run it with torch and onnxscript installed: it rewrites the files next to it. They contain tiny
weights, and no stack traces.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

HERE = Path(__file__).parent
MAX_BYTES = 20_000
SCRIPT, DYNAMO = "script", "dynamo"


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


class NewGelu(nn.Module):
    """GELU as GPT-2 writes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cubic = x + 0.044715 * torch.pow(x, 3.0)
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * cubic))


class RmsNorm(nn.Module):
    """RMS normalisation as LLaMA writes it, with casts that change nothing in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)


class SelfAttention(nn.Module):
    """nn.MultiheadAttention of one tensor with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Block(nn.Module):
    """A transformer block: pre-normalised causal (GPT) or post-normalised with a mask (BERT)."""

    def __init__(self, *, causal: bool, fused: bool) -> None:
        super().__init__()
        self.causal, self.fused = causal, fused
        self.before, self.after = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.gelu = NewGelu() if causal else nn.GELU()
        triangle = torch.tril(torch.ones(16, 16, dtype=torch.bool))
        self.register_buffer("triangle", triangle.view(1, 1, 16, 16), persistent=False)

    def attend(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, 2, width // 2).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(width // 2)
            if self.causal:
                visible = self.triangle[:, :, :length, :length]
                lowest = torch.finfo(scores.dtype).min
                scores = torch.where(visible, scores, torch.full([], lowest))
            else:
                scores = scores + mask
            y = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if self.causal:
            x = x + self.attend(self.before(x), mask)
            return x + self.down(self.gelu(self.up(self.after(x))))
        x = self.before(x + self.attend(x, mask))
        return self.after(x + self.down(self.gelu(self.up(x))))


class ConvBlock(nn.Module):
    """A residual block with BatchNorm, a group normalisation and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        for norm in self.norms:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.running_mean)
        self.group_norm = nn.GroupNorm(2, 4)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu6(self.norms[0](self.first(x)))
        x = F.relu(x + self.norms[1](self.second(y)))
        return torch.sigmoid(self.up(F.silu(self.group_norm(x))))


def random_affine(module: nn.Module) -> nn.Module:
    """Give a normalisation a nontrivial weight and bias."""
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    return module


@dataclass(frozen=True)
class Case:
    """A module, its inputs, the opset for each exporter that supports it, and its dynamic axes."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    opsets: dict[str, int] = field(default_factory=lambda: {SCRIPT: 17, DYNAMO: 18})
    dynamic: tuple[dict[int, str], ...] = ()


def cases() -> dict[str, Case]:
    """Return all cases by name; every module gets the same weights on every run."""
    torch.manual_seed(0)
    x, image = torch.randn(2, 5, 8), torch.randn(2, 4, 6, 5)
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4)
    sdpa = F.scaled_dot_product_attention
    boolean = torch.rand(2, 1, 5, 7) > 0.5
    boolean[..., 0] = True
    tokens = {0: "batch", 1: "length"}
    mask = {0: "batch", 3: "length"}
    old = {SCRIPT: 14}
    return {
        "gelu": Case(nn.GELU(), (x,)),
        "gelu_tanh": Case(nn.GELU("tanh"), (x,)),
        "new_gelu": Case(NewGelu(), (x,)),
        "silu": Case(nn.SiLU(), (x,)),
        "hardswish": Case(nn.Hardswish(), (x,), {SCRIPT: 13, DYNAMO: 18}),
        "mish": Case(nn.Mish(), (x,)),
        "softplus": Case(nn.Softplus(), (x,)),
        "layer_norm": Case(random_affine(nn.LayerNorm(8)), (x,), {SCRIPT: 14, DYNAMO: 18}),
        "rms_norm": Case(RmsNorm(), (x,)),
        "group_norm": Case(random_affine(nn.GroupNorm(2, 4)), (image,)),
        "group_norm_any": Case(
            random_affine(nn.GroupNorm(2, 4)), (image,), dynamic=({0: "n", 2: "h", 3: "w"},)
        ),
        "conv_block": Case(ConvBlock(), (image,)),
        "conv_block_any": Case(ConvBlock(), (image,), dynamic=({0: "n", 2: "h", 3: "w"},)),
        "attention": Case(Call(sdpa), (q, k, v)),
        "attention_mask": Case(Call(sdpa), (q, k, v, torch.randn(2, 1, 5, 7))),
        "attention_bool": Case(Call(sdpa), (q, k, v, boolean)),
        "attention_causal": Case(
            Call(lambda q, k, v: sdpa(q, k, v, is_causal=True)), (q, k[..., :5, :], v[..., :5, :])
        ),
        "self_attention": Case(SelfAttention(), (x,)),
        "self_attention_weights": Case(nn.MultiheadAttention(8, 2), (x, x, x)),
        "gpt": Case(Block(causal=True, fused=True), (x,)),
        "gpt_any": Case(Block(causal=True, fused=True), (x,), dynamic=(tokens,)),
        "gpt_eager": Case(Block(causal=True, fused=False), (x,)),
        "gpt_eager_any": Case(Block(causal=True, fused=False), (x,), dynamic=(tokens,)),
        "gpt_eager_old": Case(Block(causal=True, fused=False), (x,), old),
        "bert": Case(Block(causal=False, fused=True), (x, torch.randn(2, 1, 1, 5))),
        "bert_any": Case(
            Block(causal=False, fused=True),
            (x, torch.randn(2, 1, 1, 5)),
            dynamic=(tokens, mask),
        ),
        "bert_eager_any": Case(
            Block(causal=False, fused=False),
            (x, torch.randn(2, 1, 1, 5)),
            dynamic=(tokens, mask),
        ),
    }


def export(case: Case, exporter: str, opset: int) -> onnx.ModelProto:
    """Return the model that one of the exporters writes for a case."""
    module = case.module.eval()
    if exporter == DYNAMO:
        shapes = None
        if case.dynamic:
            dims = {
                name: torch.export.Dim(name, min=2, max=16)
                for axes in case.dynamic
                for name in axes.values()
            }
            shapes = tuple(
                {axis: dims[name] for axis, name in axes.items()} for axes in case.dynamic
            )
        program = torch.onnx.export(
            module,
            case.inputs,
            dynamo=True,
            opset_version=opset,
            dynamic_shapes=shapes,
            verbose=False,
        )
        return program.model_proto
    names = [f"x{number}" for number in range(len(case.inputs))]
    target = io.BytesIO()
    torch.onnx.export(
        module,
        case.inputs,
        target,
        dynamo=False,
        opset_version=opset,
        input_names=names,
        dynamic_axes=dict(zip(names, case.dynamic, strict=False)),
    )
    return onnx.load_from_string(target.getvalue())


def strip(model: onnx.ModelProto) -> None:
    """Remove stack traces, scopes and other notes."""
    model.ClearField("metadata_props")
    model.graph.ClearField("metadata_props")
    values = (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info)
    for one in (*values, *model.graph.initializer):
        one.ClearField("metadata_props")
        one.ClearField("doc_string")


def main() -> int:
    """Write all files; report those that are too large."""
    for name, case in cases().items():
        for exporter, opset in case.opsets.items():
            model = export(case, exporter, opset)
            strip(model)
            data = model.SerializeToString()
            path = HERE / f"{name}.{exporter}.onnx"
            path.write_bytes(data)
            sys.stdout.write(f"{path.name}: {len(model.graph.node)} nodes, {len(data)} bytes\n")
            if len(data) > MAX_BYTES:
                sys.stderr.write(f"{path.name} is larger than {MAX_BYTES} bytes\n")
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
