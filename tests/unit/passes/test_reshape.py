from __future__ import annotations

import pytest

from vkmnn.converter.passes.refine_shapes import RefineShapes
from vkmnn.converter.passes.reshape import MergeReshapes, SimplifyReshapes, reshape_target


@pytest.mark.parametrize(
    ("before", "after", "target"),
    [
        ((2, 3, 4), (2, 12), (0, 12)),
        ((6, 4), (2, 12), (2, 12)),
        (("N", 3, 4), ("N", 12), (0, 12)),
        (("N", 3, "L"), ("N", "3*L"), (0, -1)),
        (("N", "L"), ("L", "N"), None),
        (("N", "L"), ("L*N",), (-1,)),
        (("N", 4), (4, "N"), (4, -1)),
        ((None, 4), (None, 2, 2), (-1, 2, 2)),
        ((None, None), (None, None), None),
        ((0, 3), (3, 0), None),
        (None, (3,), None),
        ((3,), None, None),
    ],
)
def test_targets(before, after, target):
    assert reshape_target(before, after) == target


def test_two_reshapes(net, check):
    inner = net.op("Reshape", net.input(2, 3, 4), net.ints(6, 4))
    done = check(net.op("Reshape", inner, net.ints(0, 2, 2)), MergeReshapes())
    assert done.types == ["Reshape"]


@pytest.mark.parametrize("last", ["Flatten", "Squeeze", "Unsqueeze"])
def test_other_reshapes(net, check, last):
    inner = net.op("Unsqueeze", net.op("Flatten", net.input(1, 3, 4), axis=2), net.ints(0))
    rest = {"Flatten": (), "Squeeze": (net.ints(0),), "Unsqueeze": (net.ints(0),)}[last]
    done = check(net.op(last, inner, *rest), MergeReshapes())
    assert done.types == ["Reshape"]


def test_inner_reshape_that_is_used_elsewhere_stays(net, check):
    inner = net.op("Reshape", net.input(2, 6), net.ints(3, 4))
    out = net.op("Reshape", inner, net.ints(12))
    assert check((out, inner), MergeReshapes()).types == ["Reshape", "Reshape"]


def test_unknown_shapes(net, check):
    inner = net.op("Reshape", net.input(2, 6), net.ints(3, 4))
    out = net.op("Reshape", inner, net.ints(0, -1))
    assert check(out, MergeReshapes(), infos=False).rewrites == 0


def test_symbols(net, check):
    x = net.input(5, 3, 2, 2)
    out = net.op("Flatten", net.op("Reshape", x, net.ints(0, 0, -1)), axis=1)
    done = check(out, RefineShapes(), MergeReshapes(), dims={x: ("N", 3, 2, 2)})
    assert done.types == ["Reshape"]
    assert done.graph.constants[done.only.inputs[1]].tolist() == [0, 12]


def test_computed_target_of_known_size(net, check):
    x = net.input(5, 3, 4)
    batch = net.op("Gather", net.op("Shape", x), net.const(0, "int64"))
    target = net.op("Concat", net.op("Unsqueeze", batch, net.ints(0)), net.ints(12))
    out = net.op("Reshape", x, target)
    done = check(out, RefineShapes(), SimplifyReshapes(), dims={x: ("N", 3, 4)})
    assert done.types == ["Reshape"]
    assert done.graph.constants[done.only.inputs[1]].tolist() == [0, 12]


def test_computed_target_with_two_unknowns_that_moved(net, check):
    x = net.input(5, 3)
    shape = net.op("Shape", x)
    out = net.op("Reshape", x, net.op("Gather", shape, net.ints(1, 0)))
    done = check(out, RefineShapes(), SimplifyReshapes(), dims={x: ("N", "L")})
    assert done.types == ["Shape", "Gather", "Reshape"]
