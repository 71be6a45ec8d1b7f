"""Operators of TFLite for which LiteRT is no oracle, by numpy: it has no kernel, or another one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.model.tflite_ops import Case, Fixed, Result, ints, normal, one
from tests.tflite_files import SCHEMA, Writer, parsed
from vkmnn.schema import write

A, B = normal(3, 4), np.abs(normal(3, 4)) + np.float32(0.2)
WHOLE, OTHER = ints(*range(12)).reshape(3, 4), ints(*range(12, 0, -1)).reshape(3, 4)
CUBE = normal(2, 3, 4)


def run(case: Case) -> list[np.ndarray]:
    session = vkmnn.InferenceSession(case.model, device="cpu")
    named = zip(session.get_inputs(), case.feeds, strict=True)
    return session.run(None, {arg.name: array for arg, array in named})


def hlo(
    kind: str, operands: Sequence[Any], result: np.ndarray, options: dict[str, Any] | None = None
) -> tuple[Case, np.ndarray]:
    """Return a file of one StableHLO operator, and its result."""
    kinds = {"float32": "FLOAT32", "int32": "INT32", "bool": "BOOL"}
    made = Result(result.shape, kinds[result.dtype.name])
    table = None
    if options is not None:
        words = "".join(word.capitalize() for word in kind.split("_"))
        table = (f"Stablehlo{words}Options", options)
    return one(f"STABLEHLO_{kind}", operands, made, table), result


HLO = {
    **{
        kind: hlo(kind, [A, B], function(A, B))
        for kind, function in (
            *(("SUBTRACT", np.subtract), ("DIVIDE", np.divide), ("REMAINDER", np.fmod)),
        )
    },
    "POWER": hlo("POWER", [B, A], np.power(B, A)),
    **{
        kind: hlo(kind, [B], function(B))
        for kind, function in (
            *(("ABS", np.abs), ("NEGATE", np.negative), ("EXPONENTIAL", np.exp), ("LOG", np.log)),
            *(("TANH", np.tanh), ("COSINE", np.cos), ("FLOOR", np.floor)),
            ("LOGISTIC", lambda x: 1 / (1 + np.exp(-x))),
            ("RSQRT", lambda x: 1 / np.sqrt(x)),
        )
    },
    "AND": hlo("AND", [A > 0, B > 1], (A > 0) & (B > 1)),
    "OR": hlo("OR", [WHOLE, OTHER], WHOLE | OTHER),
    "CLAMP": hlo("CLAMP", [Fixed(np.float32(-0.5)), A, Fixed(np.float32(0.5))], A.clip(-0.5, 0.5)),
    "SELECT": hlo("SELECT", [A > 0, A, B], np.where(A > 0, A, B)),
    **{
        f"COMPARE {number}": hlo(
            "COMPARE", [WHOLE, OTHER], function(WHOLE, OTHER), {"comparison_direction": number}
        )
        for number, function in enumerate(
            (np.equal, np.not_equal, np.greater_equal, np.greater, np.less_equal, np.less)
        )
    },
    "CONVERT": hlo("CONVERT", [np.float32([1.7, -1.7])], ints(1, -1)),
    "RESHAPE": hlo("RESHAPE", [A], A.reshape(2, 6)),
    "TRANSPOSE": hlo("TRANSPOSE", [CUBE], CUBE.transpose(2, 0, 1), {"permutation": [2, 0, 1]}),
    "CONCATENATE": hlo("CONCATENATE", [A, B], np.concatenate([A, B], 1), {"dimension": 1}),
    "BROADCAST_IN_DIM": hlo(
        "BROADCAST_IN_DIM",
        [A],
        np.broadcast_to(A[:, None], (3, 2, 4)),
        {"broadcast_dimensions": [0, 2]},
    ),
    "SLICE": hlo(
        "SLICE",
        [A],
        A[1:3, 0:4:2],
        {"start_indices": [1, 0], "limit_indices": [3, 4], "strides": [1, 2]},
    ),
    "PAD": hlo(
        "PAD",
        [A, Fixed(np.float32(7))],
        np.pad(A, [(1, 0), (0, 2)], constant_values=7),
        {"edge_padding_low": [1, 0], "edge_padding_high": [0, 2], "interior_padding": [0, 0]},
    ),
    "IOTA": hlo("IOTA", [], np.tile(ints(0, 1, 2), (2, 1)), {"iota_dimension": 1}),
    "DYNAMIC_SLICE": hlo(
        "DYNAMIC_SLICE", [A, np.int32(9), np.int32(1)], A[1:3, 1:3], {"slice_sizes": [2, 2]}
    ),
    "DOT_GENERAL": hlo(
        "DOT_GENERAL",
        [CUBE, normal(2, 5, 4)],
        np.zeros((2, 3, 5), np.float32),
        {
            "lhs_batching_dimensions": [0],
            "rhs_batching_dimensions": [0],
            "lhs_contracting_dimensions": [2],
            "rhs_contracting_dimensions": [2],
        },
    ),
}


@pytest.mark.parametrize("name", HLO)
def test_stablehlo(name: str) -> None:
    case, wanted = HLO[name]
    if name == "DOT_GENERAL":
        wanted = np.einsum("bij,bkj->bik", *case.feeds)
    (found,) = run(case)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_response_normalization() -> None:
    """As TensorFlow has it; LiteRT's reference kernel leaves out the last of the channels."""
    x = normal(1, 2, 3, 9)
    options = {"radius": 2, "bias": 1.5, "alpha": 0.4, "beta": 0.7}
    kind = "LOCAL_RESPONSE_NORMALIZATION"
    found = run(one(kind, [x], Result(x.shape), (f"{_camel(kind)}Options", options)))[0]
    squares = np.pad(x**2, [(0, 0)] * 3 + [(2, 2)])
    sums = np.lib.stride_tricks.sliding_window_view(squares, 5, 3).sum(-1)
    np.testing.assert_allclose(found, x / (1.5 + 0.4 * sums) ** 0.7, rtol=1e-5)


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@pytest.mark.parametrize("kind", ["RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL"])
def test_random_numbers(kind: str) -> None:
    case = one(kind, [Fixed(ints(40, 50))], Result((40, 50)), ("RandomOptions", {"seed": 3}))
    (found,) = run(case)
    assert found.shape == (40, 50)
    mean, spread = (0.5, 0.29) if kind == "RANDOM_UNIFORM" else (0, 1)
    assert abs(found.mean() - mean) < 0.1
    assert abs(found.std() - spread) < 0.1


