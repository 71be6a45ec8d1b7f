"""Constants on the device: packed in parallel and in batches, each once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, DType, TensorInfo
from vkmnn.vulkan.plan import memory
from vkmnn.vulkan.plan.memory import ConstantStorage, ConstantStore
from vkmnn.vulkan.recording import PackedConstant


def constant(array: Array, name: str = "c") -> Tensor:
    info = TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
    return Tensor(info, Usage.CONSTANT, value=array)


def content(stored: ConstantStorage, like: Array) -> Array:
    place = stored.range
    raw = place.buffer.read(place.offset, like.nbytes)
    return raw.view(like.dtype).reshape(like.shape)


@pytest.mark.parametrize("parallel_bytes", [0, 1 << 30])
@pytest.mark.parametrize("batch_bytes", [1, 100_000, 1 << 30])
@pytest.mark.parametrize("arena_bytes", [1, 100_000, 1 << 30])
def test_every_constant_is_where_it_is_said_to_be(
    parallel_bytes: int, batch_bytes: int, arena_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "PARALLEL_BYTES", parallel_bytes)
    monkeypatch.setattr(memory, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(memory, "MAX_ARENA_BYTES", arena_bytes)
    rng = np.random.default_rng(0)
    shapes = [(), (0, 3), (1,), (7, 11), (113, 127), (3, 5, 1021), (65537,)]
    arrays = [rng.random(shape).astype(np.float32) for shape in shapes]
    wanted = {
        constant(array): PackedConstant(array, key, pack)
        for array in arrays
        for key, pack in (("plain", lambda a: a), ("turned", lambda a: a.T), ("2", lambda a: 2 * a))
    }
    store = ConstantStore(device())
    placed = store.place(wanted)
    for tensor, packed in wanted.items():
        want = packed.pack(packed.source)
        np.testing.assert_array_equal(content(placed[tensor], want), want)
    for tensor, packed in wanted.items():
        other = constant(packed.source)
        assert store.place({other: packed})[other] is placed[tensor]


def test_a_constant_that_cannot_be_stored_is_named() -> None:
    wide = np.array([1 << 40], np.int64)
    good = np.zeros(1 << 20, np.float32)
    with pytest.raises(InvalidInputError, match="'wide' holds"):
        ConstantStore(device()).place(
            {
                constant(array, name): PackedConstant(array, "plain", lambda a: a)
                for array, name in ((good, "good"), (wide, "wide"))
            }
        )
