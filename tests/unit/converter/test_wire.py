"""Large weights read separately: the reassembled model is the one that protobuf reads."""

from __future__ import annotations

import random
from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from vkmnn.converter.onnx import load_model
from vkmnn.converter.onnx.wire import LARGE, NotAModelError, split

RNG = np.random.default_rng(5)


def tensor(name: str, nbytes: int) -> TensorProto:
    return numpy_helper.from_array(RNG.integers(0, 255, nbytes, np.uint8), name)


def model(*initializers: TensorProto) -> onnx.ModelProto:
    names = [each.name for each in initializers]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in names]
    outputs = [helper.make_tensor_value_info(f"{name}_out", 2, None) for name in names]
    constant = helper.make_node("Constant", [], ["c"], value=tensor("inner", 2 * LARGE))
    graph = helper.make_graph([*nodes, constant], "g", [], outputs, list(initializers))
    graph.sparse_initializer.add().values.CopyFrom(tensor("sparse", 2 * LARGE))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def joined(data: bytes) -> onnx.ModelProto:
    """Return the model assembled from the parts."""
    rest, large = split(BytesIO(data), len(data))
    proto = onnx.ModelProto.FromString(rest)
    for number, raw in large.items():
        assert len(raw) >= LARGE
        assert proto.graph.initializer[number].raw_data == b""
        proto.graph.initializer[number].raw_data = raw.tobytes()
    return proto


def test_the_parts_make_the_model() -> None:
    sizes = [0, 1, LARGE - 1, LARGE, LARGE + 1, 100_000, 3]
    whole = model(*(tensor(f"t{i}", size) for i, size in enumerate(sizes)))
    data = whole.SerializeToString()
    assert joined(data) == whole
    rest, large = split(BytesIO(data), len(data))
    assert sorted(large) == [3, 4, 5]
    assert len(rest) < len(data) - 100_000 - 2 * LARGE


def test_fields_that_come_again() -> None:
    """Protobuf merges messages and takes the last of other fields, whatever it replaces."""
    once, again = model(tensor("a", 2 * LARGE)), model(tensor("b", 3 * LARGE), tensor("c", 9))
    data = once.SerializeToString() + again.SerializeToString()
    assert joined(data) == onnx.ModelProto.FromString(data)
    for sizes in ((2 * LARGE, 5), (5, 2 * LARGE), (2 * LARGE, 3 * LARGE), (2 * LARGE, 0)):
        raws = [TensorProto(raw_data=bytes(size)).SerializeToString() for size in sizes]
        content = b"".join(raws)
        graph = b"\x2a" + varint(len(content)) + content
        data = b"\x3a" + varint(len(graph)) + graph
        assert joined(data) == onnx.ModelProto.FromString(data)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def test_lengths_that_are_written_at_length() -> None:
    raw = b"\x4a" + varint(LARGE)[:-1] + bytes([varint(LARGE)[-1] | 128, 128, 0]) + bytes(LARGE)
    graph = b"\x2a" + varint(len(raw)) + raw
    data = b"\x3a" + varint(len(graph)) + graph
    assert joined(data) == onnx.ModelProto.FromString(data)
    with pytest.raises(NotAModelError):
        joined(b"\x3a" + b"\x80" * 10 + b"\x00")


def test_every_truncation_is_noticed() -> None:
    data = model(tensor("a", LARGE), tensor("b", 40)).SerializeToString()
    for end in (*range(300), *range(len(data) - 300, len(data))):
        try:
            want = onnx.ModelProto.FromString(data[:end])
        except DecodeError:
            with pytest.raises(NotAModelError):
                joined(data[:end])
        else:
            assert joined(data[:end]) == want
    with pytest.raises(NotAModelError):
        split(BytesIO(data[:-1]), len(data))


def test_damaged_bytes_are_judged_by_protobuf() -> None:
    data = model(tensor("a", LARGE), tensor("b", 40)).SerializeToString()
    generator = random.Random(1)
    agreed = 0
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(400)] = generator.randrange(256)
        try:
            made = joined(bytes(damaged))
        except (NotAModelError, DecodeError):
            continue  # then the whole is given to protobuf, or protobuf has refused
        assert made == onnx.ModelProto.FromString(bytes(damaged))
        agreed += 1
    assert agreed > 100


@pytest.mark.parametrize("as_bytes", [False, True])
def test_weights_read_apart_are_the_weights(as_bytes: bool, tmp_path: Path) -> None:
    arrays = {
        "half": RNG.random((64, 65)).astype(np.float16),
        "wide": RNG.integers(-5, 5, (9, 700)),
        "flags": RNG.integers(0, 2, 5000).astype(bool),
        "unread": RNG.random(5000),
        "few": RNG.random(5).astype(np.float32),
        "many": RNG.random((33, 1, 99)).astype(np.float32),
    }
    read = [name for name in arrays if name != "unread"]
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name in read],
        "g",
        [],
        [helper.make_tensor_value_info(f"{name}_out", 1, None) for name in read],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    path = tmp_path / "model.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    loaded = load_model(path.read_bytes() if as_bytes else path).constants
    for name in read:
        np.testing.assert_array_equal(loaded[name], arrays[name])
        assert loaded[name].dtype == arrays[name].dtype
        assert not loaded[name].flags.writeable
