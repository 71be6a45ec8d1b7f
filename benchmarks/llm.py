"""`bench llm`: prompts and texts of a LLaMA-like model, compared with onnxruntime and llama.cpp."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import llama_cpp
from vkmnn import llm
from vkmnn.host.sessions import session_options
from vkmnn.llm.generation import Generated
from vkmnn.schedule_config import PrecisionName

LLAMA_CPP = "llama.cpp Vulkan"
LARGE_BYTES = 1 << 30
"""Of weights in a file of their own: protobuf writes at most twice that."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model; by default one with 125 million parameters."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    kv_heads: int = 4
    inner: int = 2048
    vocabulary: int = 32000
    positions: int = 2048
    bits: int = 4  # of weights, in blocks of 32; 32 for floats

    @property
    def depth(self) -> int:
        """The size of a head."""
        return self.width // self.heads


SHAPES = {
    "125m": Sizes(),
    "1b": Sizes(layers=22, width=2048, heads=32, inner=5632),
    "8b": Sizes(layers=32, width=4096, heads=32, kv_heads=8, inner=14336),
}
"""Sizes by name: 0.1, 1.0 and 7.1 billion parameters in products; 32,000 tokens each."""


PRECISIONS: tuple[PrecisionName, ...] = ("high", "fast", "normal", "low")
"""Of vkmnn's sessions; the other engines have one."""


@dataclass(frozen=True)
class Load:
    """What a model is asked for: tokens of a prompt and a text, texts at once, and its caches."""

    prompt: int = 64
    tokens: int = 64
    texts: int = 1
    kv_cache_dtype: llm.KvCacheDtype = "f32"


@dataclass(frozen=True)
class Rates:
    """Tokens per second, of the prompts and of the texts; of all texts if there are several.

    And if they are known: dispatches per run, and milliseconds of CPU time per token.
    """

    engine: str
    prefill: float
    decode: float
    commands: float | None = None
    host_ms: float | None = None
    precision: str = ""  # of vkmnn


