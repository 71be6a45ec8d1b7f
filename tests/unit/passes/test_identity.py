from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.identity import RemoveNoOps
from vkmnn.ir import DType
from vkmnn.ir.ops import Activation

INT64_MAX = 2**63 - 1


def removed(net, check, value, **options):
    """Check that the op before a final TANH is removed."""
    return check(net.unary("TANH", value), RemoveNoOps(), **options).kinds == ["TANH"]


def test_identity_between(net, check):
    assert removed(net, check, net.op("Identity", net.input(3)))


def test_identity_that_names_an_output(net, check):
    inner = net.unary("RELU", net.input(3))
    tanh = net.unary("TANH", inner)
    done = check((net.op("Identity", inner, out="y"), tanh), RemoveNoOps())
    assert done.kinds == ["RELU", "TANH"]
    assert done.graph.ops[0].outputs == ["y"]


def test_identities_that_have_to_stay(net, check):
    relu = net.unary("RELU", net.input(3, name="x"))
    outputs = (net.op("Identity", "x"), relu, net.op("Identity", relu), net.op("Identity", relu))
    assert check(outputs, RemoveNoOps()).rewrites == 0


def test_chain_of_identities(net, check):
    value = net.unary("RELU", net.input(3))
    for _ in range(3):
        value = net.op("Identity", value)
    assert check(value, RemoveNoOps()).kinds == ["RELU"]


@pytest.mark.parametrize("target", [(2, 3), (-1, 3), (0, -1), (0, 0), (2, -1)])
def test_reshape_to_the_same_shape(net, check, target):
    assert removed(net, check, net.op("Reshape", net.input(2, 3), net.ints(*target)))


@pytest.mark.parametrize("target", [(3, 2), (6,), (-1,), (1, 2, 3), (3, -1)])
def test_reshape_to_another_shape(net, check, target):
    assert not removed(net, check, net.op("Reshape", net.input(2, 3), net.ints(*target)))


def test_reshape_of_unknown_shape(net, check):
    inner = net.unary("RELU", net.input(2, 3))
    out = net.op("Reshape", inner, net.ints(-1, 3))
    assert check(out, RemoveNoOps(), infos=False).rewrites == 0


@pytest.mark.parametrize(
    ("kind", "inputs", "attrs"),
    [
        ("Transpose", (), {"perm": (0, 1)}),
        ("Flatten", (), {"axis": 1}),
        ("Cast", (), {"to": DType.FLOAT32}),
        ("Concat", (), {}),
        ("Split", (), {"num_outputs": 1}),
        ("Slice", ((0,), (INT64_MAX,)), {}),
        ("Slice", ((0, 0), (2, 9), (0, 1), (1, 1)), {}),
        ("Slice", ((0,), (3,), (-1,)), {}),
        ("Expand", ((1,),), {}),
        ("Expand", ((2, 3),), {}),
        ("Tile", ((1, 1),), {}),
        ("Pad", ((0, 0, 0, 0),), {}),
    ],
)
def test_ops_that_change_nothing(net, check, kind, inputs, attrs):
    rest = [net.ints(*values) for values in inputs]
    assert removed(net, check, net.op(kind, net.input(2, 3), *rest, **attrs))


@pytest.mark.parametrize(
    ("kind", "inputs", "attrs"),
    [
        ("Transpose", (), {"perm": (1, 0)}),
        ("Transpose", (), {}),
        ("Flatten", (), {"axis": 0}),
        ("Cast", (), {"to": DType.FLOAT16}),
        ("Slice", ((1,), (INT64_MAX,)), {}),
        ("Slice", ((0,), (1,)), {}),
        ("Slice", ((0,), (-1,), (1,)), {}),
        ("Slice", ((0,), (INT64_MAX,), (1,), (2,)), {}),
        ("Expand", ((1, 2, 3),), {}),
        ("Expand", ((1, 1, 1),), {}),
        ("Tile", ((1, 2),), {}),
        ("Pad", ((0, 0, 0, 1),), {}),
    ],
)
def test_ops_that_change_something(net, check, kind, inputs, attrs):
    rest = [net.ints(*values) for values in inputs]
    value = net.op(kind, net.input(2, 3), *rest, **attrs)
    assert check(value, RemoveNoOps()).rewrites == 0


def test_blocks_of_one(net, check):
    value = net.op("DepthToSpace", net.input(1, 4, 3, 5), block_size=1)
    assert removed(net, check, net.op("SpaceToDepth", value, block_size=1))


@pytest.mark.parametrize(
    ("kind", "value"), [("ADD", 0), ("SUB", 0), ("MUL", 1), ("DIV", 1), ("POW", 1)]
)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (1, 1)])
def test_neutral_elements(net, check, kind, value, shape):
    constant = net.const(np.full(shape, value, np.float32))
    assert removed(net, check, net.binary(kind, net.input(2, 3), constant))


def test_neutral_element_on_the_left(net, check):
    assert removed(net, check, net.binary("ADD", net.const(0.0), net.input(3)))


@pytest.mark.parametrize("kind", ["SUB", "DIV", "POW"])
def test_no_neutral_element_on_the_left(net, check, kind):
    constant = net.const(0.0 if kind == "SUB" else 1.0)
    assert not removed(net, check, net.binary(kind, constant, net.input(3)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1, 1), (4, 3)])
def test_neutral_elements_that_broadcast(net, check, shape):
    value = net.binary("ADD", net.input(1, 3), net.const(np.zeros(shape, np.float32)))
    assert check(value, RemoveNoOps()).rewrites == 0


def test_neutral_element_and_unknown_shape(net, check):
    inner = net.unary("RELU", net.input(2, 3))
    out = net.binary("ADD", inner, net.const(np.zeros(1, np.float32)))
    assert check(out, RemoveNoOps(), infos=False).rewrites == 0


def test_neutral_element_with_an_activation(net, check):
    value = net.binary("ADD", net.input(3), net.const(0.0), activation=Activation("RELU"))
    assert check(value, RemoveNoOps()).rewrites == 0


def test_logic(net, check):
    x = net.input(3, dtype="bool")
    value = net.binary(
        "OR", net.binary("AND", net.const(True, "bool"), x), net.const(False, "bool")
    )
    assert check(net.unary("NOT", value), RemoveNoOps()).kinds == ["NOT"]


def test_shape_knowledge_survives(net, check):
    inner = net.unary("RELU", net.input(3, 1))
    value = net.op("Identity", inner)
    graph = net.finish(net.unary("TANH", value))
    del graph.infos[inner]
    RemoveNoOps().run(graph)
    assert graph.infos[inner].shape == (3, 1)


def test_no_ops_before_an_op_of_many_inputs(net, check):
    """Each reads where it read before, also a tensor that is read twice, and chains."""
    values = [net.unary("RELU", net.input(3)) for _ in range(20)]
    once = [net.op("Identity", value) for value in values]
    twice = [net.op("Identity", value) for value in once[:7]]
    concat = net.op("Concat", *once, *twice, *reversed(once), values[3], axis=0)
    done = check(concat, RemoveNoOps())
    assert done.kinds == ["RELU"] * 20 + ["Concat"]
    assert done.graph.ops[-1].inputs == [*values, *values[:7], *reversed(values), values[3]]
