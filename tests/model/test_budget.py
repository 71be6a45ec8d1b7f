"""Small models that request large amounts: refused before anything large is allocated."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn.base.budget import (
    BASE_SECONDS,
    DEFAULT_BYTES,
    DEFAULT_FILLED_BYTES,
    SECONDS_PER_NODE,
    Budget,
    Meter,
    free_share,
    host_memory,
    size_text,
)
from vkmnn.converter.onnx import load_model
from vkmnn.errors import BudgetError, InvalidInputError, VkmnnError, unexpected_error
from vkmnn.geometry.registry import lower
from vkmnn.ir import DType, Op, TensorInfo
from vkmnn.ir.ops import PadAttrs, TransposeAttrs, TriluAttrs
from vkmnn.runtime import environment
from vkmnn.runtime.device_info import DeviceType

MIB = 1 << 20
SMALL = Budget(bytes=8 * MIB, nodes=200)


def make(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray] | None = None, opset: int = 18
) -> bytes:
    """Return a model of one input x [4] and one output y."""
    graph = helper.make_graph(
        nodes,
        "hostile",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model.SerializeToString()


def doubling(start: str, count: int) -> list[onnx.NodeProto]:
    names = [start, *(f"t{number}" for number in range(count - 1)), "y"]
    return [
        helper.make_node("Concat", [a, a], [b], name=f"double{number}", axis=0)
        for number, (a, b) in enumerate(pairwise(names))
    ]


@pytest.fixture(params=["vulkan", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "vulkan" and not vkmnn.devices():
        pytest.skip("no Vulkan device")
    return "0" if request.param == "vulkan" else "cpu"


def refuse(
    model: bytes, device: str, budget: Budget | None, *words: str, limit: int = 200 * MIB
) -> VkmnnError:
    """Opening and running must fail with a typed error and with little memory."""
    tracemalloc.start()
    try:
        with (
            pytest.raises(VkmnnError) as caught,
            vkmnn.InferenceSession(model, device, budget=budget) as session,
        ):
            session.run(None, {"x": np.ones(4, np.float32)})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit
    assert not caught.value.unexpected, caught.value.__cause__
    text = str(caught.value)
    assert "hint: " in text, text
    for word in words:
        assert word in text, text
    return caught.value


FILL = helper.make_node("ConstantOfShape", ["shape"], ["big"], name="fill")
SUM = helper.make_node("ReduceSum", ["big"], ["s"], name="sum", keepdims=0)
USE = helper.make_node("Add", ["x", "s"], ["y"], name="use")


def bomb(node: onnx.NodeProto, **constants: np.ndarray) -> bytes:
    """Return a model that adds the sum of a huge result to its input."""
    return make([node, SUM, USE], constants)


BOMBS = {
    "fill": bomb(FILL, shape=np.array([1 << 20, 1 << 10])),
    "doubled constant": make(
        [*doubling("k", 50)[:-1], helper.make_node("Concat", ["t48", "x"], ["y"], axis=0)],
        {"k": np.ones(4, np.float32)},
    ),
    "expand": bomb(
        helper.make_node("Expand", ["k", "shape"], ["big"]),
        k=np.ones(1, np.float32),
        shape=np.array([1 << 31]),
    ),
    "tile": bomb(
        helper.make_node("Tile", ["k", "n"], ["big"]),
        k=np.ones(4, np.float32),
        n=np.array([1 << 33]),
    ),
    "range": bomb(
        helper.make_node("Range", ["a", "b", "c"], ["big"]),
        a=np.float32(0).reshape(()),
        b=np.float32(1e12).reshape(()),
        c=np.float32(1).reshape(()),
    ),
    "pad": bomb(
        helper.make_node("Pad", ["k", "p"], ["big"], mode="reflect"),
        k=np.ones(4, np.float32),
        p=np.array([1 << 32, 0]),
    ),
    "resize": bomb(
        helper.make_node("Resize", ["k", "", "", "n"], ["big"]),
        k=np.ones(4, np.float32),
        n=np.array([1 << 31]),
    ),
    "one hot": bomb(
        helper.make_node("OneHot", ["k", "n", "v"], ["big"]),
        k=np.arange(4),
        n=np.array([1 << 40]),
        v=np.array([0, 1], np.float32),
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_values_made_from_constants(name: str, device: str) -> None:
    error = refuse(BOMBS[name], device, SMALL, "VKMNN_MAX_BYTES", "8.0 MiB")
    assert isinstance(error, BudgetError)
    assert error.op
    assert error.node


@pytest.mark.parametrize("name", BOMBS)
def test_values_that_the_default_refuses(name: str) -> None:
    """Doubled constants are refused when all of them together reach the limit."""
    limit = 320 * MIB if name == "doubled constant" else 200 * MIB
    refuse(BOMBS[name], "cpu", None, "VKMNN_MAX_BYTES", limit=limit)


def fills(node: onnx.NodeProto, **shapes: tuple[int, ...]) -> bytes:
    """Return a model that sums the result of a node on zeros of these shapes."""
    made = [helper.make_node("ConstantOfShape", [f"{name}s"], [name]) for name in shapes]
    return make(
        [*made, node, SUM, USE], {f"{name}s": np.array(shape) for name, shape in shapes.items()}
    )


LONG = {
    "product": fills(
        helper.make_node("MatMul", ["a", "b"], ["big"], name="much"), a=(4096, 4096), b=(4096, 2048)
    ),
    "convolution": fills(
        helper.make_node("Conv", ["a", "b"], ["big"], name="much"),
        a=(1, 64, 256, 256),
        b=(64, 64, 15, 15),
    ),
    "calls": fills(
        helper.make_node("Conv", ["a", "b"], ["big"], name="much"), a=(1 << 20, 1, 1), b=(2, 1, 1)
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_constants_that_take_long(name: str, device: str) -> None:
    error = refuse(LONG[name], device, Budget(bytes=4096 * MIB), "VKMNN_MAX_SECONDS", "'much")
    assert isinstance(error, BudgetError)


def test_memory_on_the_way() -> None:
    """The result has one element, the order of what is sorted has 2^25."""
    model = make(
        [
            helper.make_node("Expand", ["k", "shape"], ["a"]),
            helper.make_node("TopK", ["a", "one"], ["big", ""], name="sort"),
            SUM,
            USE,
        ],
        {"k": np.ones(1, np.float32), "shape": np.array([1 << 25]), "one": np.array([1])},
    )
    refuse(model, "cpu", None, "VKMNN_MAX_BYTES", "'sort", "on the way")


def filled(count: int) -> bytes:
    """Return a model that adds one of `count` equal constants to x."""
    one = numpy_helper.from_array(np.ones(1, np.float32))
    fill = helper.make_node("ConstantOfShape", ["n"], ["w"], name="fill", value=one)
    nodes = [
        fill,
        helper.make_node("Slice", ["w", "from", "to"], ["g"]),
        helper.make_node("Add", ["x", "g"], ["y"]),
    ]
    return make(
        nodes, {"n": np.array([count], np.int64), "from": np.array([0]), "to": np.array([4])}
    )


def test_fills_take_no_memory_as_constants() -> None:
    count = (DEFAULT_BYTES + MIB) // 4  # more than other constants may take
    tracemalloc.start()
    try:
        with vkmnn.InferenceSession(filled(count), device="cpu") as session:
            (y,) = session.run(None, {"x": np.ones(4, np.float32)})
        assert tracemalloc.get_traced_memory()[1] < 32 * MIB
    finally:
        tracemalloc.stop()
    assert y.tolist() == [2, 2, 2, 2]


def test_fills_have_a_budget() -> None:
    with pytest.raises(BudgetError, match="one value") as caught:
        vkmnn.InferenceSession(filled(DEFAULT_FILLED_BYTES // 4 + 1), device="cpu")
    assert caught.value.op == "ConstantOfShape"
    assert "fill" in str(caught.value)
    meter = Meter(Budget())
    meter.charge(DEFAULT_BYTES, "Exp", "e")
    meter.charge_fill(DEFAULT_FILLED_BYTES - DEFAULT_BYTES, "ConstantOfShape", "f")
    with pytest.raises(BudgetError):
        meter.renewed().charge_fill(1, "ConstantOfShape", "g")


def test_results_that_the_process_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkmnn.base.budget.host_memory", lambda: 64 * MIB)
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["wide"]),
        helper.make_node("Sin", ["wide"], ["y"], name="wave"),
    ]
    model = make(nodes, {"shape": np.array([1 << 22, 4])})
    error = refuse(model, "cpu", None, "VKMNN_MAX_BYTES", "'wave", "64.0 MiB")
    assert isinstance(error, BudgetError)


def doubled(times: int) -> bytes:
    """Return a model that doubles four numbers so many times."""
    names = ["x", *(f"t{turn}" for turn in range(1, times)), "y"]
    nodes = [
        helper.make_node("Concat", [one, one], [other], axis=0) for one, other in pairwise(names)
    ]
    return make(nodes)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_quarter_of_the_free_memory_stays_free(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, also on a device that has the host's memory."""
    if device == "auto":
        found = vkmnn.devices()
        if not found or found[0].type is not DeviceType.CPU:
            pytest.skip("no software device")
    x = {"x": np.ones(4, np.float32)}
    monkeypatch.setattr("vkmnn.base.budget._free_memory", lambda: [400 * MIB])
    with vkmnn.InferenceSession(doubled(10), device) as session:
        assert session.run(None, x)[0].shape == (4096,)
    with pytest.raises(BudgetError, match=r"300\.0 MiB are allowed") as caught:
        vkmnn.InferenceSession(doubled(25), device).run(None, x)
    assert "VKMNN_MAX_BYTES" in str(caught.value.hint)
    monkeypatch.setenv("VKMNN_MAX_BYTES", "4g")
    vkmnn.InferenceSession(doubled(25), device).close()


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux")
def test_what_is_free_is_asked_of_the_system() -> None:
    assert 0 < free_share() < host_memory()


