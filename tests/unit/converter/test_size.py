"""What loading costs grows with the model and not faster."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from vkmnn.converter.onnx import load_model
from vkmnn.converter.passes import optimize
from vkmnn.converter.passes.base import MAX_SOURCES, merged_source
from vkmnn.cpu_fallback import run_op
from vkmnn.errors import ModelError
from vkmnn.ir import Op
from vkmnn.ir.ops import OpAttrs

Build = Callable[..., onnx.ModelProto]
X = {"x": np.zeros((2, 3), np.float32)}


def chain(build: Build, length: int) -> onnx.ModelProto:
    names = ["x", *(f"t{number}" for number in range(length - 1)), "y"]
    nodes = [
        helper.make_node("Relu", [names[at]], [names[at + 1]], name=f"n{at}")
        for at in range(length)
    ]
    return build(nodes, X, ["y"])


def test_the_sources_of_a_long_chain_are_cut(build: Build) -> None:
    graph = optimize(load_model(chain(build, 10 * MAX_SOURCES)), run_op)
    (op,) = graph.ops
    parts = op.source.split(" + ")
    assert len(parts) == MAX_SOURCES + 1
    assert parts[-1] == "…"
    assert len(set(parts)) == len(parts)


def test_the_sources_of_a_short_chain_are_all_there(build: Build) -> None:
    graph = optimize(load_model(chain(build, 10)), run_op)
    (op,) = graph.ops
    assert op.source == " + ".join(f"n{number} (Relu)" for number in range(10))


def test_cut_sources_stay_cut() -> None:
    ops = [
        Op("Identity", f"op{n}", ["x"], ["y"], OpAttrs(), f"n{n}") for n in range(MAX_SOURCES + 1)
    ]
    cut = merged_source(ops)
    one = Op("Identity", "cut", ["x"], ["y"], OpAttrs(), cut)
    assert merged_source((one, one)) == cut
    assert merged_source((one, ops[-1])) == cut
    assert merged_source((ops[-1], one)).split(" + ")[-1] == "…"


def test_a_long_cycle_is_described_in_short(build: Build) -> None:
    model = chain(build, 5000)
    model.graph.node[0].input[0] = "y"
    with pytest.raises(ModelError, match="4984 more") as caught:
        load_model(model)
    assert len(str(caught.value)) < 2000