def test_drawn_classes() -> None:
    odds = np.log(np.float32([[0.001, 0.001, 1], [1, 0.001, 0.001]]))
    case = one("MULTINOMIAL", [odds, Fixed(ints(50).reshape(()))], Result((2, 50), "INT64"))
    (found,) = run(case)
    assert found.shape == (2, 50)
    assert [np.bincount(row).argmax() for row in found] == [2, 0]


def test_calls_and_bits() -> None:
    writer = Writer()
    x, y, z, w = (writer.tensor((2,)) for _ in range(4))
    words = writer.constant(ints(0x3F800000, 0x40000000))
    writer.op("BITCAST", [words], [y])
    writer.op("CALL", [x], [z], ("CallOptions", {"subgraph": 1}))
    writer.op("ADD", [z, y], [w])
    writer.faces([x], [w])
    writer.begin()
    a, b = writer.tensor((2,)), writer.tensor((2,))
    writer.op("NEG", [a], [b])
    writer.faces([a], [b])
    (found,) = run(Case(writer.finish(), [np.float32([5, 6])]))
    assert found.tolist() == [-4, -4]


def test_transposed_convolution_with_bias() -> None:
    x, weights, bias = normal(1, 3, 4, 2), normal(3, 2, 2, 2), normal(3)
    custom = struct.pack("<iii", 2, 2, 2)
    kind = "Convolution2DTransposeBias"
    case = one(kind, [x, Fixed(weights), Fixed(bias)], Result((1, 6, 8, 3)), custom=custom)
    wanted = np.zeros((1, 6, 8, 3), np.float32) + bias
    for row, column in np.ndindex(3, 4):
        part = np.einsum("nc,ohwc->nhwo", x[:, row, column], weights)
        wanted[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] += part
    np.testing.assert_allclose(run(case)[0], wanted, rtol=1e-4, atol=1e-5)


def test_weights_behind_the_flatbuffer() -> None:
    """As files of more than 2 GiB have them."""
    x, weights = normal(2, 4), normal(3, 4)
    case = one("FULLY_CONNECTED", [x, Fixed(weights), None], Result((2, 3)))
    values = parsed(case.model)
    (large,) = (one for one in values["buffers"] if one["data"] is not None)
    large["data"], large["size"] = None, weights.nbytes
    large["offset"] = 1 << 40
    place = -(-len(write(SCHEMA, values)) // 16) * 16
    large["offset"] = place
    head = write(SCHEMA, values)
    model = head.ljust(place, b"\0") + weights.tobytes()
    np.testing.assert_allclose(run(Case(model, [x]))[0], x @ weights.T, rtol=1e-5)
    with pytest.raises(vkmnn.ModelError, match="is outside it"):
        run(Case(model[:-1], [x]))
