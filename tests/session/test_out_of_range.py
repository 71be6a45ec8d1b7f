"""Indices out of range: refused, or skipped as MNN does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import vkmnn
from tests.session.models import model, value
from vkmnn import Interpreter, InvalidInputError

DEVICES = ["auto", "cpu"] if vkmnn.devices() else ["cpu"]
INT64 = onnx.TensorProto.INT64
RNG = np.random.default_rng(5)


def taken(data: Any, index: Any, axis: int) -> Any:
    """Return Gather by its definition, with zeros where an index is out of range."""
    size = data.shape[axis]
    inside = (index >= -size) & (index < size)
    found = np.take(data, np.where(inside, index, 0), axis)
    mask = np.reshape(inside, (*index.shape, *[1] * (data.ndim - 1 - axis)))
    return np.where(mask, found, 0)


def scattered(data: Any, index: Any, updates: Any, add: bool) -> Any:
    """Return ScatterND by its definition, one tuple after the other."""
    result = data.copy()
    for where in np.ndindex(index.shape[:-1]):
        place = index[where]
        sizes = data.shape[: len(place)]
        if all(-size <= at < size for at, size in zip(place, sizes, strict=True)):
            result[tuple(place)] = updates[where] + (result[tuple(place)] if add else 0)
    return result


def elements(data: Any, index: Any, axis: int, updates: Any = None) -> Any:
    """Return GatherElements, or ScatterElements, element by element."""
    result = np.zeros(index.shape, data.dtype) if updates is None else data.copy()
    for where in np.ndindex(index.shape):
        at, size = index[where], data.shape[axis]
        place = (*where[:axis], at, *where[axis + 1 :])
        if -size <= at < size and updates is None:
            result[where] = data[place]
        elif -size <= at < size:
            result[place] = updates[where]
    return result


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def wild(*shape: int) -> Any:
    return RNG.integers(-7, 8, shape)


CASES: list[tuple[str, dict[str, Any], list[Any], Any]] = []
for axis, shape in ((0, (4, 3)), (1, (2, 3, 5)), (2, (2, 3, 4)), (0, (5,))):
    data = floats(*shape)
    for where in ((), (6,), (2, 5)):
        index = wild(*where) if where else np.array(9)
        CASES.append(("Gather", {"axis": axis}, [data, index], taken(data, index, axis)))
for axis, shape in ((0, (4, 3)), (1, (2, 3, 4))):
    data, index = floats(*shape), wild(*shape)
    CASES.append(("GatherElements", {"axis": axis}, [data, index], elements(data, index, axis)))
    new, lines = floats(*shape), np.full(shape, 99)  # one place on each line
    lines[tuple(slice(0, 1 if a == axis else None) for a in range(len(shape)))] = -1
    want = elements(data, lines, axis, new)
    CASES.append(("ScatterElements", {"axis": axis}, [data, lines, new], want))
for depth, shape in ((1, (4, 3)), (2, (3, 4)), (2, (3, 4, 5)), (3, (2, 3, 4))):
    data = floats(*shape)
    index = np.concatenate([wild(8, depth), np.full((1, depth), -1), np.zeros((1, depth), int)])
    want = scattered(np.zeros((10, *shape[depth:])), np.zeros((0, 1), int), None, add=False)
    for row, place in enumerate(index):
        if all(-size <= at < size for at, size in zip(place, shape, strict=False)):
            want[row] = data[tuple(place)]
    CASES.append(("GatherND", {}, [data, index], want))
    new = floats(10, *shape[depth:])
    CASES.append(
        ("ScatterND", {"reduction": "add"}, [data, index, new], scattered(data, index, new, True))
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(("op", "attributes", "arrays", "want"), CASES)
def test_they_are_skipped(
    op: str, attributes: Any, arrays: list[Any], want: Any, fixed: bool, device: str
) -> None:
    names = ["x", "i", "u"][: len(arrays)]
    keep = 1 if op.endswith("ND") else 0  # the length of a tuple belongs to the network
    inputs = []
    for name, array in zip(names, arrays, strict=True):
        sizes: list[Any] = list(array.shape)
        if not fixed:
            last = len(sizes) - keep * (name == "i")
            sizes = [f"{name}{axis}" if axis < last else n for axis, n in enumerate(sizes)]
        kind = INT64 if name == "i" else onnx.TensorProto.FLOAT
        inputs.append(value(name, sizes, kind))
    node = helper.make_node(op, names, ["y"], **attributes)
    net = Interpreter(
        model([node], inputs, [value("y", [f"y{axis}" for axis in range(np.ndim(want))])])
    )
    strict, session = (
        net.create_session({"device": device, "out_of_range": how}) for how in ("raise", "skip")
    )
    for one in (strict, session):
        for name, array in zip(names, arrays, strict=True):
            net.resize_tensor(one, one.inputs[name], array.shape)
        net.resize_session(one)
        for name, array in zip(names, arrays, strict=True):
            one.inputs[name].copy_from(array)
    net.run_session(session)
    np.testing.assert_allclose(session.outputs["y"].copy_to(), want, atol=1e-6)
    sizes = arrays[0].shape
    limit = sizes[attributes.get("axis", 0)] if not keep else min(sizes[: arrays[1].shape[-1]])
    if np.any((arrays[1] < -limit) | (arrays[1] >= limit)) and not keep:
        with pytest.raises(InvalidInputError, match="outside"):
            net.run_session(strict)
