from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.norm_affine import FoldNormAffine, FuseNormResidual
from vkmnn.converter.passes.norm_rows import PickBeforeNorm
from vkmnn.ir.ops import Activation

FOLD = FoldNormAffine()
PICK = PickBeforeNorm()


@pytest.mark.parametrize("shape", [(7,), (1, 7), (), (1,), (1, 1, 1)])
def test_scale_and_shift_after_layer_norm(net, check, shape):
    norm = net.op("LayerNorm", net.input(3, 5, 7))
    out = net.binary("ADD", net.binary("MUL", norm, net.weights(*shape)), net.weights(7))
    done = check(out, FOLD)
    assert [done.graph.constants[name].shape for name in done.only.inputs[1:]] == [(7,), (7,)]


def test_several_normalised_axes(net, check):
    norm = net.op("LayerNorm", net.input(3, 5, 7), axis=1)
    done = check(net.binary("MUL", norm, net.weights(5, 1)), FOLD)
    assert done.graph.constants[done.only.inputs[1]].shape == (5, 7)


def test_constants_that_are_there_already(net, check):
    norm = net.op("LayerNorm", net.input(3, 7), net.weights(7), net.weights(7))
    out = net.binary("SUB", net.weights(7), net.binary("DIV", norm, net.weights(7)))
    assert check(out, FOLD).types == ["LayerNorm"]


@pytest.mark.parametrize("shape", [(5, 1), (5, 7), (2, 1, 1), (1, 1, 1, 7)])
def test_constants_for_other_axes(net, check, shape):
    norm = net.op("LayerNorm", net.input(3, 5, 7) if shape != (2, 1, 1) else net.input(1, 5, 7))
    assert check(net.binary("MUL", norm, net.weights(*shape)), FOLD).rewrites == 0


def test_a_constant_that_broadcasts_one_column(net, check):
    norm = net.op("LayerNorm", net.input(3, 1))
    assert check(net.binary("MUL", norm, net.weights(7)), FOLD).rewrites == 0


def test_group_norm(net, check):
    norm = net.op("GroupNorm", net.input(2, 4, 3, 5), groups=2)
    value = net.binary("MUL", norm, net.weights(4, 1, 1))
    value = net.binary("ADD", value, net.weights(1, 4, 1, 1), activation=Activation("RELU"))
    done = check(value, FOLD)
    assert done.only.attrs.activation == Activation("RELU")
    assert len(done.only.inputs) == 3


def test_group_norm_and_scale(net, check):
    norm = net.op("GroupNorm", net.input(2, 4, 3), net.weights(4), net.weights(4))
    assert check(net.op("Scale", norm, net.weights(4), net.weights(4)), FOLD).types == ["GroupNorm"]


def test_layer_norm_has_no_activation(net, check):
    norm = net.op("LayerNorm", net.input(3, 7))
    out = net.binary("MUL", norm, net.weights(7), activation=Activation("RELU"))
    assert check(out, FOLD).rewrites == 0


def test_other_reader_and_unknown_shape(net, check):
    norm = net.op("LayerNorm", net.unary("EXP", net.input(3, 7)))
    out = net.binary("MUL", norm, net.weights(7))
    assert check(out, FOLD, infos=False).rewrites == 0
    assert check((out, norm), FOLD).rewrites == 0


def test_statistics_that_are_used(net, check):
    norm = net.op("LayerNorm", net.input(3, 7), outputs=3)
    out = net.binary("MUL", norm, net.weights(7))
    assert check(out, FOLD).rewrites == 0


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_a_residual_around_a_normalisation(net, check, first, scaled):
    x = net.input(3, 5, 7)
    norm = net.op("LayerNorm", net.input(3, 5, 7), *([net.weights(7)] if scaled else []), rms=True)
    done = check(net.binary("ADD", *((norm, x) if first else (x, norm))), FuseNormResidual())
    assert done.types == ["LayerNorm"]
    assert done.only.inputs[2] == x


def test_residuals_that_stay_apart(net, check):
    x = net.input(3, 5, 7)
    biased = net.op("LayerNorm", x, net.weights(7), net.weights(7))
    assert check(net.binary("ADD", biased, x), FuseNormResidual()).rewrites == 0


@pytest.mark.parametrize("how", ["activation", "shape", "kind"])
def test_sums_that_are_no_residuals(net, check, how):
    x = net.input(3, 5, 7)
    norm = net.op("LayerNorm", x)
    other = net.input(5, 7) if how == "shape" else x
    more = {"activation": Activation("RELU")} if how == "activation" else {}
    out = net.binary("MUL" if how == "kind" else "ADD", norm, other, **more)
    assert check(out, FuseNormResidual()).rewrites == 0


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("rows", [(), (2,)])
def test_rows_are_picked_before_a_normalisation(net, check, axis, rows):
    norm = net.op("LayerNorm", net.input(3, 5, 7), net.weights(7), net.weights(7), axis=2)
    done = check(net.op("Gather", norm, net.const(np.full(rows, 1)), axis=axis), PICK)
    assert done.types == ["Gather", "LayerNorm"]
    assert done.attrs(1).axis == -1


@pytest.mark.parametrize("how", ["columns", "planes", "matrix", "read twice", "statistics"])
def test_rows_that_are_picked_after_a_normalisation(net, check, how):
    axis = 1 if how == "planes" else -1
    outputs = 3 if how == "statistics" else 1
    norm = net.op("LayerNorm", net.input(3, 5, 7), axis=axis, outputs=outputs)
    rows = net.const(np.eye(2, dtype=np.int64)) if how == "matrix" else net.ints(0, 2)
    out = net.op("Gather", norm, rows, axis=2 if how == "columns" else 0)
    assert check((out, norm) if how == "read twice" else out, PICK).rewrites == 0
