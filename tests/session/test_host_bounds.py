"""Limits on the memory and time of evaluators on the host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn import Budget, InferenceSession
from vkmnn.errors import BudgetError, HostError, ModelError, UnsupportedOpError
from vkmnn.host.effort import effort_of

ROOM = 64 << 20
INT, BOOL, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT

info = helper.make_tensor_value_info
node = helper.make_node


@pytest.fixture(params=["onnxruntime", "onnx"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "onnxruntime":
        pytest.importorskip("onnxruntime")
    monkeypatch.setenv("VKMNN_HOST_ENGINE", request.param)
    return str(request.param)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, object] | None = None,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "host",
        inputs,
        [info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(made.SerializeToString())


def loop(body: Sequence[onnx.NodeProto], *outputs: str, carried: str = "") -> onnx.NodeProto:
    """Return a Loop of m iterations; `carried` is passed from one to the next."""
    formal = [info("i", INT, []), info("c", BOOL, [])]
    results = [info("still", BOOL, []), *(info(name, FLOAT, None) for name in outputs)]
    if carried:
        formal.append(info(carried, FLOAT, None))
    nodes = [node("Identity", ["c"], ["still"]), *body]
    graph = helper.make_graph(nodes, "body", formal, results)
    return node("Loop", ["m", "", *(["x"] if carried else [])], ["y"], name="here", body=graph)


M = info("m", INT, [])
X = info("x", FLOAT, [None])
S = info("s", INT, [None])

# name: (model, feeds that fit, feeds that do not)
HUNGRY = {
    "scan outputs without end": (
        model([loop([node("ConstantOfShape", ["s"], ["o"])], "o")], [S, M]),
        {"s": np.array([1 << 10]), "m": np.array(100)},
        {"s": np.array([1 << 16]), "m": np.array(2**62)},
    ),
    "one large fill": (
        model([loop([node("ConstantOfShape", ["s"], ["o"])], "o")], [S, M]),
        {"s": np.array([1 << 20]), "m": np.array(2)},
        {"s": np.array([1 << 40]), "m": np.array(1)},
    ),
    "a value that doubles": (
        model([loop([node("Concat", ["r", "r"], ["o"], axis=0)], "o", carried="r")], [X, M]),
        {"x": np.ones(4, np.float32), "m": np.array(16)},
        {"x": np.ones(4, np.float32), "m": np.array(60)},
    ),
    "an outer product": (
        model(
            [
                loop(
                    [
                        node("Unsqueeze", ["r", "one"], ["row"]),
                        node("Unsqueeze", ["r", "zero"], ["column"]),
                        node("Mul", ["row", "column"], ["p"]),
                        node("ReduceSum", ["p", "one"], ["o"], keepdims=0),
                    ],
                    "o",
                    carried="r",
                )
            ],
            [X, M],
            {"one": [1], "zero": [0]},
        ),
        {"x": np.ones(100, np.float32), "m": np.array(2)},
        {"x": np.ones(200_000, np.float32), "m": np.array(2)},
    ),
}


@pytest.mark.parametrize("name", HUNGRY)
def test_memory_is_bounded(name: str, engine: str) -> None:
    data, small, large = HUNGRY[name]
    with InferenceSession(data, "cpu", budget=Budget(bytes=ROOM)) as session:
        assert {op.backend for op in session.placement().ops} == {engine}
        session.run(None, small)
        start = time.monotonic()
        with pytest.raises(BudgetError, match="Loop") as caught:
            session.run(None, large)
        assert time.monotonic() - start < 20
        assert "here" in str(caught.value)
        assert "VKMNN_MAX_BYTES" in str(caught.value.hint)
        session.run(None, small)


def test_values_that_are_let_go_do_not_count(engine: str) -> None:
    """Far more goes through a loop than there is room for."""
    body = [node("Add", ["r", "r"], ["t"]), node("Sub", ["t", "r"], ["o"])]
    data = model([loop(body, "o", carried="r")], [X, M])
    feeds = {"x": np.ones(1 << 20, np.float32), "m": np.array(60)}
    with InferenceSession(data, "cpu", budget=Budget(bytes=ROOM)) as session:
        np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["x"])


def test_states_of_a_scan_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_HOST_ENGINE", "onnx")
    body = helper.make_graph(
        [node("Add", ["r", "v"], ["o"])],
        "body",
        [info("r", FLOAT, [1 << 20]), info("v", FLOAT, [])],
        [info("o", FLOAT, [1 << 20])],
    )
    scan = node("Scan", ["x", "v"], ["y"], num_scan_inputs=1, body=body)
    data = model([scan], [X, info("v", FLOAT, [None])])
    feeds = {"x": np.zeros(1 << 20, np.float32), "v": np.ones(60, np.float32)}
    with InferenceSession(data, "cpu", budget=Budget(bytes=ROOM)) as session:
        np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["x"] + 60)


def test_time_is_looked_at_between_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner loop ends at once, the outer scan goes on."""
    monkeypatch.setenv("VKMNN_HOST_ENGINE", "onnx")
    monkeypatch.setenv("VKMNN_TIMEOUT", "0.5")
    body = helper.make_graph(
        [node("Neg", ["v"], ["o"])], "body", [info("v", FLOAT, [])], [info("o", FLOAT, [])]
    )
    scan = node("Scan", ["x"], ["y"], num_scan_inputs=1, body=body)
    with InferenceSession(model([scan], [X]), "cpu") as session:
        start = time.monotonic()
        with pytest.raises(HostError, match=r"a loop took more than 0\.5 s"):
            session.run(None, {"x": np.ones(3_000_000, np.float32)})
        assert time.monotonic() - start < 10