class _Builder:
    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: list[str], outputs: list[str], **how: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, outputs, **how))
        return outputs[0]

    def constant(self, name: str, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def linear(self, x: str, name: str, size: int, width: int) -> str:
        if self.sizes.bits != 32:
            return self.coded(x, name, size, width)
        weight = self.rng.standard_normal((size, width), np.float32) / np.float32(size**0.5)
        return self.node("MatMul", [x, self.constant(f"{name}.w", weight)], [name])

    def coded(self, x: str, name: str, size: int, width: int) -> str:
        blocks, bits = -(-size // 32), self.sizes.bits
        codes = self.rng.integers(0, 256, (width, blocks, 4 * bits), dtype=np.uint8)
        step = np.float32(2 ** (1 - bits) * 1.7 / size**0.5)
        scales = np.full((width, blocks), step, np.float32)
        weights = [self.constant(f"{name}.q", codes), self.constant(f"{name}.s", scales)]
        return self.node("MatMulNBits", [x, *weights], [name], domain="com.microsoft", K=size,
                         N=width, bits=bits, block_size=32)  # fmt: skip

    def skip_norm(self, x: str, skip: str, name: str) -> tuple[str, str]:
        scale = self.constant(f"{name}.scale", np.ones(self.sizes.width, np.float32))
        outputs = [name, "", "", f"{name}.sum"]
        self.node("SkipSimplifiedLayerNormalization", [x, skip, scale], outputs,
                  domain="com.microsoft", epsilon=1e-5)  # fmt: skip
        return name, outputs[3]


def _layer(b: _Builder, number: int, y: str, x: str) -> tuple[str, str]:
    s, name = b.sizes, f"layer.{number}"
    width, kv = s.heads * s.depth, s.kv_heads * s.depth
    qkv = b.linear(y, f"{name}.qkv", s.width, width + 2 * kv)
    past = [f"past_key_values.{number}.{part}" for part in ("key", "value")]
    present = [f"present.{number}.{part}" for part in ("key", "value")]
    attended = b.node("GroupQueryAttention", [qkv, "", "", *past, "last", "total", "cos", "sin"],
                      [f"{name}.attn", *present], domain="com.microsoft", num_heads=s.heads,
                      kv_num_heads=s.kv_heads, do_rotary=1)  # fmt: skip
    y, x = b.skip_norm(x, b.linear(attended, f"{name}.o", width, s.width), f"{name}.norm")
    gate = b.linear(y, f"{name}.gate", s.width, s.inner)
    act = b.node("Mul", [gate, b.node("Sigmoid", [gate], [f"{name}.s"])], [f"{name}.silu"])
    mixed = b.node("Mul", [act, b.linear(y, f"{name}.up", s.width, s.inner)], [f"{name}.mix"])
    return b.skip_norm(x, b.linear(mixed, f"{name}.down", s.inner, s.width), f"{name}.norm2")


def write_model(folder: Path, sizes: Sizes) -> Path:
    """Write a model with random weights as onnxruntime-genai's builder does; return its file."""
    b = _Builder(sizes)
    half = sizes.depth // 2
    angles = np.arange(sizes.positions)[:, None] / 10000.0 ** (np.arange(half) / half)
    b.constant("cos", np.cos(angles).astype(np.float32))
    b.constant("sin", np.sin(angles).astype(np.float32))
    b.constant("one", np.int64(1))
    b.constant("axis", np.array([1]))
    kept = b.node("ReduceSum", ["attention_mask", "axis"], ["kept"], keepdims=0)
    b.node("Cast", [b.node("Sub", [kept, "one"], ["less"])], ["last"], to=TensorProto.INT32)
    columns = b.node("Gather", [b.node("Shape", ["attention_mask"], ["sizes"]), "one"], ["columns"])
    b.node("Cast", [columns], ["total"], to=TensorProto.INT32)
    table = b.rng.standard_normal((sizes.vocabulary, sizes.width), np.float32)
    x = b.node("Gather", [b.constant("embed", table), "input_ids"], ["x"])
    scale = b.constant("norm.scale", np.ones(sizes.width, np.float32))
    y = b.node("SimplifiedLayerNormalization", [x, scale], ["norm"], axis=-1, epsilon=1e-5)
    for number in range(sizes.layers):
        y, x = _layer(b, number, y, x)
    b.linear(y, "logits", sizes.width, sizes.vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    outside = sum(len(constant.raw_data) for constant in b.constants) > LARGE_BYTES
    data = path.with_name("model.onnx.data")
    data.unlink(missing_ok=True)  # onnx appends
    onnx.save(_model(b), str(path), save_as_external_data=outside, location=data.name)
    decoder = {"filename": "model.onnx", "inputs": {}, "outputs": {}}
    config = {"model": {"type": "llama", "context_length": sizes.positions, "decoder": decoder}}
    (folder / "genai_config.json").write_text(json.dumps(config), "utf-8")
    return path


def _model(b: _Builder) -> onnx.ModelProto:
    s, info = b.sizes, helper.make_tensor_value_info
    caches = [f"{n}.{part}" for n in range(s.layers) for part in ("key", "value")]

    def cache(name: str, rows: str) -> onnx.ValueInfoProto:
        return info(name, TensorProto.FLOAT, ["batch", s.kv_heads, rows, s.depth])

    lengths = {"input_ids": "length", "attention_mask": "total_length"}
    inputs = [info(n, TensorProto.INT64, ["batch", rows]) for n, rows in lengths.items()]
    inputs += [cache(f"past_key_values.{name}", "past_length") for name in caches]
    outputs = [info("logits", TensorProto.FLOAT, ["batch", "length", s.vocabulary])]
    outputs += [cache(f"present.{name}", "total_length") for name in caches]
    graph = helper.make_graph(b.nodes, "decoder", inputs, outputs, b.constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def measure(
    folder: Path,
    sizes: Sizes,
    device: str,
    load: Load,
    rounds: int,
    precisions: Sequence[PrecisionName] = ("high",),
) -> tuple[list[Rates], str]:
    """Return the rates of vkmnn, and of onnxruntime and llama.cpp if they are installed.

    Beside them the name of the device. Several texts at once are measured by vkmnn alone.

    Args:
        folder: where the model is written.
        sizes: the sizes of the model.
        device: where vkmnn runs.
        load: prompt and texts.
        rounds: how often each engine generates the texts, alternating.
        precisions: those of vkmnn, each of which counts as an engine.
    """
    path = write_model(folder, sizes)
    engines: dict[str, Callable[[list[int]], Rates]] = {}
    with ExitStack() as stack:
        for precision in precisions:
            model = stack.enter_context(opened(folder, device, load, precision))
            engines[f"vkmnn {precision}"] = partial(_ours, model, load, precision)
        if load.texts == 1:
            engines |= _others(path, sizes, load.tokens, model.device.index)
        rng = np.random.default_rng(1)
        found: dict[str, list[Rates]] = {name: [] for name in engines}
        for turn in range(rounds + 1):
            ids = rng.integers(0, sizes.vocabulary, load.prompt).tolist()
            for name, run in engines.items():
                rates = run(ids)
                if turn:  # the first warms up
                    found[name].append(rates)
        return [_median(rates) for rates in found.values()], model.device.name


def opened(
    folder: Path, device: str, load: Load, precision: PrecisionName = "high"
) -> llm.LanguageModel:
    """Open a model with room for the longest text, and for prompts that are padded."""
    capacity = load.prompt + load.tokens + 8
    return llm.load(
        folder, device, capacity=capacity, precision=precision, kv_cache_dtype=load.kv_cache_dtype
    )


def _others(
    path: Path, sizes: Sizes, tokens: int, index: int
) -> dict[str, Callable[[list[int]], Rates]]:
    """Return the other engines that are installed."""
    engines: dict[str, Callable[[list[int]], Rates]] = {}
    other = _onnxruntime(path, sizes, tokens)
    if other is not None:
        engines["onnxruntime CPU"] = other
    peer = llama_cpp.find(path.parent, _gguf_shape(sizes), index) if sizes.bits == 4 else None
    if peer is not None:
        engines[LLAMA_CPP] = lambda ids: Rates(LLAMA_CPP, *peer(len(ids), tokens))
    return engines


def _gguf_shape(sizes: Sizes) -> llama_cpp.Shape:
    names = (field.name for field in fields(llama_cpp.Shape))
    return llama_cpp.Shape(**{name: getattr(sizes, name) for name in names})


def _median(rates: Sequence[Rates]) -> Rates:
    prefill, decode = (median(r.prefill for r in rates), median(r.decode for r in rates))
    host = [rate.host_ms for rate in rates if rate.host_ms is not None]
    shown = median(host) if host else None
    return replace(rates[0], prefill=prefill, decode=decode, host_ms=shown)


def rates_of(model: llm.LanguageModel, ids: list[int], load: Load, precision: str) -> Rates:
    """Run a prompt and generate texts.

    Each of several texts has a prompt of its own; the tokens of all are counted together.

    Args:
        model: the model.
        ids: the tokens of the prompt.
        load: tokens and texts.
        precision: of the model, for the record.
    """
    before = model.counters()
    prompts = [[*ids[1:], number % 7] for number in range(load.texts)]
    start = time.perf_counter()
    made: list[Generated] = (
        [model.generate(ids, load.tokens)]
        if load.texts == 1
        else model.generate(prompts, load.tokens)
    )
    spent = time.perf_counter() - start
    after = model.counters()
    # Prompts of several texts take turns, so that all end with the last one.
    prefill_s = max(each.prefill_seconds for each in made)
    decode_s = made[0].decode_seconds if load.texts == 1 else spent - prefill_s
    submits, commands = (after[name] - before.get(name, 0) for name in ("submits", "commands"))
    tokens = sum(len(each.tokens) - 1 for each in made)
    run = sum(each.prompt_tokens - each.cached_tokens for each in made)
    prefill, decode = run / max(prefill_s, 1e-9), tokens / max(decode_s, 1e-9)
    host_ms = sum(each.host_seconds for each in made) / max(tokens, 1) * 1e3
    return Rates("vkmnn", prefill, decode, commands / max(submits, 1), host_ms, precision)


def _ours(model: llm.LanguageModel, load: Load, precision: str, ids: list[int]) -> Rates:
    return rates_of(model, ids, load, precision)


def _onnxruntime(path: Path, sizes: Sizes, tokens: int) -> Callable[[list[int]], Rates] | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(
        str(path), session_options(), providers=["CPUExecutionProvider"]
    )
    names = [info.name for info in session.get_inputs() if info.name.startswith("past")]

    def run(ids: list[int]) -> Rates:
        empty = np.zeros((1, sizes.kv_heads, 0, sizes.depth), np.float32)
        past: dict[str, Any] = dict.fromkeys(names, empty)
        held, new, times = 0, ids, []
        for _ in range(tokens):
            start = time.perf_counter()
            mask = np.ones((1, held + len(new)), np.int64)
            feeds = {"input_ids": np.array([new]), "attention_mask": mask, **past}
            logits, *presents = session.run(None, feeds)
            past = dict(zip(names, presents, strict=True))
            held += len(new)
            new = [int(logits[0, -1].argmax())]
            times.append(time.perf_counter() - start)
        return Rates("onnxruntime CPU", len(ids) / times[0], (tokens - 1) / sum(times[1:]))

    return run
