"""The passes' results for modules from both of PyTorch's exporters (tests/data/passes)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vkmnn.converter.onnx import load_model
from vkmnn.converter.passes import optimize
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import Array, DType, Graph
from vkmnn.ir.ops import UnaryAttrs

FOLDER = Path(__file__).parents[2] / "data" / "passes"

BLOCK = "4 MatMul, Split, 4 Reshape, 4 Transpose, 2 LayerNorm, Attention"
# Rows may be few, as in a decoder's step.
DECODER = "2 NormedMatMul, 2 MatMul, Split, 4 Reshape, 4 Transpose, Attention"
HEADS = "5 Transpose, 2 MatMul, 8 Reshape, Squeeze, 3 Gather, Attention"
IMAGE = "2 Convolution, GroupNorm, Deconvolution"

EXPECTED = {
    "attention": "Attention",
    "attention_bool.dynamo": "Select, Attention",
    # Rows may be masked with -inf completely, and are protected from it: that stays.
    "attention_bool.script": "2 MatMul, 2 Select, BinaryOp, Softmax, ISNAN",
    "attention_causal": "Attention",
    "attention_mask": "Attention",
    "bert": BLOCK,
    "bert_any": BLOCK,
    "bert_eager_any": BLOCK,
    "conv_block": IMAGE,
    "conv_block_any": IMAGE,
    "gelu": "GELU",
    "gelu_tanh": "GELU_TANH",
    "gpt": BLOCK,
    "gpt_any": DECODER,
    "gpt_eager": BLOCK,
    "gpt_eager_any": DECODER,
    "gpt_eager_old": BLOCK,
    "group_norm": "GroupNorm",
    "group_norm_any": "GroupNorm",
    "hardswish": "HARD_SWISH",
    "layer_norm": "LayerNorm",
    "mish": "MISH",
    "new_gelu": "GELU_TANH",
    "rms_norm": "LayerNorm",
    "self_attention": HEADS,
    # The weights are returned, so that the parts of the attention stay.
    "self_attention_weights.dynamo": "4 MatMul, 6 Reshape, 5 Transpose, Squeeze, 3 Gather, "
    "Softmax, Reduction",
    "self_attention_weights.script": "6 MatMul, 5 Reshape, 4 Transpose, Softmax, Reduction",
    "silu": "SILU",
    "softplus": "SOFTPLUS",
}

FILES = sorted(path.name.removesuffix(".onnx") for path in FOLDER.glob("*.onnx"))


def kinds(graph: Graph) -> Counter[str]:
    return Counter(
        op.attrs.kind if isinstance(op.attrs, UnaryAttrs) else op.type for op in graph.ops
    )


def counted(text: str) -> Counter[str]:
    parts = (part.split() for part in text.split(", "))
    return Counter({part[-1]: int(part[0]) if len(part) == 2 else 1 for part in parts})


def feeds(graph: Graph, size: int) -> dict[str, Array]:
    """Random inputs; symbols get sizes from `size` on, the same for the same symbol."""
    random, sizes = np.random.default_rng(size), {}
    made: dict[str, Array] = {}
    for info in graph.inputs:
        assert info.shape is not None
        shape = [
            dim if isinstance(dim, int) else sizes.setdefault(dim, size + 2 * len(sizes))
            for dim in info.shape
        ]
        array = random.standard_normal(shape)
        made[info.name] = array > 0 if info.dtype is DType.BOOL else array.astype(np.float32)
    return made


def run(graph: Graph, inputs: dict[str, Array]) -> list[Array]:
    values: dict[str, Array] = {**graph.constants, **inputs}
    for op in graph.ops:
        results = run_op(op, [values[name] if name else None for name in op.inputs])
        values.update(zip(op.outputs, results, strict=True))
    return [values[info.name] for info in graph.outputs]


def test_all_files_are_expected():
    assert FILES
    assert {name.split(".")[0] for name in FILES} == {name.split(".")[0] for name in EXPECTED}


@pytest.mark.parametrize("name", FILES)
def test_patterns_are_found(name):
    graph = optimize(load_model(FOLDER / f"{name}.onnx"), run_op)
    graph.validate()
    assert kinds(graph) == counted(EXPECTED.get(name) or EXPECTED[name.split(".")[0]])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [2, 5])
def test_results_stay_equal(name, size):
    graph = load_model(FOLDER / f"{name}.onnx")
    inputs = feeds(graph, size)
    for before, after in zip(run(graph, inputs), run(optimize(graph, run_op), inputs), strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["gpt.script", "gpt.dynamo", "gpt_any.script", "gpt_any.dynamo", "gpt_eager_any.dynamo"]
)
def test_causal_masks_are_found(name):
    graph = optimize(load_model(FOLDER / f"{name}.onnx"), run_op)
    (attention,) = (op for op in graph.ops if op.type == "Attention")
    assert attention.attrs.causal
    assert len(attention.inputs) == 3


def test_a_second_time_changes_nothing():
    once = optimize(load_model(FOLDER / "gpt_any.script.onnx"), run_op)
    assert optimize(once, run_op).ops == once.ops


def test_a_large_graph_takes_little_time():
    """Sixty-four transformer blocks, about 5000 ops: the time limit is three seconds."""
    block = load_model(FOLDER / "gpt_any.script.onnx")
    first, last = block.inputs[0].name, block.outputs[0]
    graph = Graph("large", list(block.inputs), [])
    value = first
    for number in range(64):
        names = {first: value}
        for name in (*block.constants, *(name for op in block.ops for name in op.outputs)):
            names[name] = f"{number}/{name}"
        graph.constants.update((names[name], array) for name, array in block.constants.items())
        for op in block.ops:
            inputs = [names[name] if name else "" for name in op.inputs]
            outputs = [names[name] for name in op.outputs]
            graph.ops.append(
                replace(op, name=f"{number}/{op.name}", inputs=inputs, outputs=outputs)
            )
        value = names[last.name]
    graph.outputs = [replace(last, name=value)]
    assert len(graph.ops) > 4900
    done = optimize(graph, run_op)
    assert kinds(done)["Attention"] == 64