def test_windows_longer_than_what_they_move_over() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("LRN", ["r"], ["n"], size=2**31 - 1, alpha=1.0, beta=1.0),
        helper.make_node("ReduceSum", ["n"], ["y"], keepdims=0),
    ]
    model = make(nodes, {"s": np.array([1, 4, 1, 1])})
    with vkmnn.InferenceSession(model, "cpu") as session:
        (y,) = session.run(None, {"x": np.ones(4, np.float32)})
    np.testing.assert_allclose(y, 4 / (1 + 4 / (2**31 - 1)), rtol=1e-6)


def test_pieces_are_counted_before_they_are_made() -> None:
    """Three regions along each of 20 axes are 3^20 together."""
    rank = 20
    pads = np.ones(2 * rank, np.int64)
    op = Op("Pad", "grow", ["x", "p"], ["y"], PadAttrs("reflect"))
    infos = [
        TensorInfo("x", DType.FLOAT32, (3,) * rank),
        TensorInfo("p", DType.INT64, pads.shape),
    ]
    output = TensorInfo("y", DType.FLOAT32, (5,) * rank)
    tracemalloc.start()
    try:
        with pytest.raises(BudgetError, match="more than 100000 pieces"):
            lower(op, infos, [output], [None, pads], Meter(Budget()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


def test_axes_are_counted_before_they_are_unrolled() -> None:
    """Of 20 axes that a region keeps apart, 14 are unrolled."""
    rank = 20
    op = Op("Transpose", "turn", ["x"], ["y"], TransposeAttrs(tuple(range(rank))[::-1]))
    info = TensorInfo("x", DType.FLOAT32, (3,) * rank)
    with pytest.raises(BudgetError, match="more than 100000 pieces"):
        lower(op, [info], [replace(info, name="y")], [None], Meter(Budget()))


def test_a_triangle_is_charged_before_it_is_made() -> None:
    op = Op("Trilu", "half", ["x"], ["y"], TriluAttrs(upper=True))
    info = TensorInfo("x", DType.FLOAT32, (1 << 20, 1 << 20))
    with pytest.raises(BudgetError, match="VKMNN_MAX_BYTES"):
        lower(op, [info], [replace(info, name="y")], [None], Meter(Budget()))


def test_doubled_inputs(device: str) -> None:
    """The numpy backend would hold 16 GiB; a device says that it lacks the memory."""
    refuse(make(doubling("x", 30)), device, SMALL)


def test_doubled_inputs_on_numpy() -> None:
    error = refuse(make(doubling("x", 30)), "cpu", SMALL, "VKMNN_MAX_BYTES", "8.0 MiB")
    assert isinstance(error, BudgetError)


def test_split_into_more_parts_than_outputs(device: str) -> None:
    node = helper.make_node("Split", ["x"], ["y"], name="cut", axis=0, num_outputs=2**31 - 1)
    refuse(make([node]), device, None, "num_outputs is 2147483647", "'cut'")


@pytest.mark.parametrize("mode", ["reflect", "wrap", "edge"])
def test_padding_by_more_than_can_be_listed(device: str, mode: str) -> None:
    node = helper.make_node("Pad", ["x", "p"], ["y"], name="grow", mode=mode)
    refuse(make([node], {"p": np.array([1 << 31, 0])}, opset=19), device, SMALL)


def test_resizing_by_more_than_can_be_listed(device: str) -> None:
    node = helper.make_node("Resize", ["x", "", "", "n"], ["y"], name="grow", mode="linear")
    refuse(make([node], {"n": np.array([1 << 31])}), device, SMALL)


def test_too_many_nodes(device: str) -> None:
    names = ["x", *(f"t{number}" for number in range(200)), "y"]
    nodes = [helper.make_node("Sin", [a], [b]) for a, b in pairwise(names)]
    error = refuse(make(nodes), device, SMALL, "more than 200 nodes", "VKMNN_MAX_NODES")
    assert isinstance(error, BudgetError)
    with vkmnn.InferenceSession(make(nodes), device, budget=Budget(nodes=201)) as session:
        session.run(None, {"x": np.ones(4, np.float32)})


def test_too_little_time(device: str) -> None:
    nodes = [helper.make_node("Sin", ["x"], ["y"], name="wave")]
    error = refuse(make(nodes), device, Budget(seconds=1e-9), "VKMNN_MAX_SECONDS")
    assert isinstance(error, BudgetError)


def test_what_fits_runs(device: str) -> None:
    """One MiB and its sum, twice: within 8 MiB."""
    model = bomb(FILL, shape=np.array([1 << 18]))
    with vkmnn.InferenceSession(model, device, budget=SMALL) as session:
        (y,) = session.run(None, {"x": np.ones(4, np.float32)})
    np.testing.assert_array_equal(y, np.ones(4, np.float32))


def test_the_weights_of_the_model_do_not_count(device: str) -> None:
    weights = np.ones((4, 1 << 20), np.float32)  # 16 MiB
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    with vkmnn.InferenceSession(make(nodes, {"w": weights}), device, budget=SMALL) as session:
        (y,) = session.run(None, {"x": np.ones(4, np.float32)})
    assert y.shape == (1 << 20,)
    assert (y == 4).all()


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.budget() == Budget()
    monkeypatch.setenv("VKMNN_MAX_BYTES", "1.5g")
    monkeypatch.setenv("VKMNN_MAX_NODES", "20k")
    monkeypatch.setenv("VKMNN_MAX_SECONDS", "0.5")
    assert environment.budget() == Budget(3 << 29, 20 << 10, 0.5)


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan", "inf", "1e300", "g", "4x"])
@pytest.mark.parametrize("name", ["VKMNN_MAX_BYTES", "VKMNN_MAX_NODES", "VKMNN_MAX_SECONDS"])
def test_variables_that_are_no_numbers(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidInputError, match=name):
        environment.budget()


@pytest.mark.parametrize("name", ["VKMNN_MAX_BYTES", "VKMNN_MAX_NODES"])
def test_less_than_one_is_not_the_default(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "0.5")
    with pytest.raises(InvalidInputError, match=name):
        environment.budget()


def test_the_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_MAX_BYTES", "8m")
    refuse(BOMBS["fill"], "cpu", None, "8.0 MiB", "VKMNN_MAX_BYTES")


def test_large_models_may_make_large_values() -> None:
    assert Meter(Budget()).allowed_bytes == DEFAULT_BYTES
    assert Meter(Budget(), weights=7 << 30).allowed_bytes == 56 << 30
    assert Meter(Budget(bytes=5), weights=7 << 30).allowed_bytes == 5


def test_large_models_may_take_long() -> None:
    assert Meter(Budget()).allowed_seconds == BASE_SECONDS
    assert Meter(Budget(), nodes=20_000).allowed_seconds > 100
    assert Meter(Budget(), weights=400 * MIB).allowed_seconds > 30
    assert Meter(Budget(seconds=5.0), weights=400 * MIB, nodes=20_000).allowed_seconds == 5


def test_what_a_file_holds_counts_before_it_is_converted() -> None:
    meter = Meter(Budget())
    nodes = [helper.make_node("Sin", [a], [b]) for a, b in pairwise(["x", "t", "y"])]
    load_model(make(nodes), meter)
    assert meter.allowed_seconds == pytest.approx(BASE_SECONDS + 2 * SECONDS_PER_NODE)


def test_the_clock_of_the_thread_is_read_only_when_it_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planning checks the time at every op, and the kernel takes microseconds to return it."""
    read: list[float] = []
    monkeypatch.setattr(time, "thread_time", lambda: read.append(0.0) or 0.0)
    meter = Meter(Budget(seconds=60.0), clock=time.thread_time)
    for _ in range(100):
        meter.check_time()
    assert len(read) == 1
    assert not meter.has_time(61.0)
    assert len(read) == 2


def test_time_is_checked_before_it_is_spent() -> None:
    now = [0.0]
    meter = Meter(Budget(seconds=10.0), clock=lambda: now[0])
    meter.check_time("Op", "node", 9.0)
    now[0] = 2.0
    assert not meter.has_time(9.0)
    with pytest.raises(BudgetError, match="about 9 s, of 10 s"):
        meter.check_time("Op", "node", 9.0)
    meter.check_time()


def test_a_renewed_meter_holds_what_is_there() -> None:
    meter = Meter(Budget(bytes=10), clock=lambda: 1.0)
    meter.charge(8, "Op", "node")
    meter.charge_pieces(99_999, "Op", "node")
    again = meter.renewed()
    again.charge_pieces(99_999, "Op", "node")
    assert again.fits(2)
    assert not again.fits(3)


def test_what_is_given_back_can_be_charged_again() -> None:
    meter = Meter(Budget(bytes=10))
    meter.charge(10, "Op", "node")
    with pytest.raises(BudgetError, match="10 bytes of 10 bytes are used"):
        meter.charge(1, "Op", "node")
    meter.refund(4)
    meter.charge(4, "Op", "node")


def test_the_memory_of_the_machine() -> None:
    assert 1 << 26 < host_memory() < 1 << 50


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_the_address_space_may_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = pages * resource.getpagesize() + 64 * MIB
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert 32 * MIB < host_memory() <= 96 * MIB


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(3, "3 bytes"), (3 << 10, "3.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 29, "1.5 GiB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text


# --- errors that no check foresaw ----------------------------------------------------------------


def test_an_unexpected_error_keeps_its_cause() -> None:
    typed = unexpected_error(KeyError("k"), "folding", op="Add", node="n")
    assert typed.unexpected
    assert isinstance(typed, vkmnn.ModelError)
    assert "folding failed: KeyError: 'k' (op Add, node 'n')" in str(typed)


def test_memory_that_runs_out_is_both_kinds_of_error() -> None:
    typed = unexpected_error(MemoryError(), "folding")
    assert isinstance(typed, vkmnn.OutOfHostMemoryError)
    assert isinstance(typed, MemoryError)
    assert not typed.unexpected


def test_a_typed_error_stays() -> None:
    error = BudgetError("too much")
    assert unexpected_error(error, "folding") is error


@pytest.mark.parametrize(
    "place",
    [
        "vkmnn.shape.registry.COMPUTERS",
        "vkmnn.geometry.registry.COMPUTERS",
        "vkmnn.cpu_fallback.registry.EXECUTIONS",
    ],
)
@pytest.mark.parametrize("kind", [AssertionError, RuntimeError, RecursionError, MemoryError])
def test_any_error_of_a_rule_is_typed(
    monkeypatch: pytest.MonkeyPatch, place: str, kind: type[Exception]
) -> None:
    from importlib import import_module

    module, _, name = place.rpartition(".")
    registry = getattr(import_module(module), name)

    def fail(*arguments: object) -> None:
        raise kind("boom")

    if "geometry" in module and not vkmnn.devices():
        pytest.skip("no Vulkan device")
    device = "0" if "geometry" in module else "cpu"
    model = make(
        [helper.make_node("Transpose", ["x"], ["t"]), helper.make_node("Sin", ["t"], ["y"])]
    )
    two = onnx.load_model_from_string(model)
    two.graph.input[0].type.tensor_type.shape.dim.add(dim_value=3)
    two.graph.node[0].name = "turn"
    monkeypatch.setitem(registry._entries, "Transpose", fail)
    with pytest.raises(VkmnnError) as caught, vkmnn.InferenceSession(two, device) as session:
        session.run(None, {"x": np.ones((4, 3), np.float32)})
    assert "'turn'" in str(caught.value) or "turn (Transpose)" in str(caught.value)
    assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1536, "1.5 KiB"),
        (3 << 30, "3.0 GiB"),
        (1 << 70, "1.2e+21 bytes"),
        (10**400, "1.0e+400 bytes"),
    ],
)
def test_sizes_beyond_all_floats_have_a_text(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
