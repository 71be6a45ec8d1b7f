from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.chain import FuseChains
from vkmnn.converter.passes.refine_shapes import RefineShapes
from vkmnn.ir.ops import MAX_STEPS, Activation

FUSE = FuseChains()


def kinds(op):
    return [step.kind for step in op.attrs.steps]


def test_the_grid_of_a_detector(net, check):
    x = net.unary("SIGMOID", net.input(1, 3, 5, 7, 2))
    doubled = net.binary("MUL", x, net.const(2.0))
    moved = net.binary("ADD", doubled, net.weights(1, 1, 5, 7, 2))
    done = check(net.binary("MUL", moved, net.const(8.0)), FUSE)
    assert kinds(done.only) == ["SIGMOID", "MUL", "ADD", "MUL"]
    assert done.only.attrs.numbers == (2.0, 8.0)
    assert len(done.only.inputs) == 2


def test_rotary_embedding(net, check):
    x, turned = net.input(2, 4, 5, 6), net.input(2, 4, 5, 6)
    cos, sin = net.input(1, 1, 5, 6), net.input(1, 1, 5, 6)
    out = net.binary("ADD", net.binary("MUL", x, cos), net.binary("MUL", turned, sin))
    assert sorted(kinds(check(out, FUSE).only)) == ["ADD", "MUL", "MUL"]


def test_gates_of_a_recurrent_cell(net, check):
    forget, state, gate, new = (net.input(3, 5) for _ in range(4))
    kept = net.binary("MUL", net.unary("SIGMOID", forget), state)
    added = net.binary("MUL", net.unary("SIGMOID", gate), net.unary("TANH", new))
    done = check(net.binary("ADD", kept, added), FUSE)
    assert len(done.only.attrs.steps) == 6
    assert len(done.only.inputs) == 4


FUNCTIONS = [
    "ABS", "NEG", "RECIPROCAL", "FLOOR", "CEIL", "ROUND", "SIGN", "SQUARE", "EXP", "RELU", "CLIP",
    "LEAKY_RELU", "SIGMOID", "HARD_SIGMOID", "HARD_SWISH", "TANH", "SOFTSIGN", "SILU",
]  # fmt: skip


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions(net, check, kind):
    x = net.binary("ADD", net.input(3, 5), net.weights(5))
    assert check(net.unary(kind, x, 0.25, 0.625), FUSE).types == ["Elementwise"]


@pytest.mark.parametrize("kind", ["SQRT", "RSQRT", "LOG"])
def test_functions_of_positive_numbers(net, check, kind):
    x = net.binary("ADD", net.unary("ABS", net.input(3, 5)), net.const(0.5))
    assert check(net.unary(kind, x), FUSE).types == ["Elementwise"]


@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL", "DIV", "MIN", "MAX", "PRELU"])
def test_kinds_with_an_activation(net, check, kind):
    x = net.unary("EXP", net.input(3, 5))
    out = net.binary(kind, x, net.input(5), activation=Activation("HARD_SWISH"))
    assert kinds(check(out, FUSE).only) == ["EXP", kind, "MUL_ADD", "CLIP", "MUL"]


@pytest.mark.parametrize("power", [2.0, 3.0])
def test_powers(net, check, power):
    x = net.binary("SUB", net.input(3, 5), net.input(3, 1))
    done = check(net.binary("POW", x, net.const(power)), FUSE)
    assert kinds(done.only) == ["SUB"] + ["MUL"] * int(power - 1)


def test_quick_gelu_and_a_value_that_two_steps_read(net, check):
    x = net.unary("QUICK_GELU", net.binary("ADD", net.input(3, 5), net.input(5)), 1.5)
    assert kinds(check(net.binary("MUL", x, x), FUSE).only) == [
        "ADD",
        "MUL",
        "SIGMOID",
        "MUL",
        "MUL",
    ]


def test_scale_brings_its_channels_along(net, check):
    x = net.unary("ABS", net.input(2, 3, 5, 7))
    done = check(net.op("Scale", x, net.weights(3), net.weights(3)), FUSE)
    assert kinds(done.only) == ["ABS", "MUL_ADD"]
    assert [net_shape(done, name) for name in done.only.inputs[1:]] == [(3, 1, 1), (3, 1, 1)]


def net_shape(done, name):
    return done.graph.constants[name].shape


@pytest.mark.parametrize("kind", ["GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "EQUAL"])
def test_a_choice_by_a_comparison(net, check, kind):
    x, y = net.input(3, 5), net.const(np.float32(0.25))
    out = net.op("Select", net.binary(kind, x, y), x, net.binary("MUL", x, y))
    done = check(out, FUSE)
    assert sorted(kinds(done.only)) == sorted([kind, "MUL", "SELECT"])
    assert done.only.inputs == [x]


def test_longer_chains_than_a_kernel_takes(net, check):
    x = net.input(3, 5)
    for _ in range(MAX_STEPS + 3):
        x = net.binary("ADD", x, net.const(0.5))
    done = check(x, FUSE)
    assert [len(op.attrs.steps) for op in done.graph.ops] == [MAX_STEPS, 3]


def test_more_operands_than_a_kernel_takes(net, check):
    x = net.input(3, 5)
    for _ in range(5):
        x = net.binary("ADD", x, net.input(3, 5))
    done = check(x, FUSE)
    assert [len(op.inputs) for op in done.graph.ops] == [4, 3]


def test_chains_grow_over_rounds(net, check):
    x = net.binary("MUL", net.unary("EXP", net.input(3, 5)), net.input(3, 5))
    done = check(net.unary("TANH", x), FUSE, FUSE)
    assert kinds(done.only) == ["EXP", "MUL", "TANH"]


def test_symbolic_shapes(net, check):
    x = net.input(2, 3, name="x")
    out = net.binary("MUL", net.unary("EXP", x), x)
    done = check(out, RefineShapes(), FUSE, dims={"x": ("N", "L")})
    assert done.types == ["Elementwise"]


def test_what_stays(net, check):
    x = net.input(3, 5)
    lone = net.binary("ADD", x, net.const(1.0))
    gelu = net.unary("GELU", net.binary("SUB", x, net.const(1.0)))
    small = net.unary("EXP", net.input(3, 1))
    gated = net.binary("MUL", x, small)
    read = net.unary("ABS", x)
    outside = net.binary("MUL", read, x)
    condition = net.input(3, 5, dtype="bool")
    chosen = net.op("Select", condition, net.unary("NEG", x), x)
    high = net.binary("ADD", net.unary("ABS", net.input(1, 1, 1, 1, 1, 2, 3)), net.const(1.0))
    outputs = (lone, gelu, gated, read, outside, chosen, high)
    assert check(outputs, FUSE).rewrites == 0


def test_integers_stay(net, check):
    x = net.input(3, 5, dtype="int32")
    assert check(net.unary("ABS", net.binary("ADD", x, x)), FUSE).rewrites == 0


def test_unknown_shapes_stay(net, check):
    out = net.unary("ABS", net.binary("ADD", net.input(3, 5), net.input(5)))
    assert check(out, FUSE, infos=False).rewrites == 0