@pytest.mark.parametrize("count", [0, 2, -1, 2**31])
def test_scans_of_no_such_inputs(count: int, engine: str) -> None:
    body = helper.make_graph(
        [node("Neg", ["v"], ["o"])], "body", [info("v", FLOAT, [])], [info("o", FLOAT, [])]
    )
    scan = node("Scan", ["x"], ["y"], num_scan_inputs=count, body=body)
    with pytest.raises(Exception, match="Scan") as caught:
        InferenceSession(model([scan], [X]), "cpu")
    assert type(caught.value).__name__ == "UnsupportedOpError"


def tree(back: int) -> onnx.NodeProto:
    """Return a tree of a branch and two leaves; the second branch leads back to the node `back`."""
    return node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[back, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[1.0, 2.0],
        n_targets=1,
    )


NGRAMS = {"max_gram_length": 2, "min_gram_length": 2, "max_skip_count": 0, "mode": "TF"}
DANGEROUS = {
    # onnxruntime reads past the end of the indexes.
    "n-grams without an index": (
        node(
            "TfIdfVectorizer",
            ["x"],
            ["y"],
            ngram_counts=[0, 4],
            ngram_indexes=[0, 2, 3, 4, 5, 6],
            pool_int64s=[2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
            **NGRAMS,
        ),
        np.arange(12),
    ),
    # onnx's evaluator counts to the number that is missing.
    "n-grams outside of the pool": (
        node(
            "TfIdfVectorizer",
            ["x"],
            ["y"],
            ngram_counts=[0, 2**31 - 1],
            ngram_indexes=[0, 2, 3, 4, 5, 6],
            pool_int64s=[2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
            **NGRAMS,
        ),
        np.arange(12),
    ),
    "n-grams of another type": (
        node("TfIdfVectorizer", ["x"], ["y"], ngram_counts=1.5, pool_int64s="no", **NGRAMS),
        np.arange(12),
    ),
    "no n-grams": (node("TfIdfVectorizer", ["x"], ["y"], **NGRAMS), np.arange(12)),
    # onnx's evaluator goes round for ever.
    "a tree with a way back": (tree(0), np.ones((1, 2), np.float32)),
    # onnxruntime takes the second size for the first.
    "an inverse of what is not square": (
        node("Inverse", ["x"], ["y"], domain="com.microsoft"),
        np.ones((2, 900, 3), np.float32),
    ),
}


@pytest.mark.parametrize("name", DANGEROUS)
def test_what_evaluators_do_not_check(name: str) -> None:
    dangerous, x = DANGEROUS[name]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [dangerous], "g", [info("x", kind, [None] * x.ndim)], [info("y", FLOAT, None)]
    )
    opsets = [helper.make_opsetid("", 18)]
    if dangerous.domain:
        opsets.append(helper.make_opsetid(dangerous.domain, 1))
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with (
        pytest.raises((HostError, ModelError, UnsupportedOpError)),
        InferenceSession(proto, device="cpu") as session,
    ):
        session.run(None, {"x": x})


def test_trees_are_computed(engine: str) -> None:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([tree(2)], "g", [info("x", FLOAT, [2, 1])], [info("y", FLOAT, None)])
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with InferenceSession(proto, device="cpu") as session:
        (y,) = session.run(None, {"x": np.array([[0.0], [1.0]], np.float32)})
    assert y.reshape(-1).tolist() == [1, 2]


def roi_align(**attributes: object) -> bytes:
    """Return a network whose RoiAlign reads results of other nodes on the host."""
    nodes = [
        node("RandomNormalLike", ["x"], ["noise"], mean=0.0, scale=1.0, seed=1.0),
        node("RoiAlign", ["noise", "rois", "batch"], ["y"], name="here", **attributes),
    ]
    inputs = [info("x", FLOAT, [1, 2, 8, 8]), info("rois", FLOAT, [None, 4])]
    return model(nodes, inputs, {"batch": np.zeros(1, np.int64)})


PIXELS = np.zeros((1, 2, 8, 8), np.float32)
BOX, FAR = np.array([[0, 0, 7, 7]], np.float32), np.array([[0, 0, 1e9, 1e9]], np.float32)


def test_regions_without_end_are_refused() -> None:
    """By numpy, which has an execution for them, and by the estimate for evaluators."""
    with InferenceSession(roi_align(), "cpu") as session:
        session.run(None, {"x": PIXELS, "rois": BOX})
        with pytest.raises(BudgetError, match="samples each"):
            session.run(None, {"x": PIXELS, "rois": FAR})
    proto = node("RoiAlign", ["x", "rois", "batch"], ["y"])
    assert effort_of(proto, [PIXELS, BOX, None]).steps < 1e4
    assert effort_of(proto, [PIXELS, FAR, None]).steps > 1e17
    assert effort_of(proto, [PIXELS, BOX[0], None]).steps == 0  # not valid


@pytest.mark.parametrize(
    ("proto", "shapes", "steps"),
    [
        (node("MatMul", ["a", "b"], ["y"]), [(3, 4), (4, 5)], 60),
        (node("MatMul", ["a", "b"], ["y"]), [(3, 4), (2, 4, 5)], 120),
        (node("Gemm", ["a", "b"], ["y"], transB=1), [(3, 4), (5, 4)], 60),
        (node("Det", ["a"], ["y"]), [(2, 3, 3)], 54),
        (node("TfIdfVectorizer", ["a"], ["y"], max_skip_count=9, max_gram_length=2), [(5,)], 100),
        (node("Relu", ["a"], ["y"]), [(5,)], 0),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else None,
)
def test_estimates(proto: onnx.NodeProto, shapes: list[tuple[int, ...]], steps: int) -> None:
    assert effort_of(proto, [np.zeros(shape, np.float32) for shape in shapes]).steps == steps


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize(
    ("attributes", "rois"),
    [
        ({"sampling_ratio": 2**31 - 1}, BOX),
        ({"sampling_ratio": 5000, "output_height": 100, "output_width": 100}, BOX),
    ],
    ids=["endless", "long"],
)
def test_work_that_attributes_and_values_ask_for_is_bounded(
    attributes: dict[str, object],
    rois: np.ndarray,
    device: str,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel that has begun cannot be ended, so that it must not begin."""
    monkeypatch.setenv("VKMNN_TIMEOUT", "5")
    with InferenceSession(roi_align(**attributes), device) as session:
        with pytest.raises(HostError, match=r"RoiAlign would take .* steps.*of 5 s") as caught:
            session.run(None, {"x": PIXELS, "rois": rois})
        assert "here" in str(caught.value)
        assert "VKMNN_TIMEOUT" in str(caught.value.hint)
    with InferenceSession(roi_align(sampling_ratio=2), device) as session:
        session.run(None, {"x": PIXELS, "rois": BOX})


def test_memory_that_no_allocator_counts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("VKMNN_HOST_ENGINE", "onnxruntime")
    data = roi_align(sampling_ratio=2000)
    with InferenceSession(data, "cpu", budget=Budget(bytes=ROOM)) as session:
        with pytest.raises(BudgetError, match=r"RoiAlign would hold") as caught:
            session.run(None, {"x": PIXELS, "rois": BOX})
        assert "here" in str(caught.value)


def test_a_kernel_that_does_not_end_is_left_behind() -> None:
    """Neither the call nor the end of the process waits for it."""
    pytest.importorskip("onnxruntime")
    code = f"""
import numpy as np
import vkmnn
from vkmnn.host import function
from vkmnn.host.effort import NONE
function.effort_of = lambda *_: NONE  # nothing foresees it
data = {roi_align(sampling_ratio=129)!r}
feeds = {{"x": np.zeros((1, 2, 8, 8), np.float32), "rois": np.array([[0, 0, 7, 7]], np.float32)}}
class Session:  # onnxruntime, at a kernel without end
    def __init__(self, session):
        self.session = session
    def __getattr__(self, name):
        return getattr(self.session, name)
    def run(self, outputs, feeds, options=None):
        import threading
        threading.Event().wait()
from vkmnn.host.engines import OnnxRuntime
usual = OnnxRuntime.__init__
def opened(self, model, room=None):
    usual(self, model, room)
    if any(node.op_type == "RoiAlign" for node in model.graph.node):
        self._session = Session(self._session)
OnnxRuntime.__init__ = opened
try:
    with vkmnn.InferenceSession(data, "cpu") as session:
        session.run(None, feeds)
except vkmnn.errors.VkmnnError as error:
    print(type(error).__name__)
"""
    env = {**os.environ, "VKMNN_TIMEOUT": "1", "VKMNN_HOST_ENGINE": "onnxruntime"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, "HostError\n"), done.stderr
