"""Networks in forms that are seldom: Scan, sequences in a loop, an old opset, local functions."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.networks.written import Feeds, Written, network, normal

_HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def selective_scan() -> onnx.ModelProto:
    """Return a state-space block: a causal convolution, a Scan over time, and a gate."""
    text = f"""{_HEADER}
    mixer (float[b, t, 12] x) => (float[b, t, 12] y, float[b, 16, 4] state)
    {{
        both = MatMul (x, w_in)
        inner, gate = Split <axis = 2> (both, halves)
        channels = Transpose <perm = [0, 2, 1]> (inner)
        mixed = Conv <group = 16, pads = [3, 0]> (channels, taps, taps_b)
        mixed_s = Sigmoid (mixed)
        active = Mul (mixed, mixed_s)
        steps = Transpose <perm = [2, 0, 1]> (active)
        chosen = MatMul (steps, w_x)
        low, b_in, c_out = Split <axis = 2> (chosen, parts)
        wide = MatMul (low, w_dt)
        wide_b = Add (wide, dt_b)
        dt = Softplus (wide_b)
        shape = Shape (x)
        batch = Slice (shape, a0, a1, a0)
        room = Concat <axis = 0> (batch, state_shape)
        nothing = ConstantOfShape <value = float[1] {{0.0}}> (room)
        state, rows = Scan <num_scan_inputs = 4, body = step
            (float[b, 16, 4] h, float[b, 16] dt_t, float[b, 4] b_t, float[b, 4] c_t, float[b, 16] u)
            => (float[b, 16, 4] h_next, float[b, 16] row)
            {{
                dt_3 = Unsqueeze (dt_t, a2)
                fade_in = Mul (dt_3, decay)
                fade = Exp (fade_in)
                b_3 = Unsqueeze (b_t, a1)
                u_3 = Unsqueeze (u, a2)
                drive = Mul (dt_3, b_3)
                added = Mul (drive, u_3)
                old = Mul (fade, h)
                h_next = Add (old, added)
                c_3 = Unsqueeze (c_t, a2)
                seen = MatMul (h_next, c_3)
                row = Squeeze (seen, a2)
            }}> (nothing, dt, b_in, c_out, steps)
        through = Mul (steps, skip)
        all = Add (rows, through)
        back = Transpose <perm = [1, 0, 2]> (all)
        gate_s = Sigmoid (gate)
        gate_a = Mul (gate, gate_s)
        gated = Mul (back, gate_a)
        y = MatMul (gated, w_out)
    }}"""
    weights = {
        "w_in": (12, 32), "taps": (16, 1, 4), "taps_b": (16,), "w_x": (16, 11), "w_dt": (3, 16),
        "dt_b": (16,), "skip": (16,), "w_out": (16, 12),
    }  # fmt: skip
    constants = {
        "halves": np.array([16, 16]), "parts": np.array([3, 4, 4]), "a0": np.array([0]),
        "a1": np.array([1]), "a2": np.array([2]), "state_shape": np.array([16, 4]),
        "decay": -np.tile(np.arange(1, 5, dtype=np.float32), (16, 1)),
    }  # fmt: skip
    return network(text, weights, constants)


def sequences() -> onnx.ModelProto:
    """Return a network that splits its input, loops over the parts, and stacks the results."""
    text = f"""{_HEADER}
    parts (float[t, 6] x, int64 size) => (float[t, 10] y, float[n, 10] means, int64 count)
    {{
        cut = SplitToSequence <axis = 0, keepdims = 1> (x, size)
        count = SequenceLength (cut)
        none = SequenceEmpty <dtype = 1> ()
        first = SequenceEmpty <dtype = 1> ()
        going = Cast <to = 9> (one)
        h_0 = ConstantOfShape <value = float[1] {{0.0}}> (h_shape)
        done, sums, h = Loop (count, going, none, first, h_0) <
            body = step (int64 i, bool on, seq(float[r, 10]) had, seq(float[10]) had_s,
                         float[1, 10] carried) =>
                (bool on_n, seq(float[r, 10]) has, seq(float[10]) has_s, float[1, 10] carried_n)
            {{
                on_n = Identity (on)
                part = SequenceAt (cut, i)
                m = MatMul (part, w)
                mc = Add (m, carried)
                a = Tanh (mc)
                mean = ReduceMean <axes = [0], keepdims = 0> (a)
                carried_n = Unsqueeze (mean, a0)
                has = SequenceInsert (had, a)
                has_s = SequenceInsert (had_s, mean)
            }}
        >
        joined = ConcatFromSequence <axis = 0> (done)
        means = ConcatFromSequence <axis = 0, new_axis = 1> (sums)
        bent = MatMul (joined, w_2)
        y = Relu (bent)
    }}"""
    constants = {"one": np.int64(1), "a0": np.array([0]), "h_shape": np.array([1, 10])}
    return network(text, {"w": (6, 10), "w_2": (10, 10)}, constants)


def functions() -> onnx.ModelProto:
    """Return a residual network of blocks that are functions of the model, one calling another."""
    text = """<ir_version: 8, opset_import: ["" : 18, "net" : 1]>
    blocks (float[n, 8, h, w] x) => (float[n, 5] y, float[n, 8, h, w] map)
    {
        a = net.Residual <slope: float = 0.2> (x, k0, k1)
        b = net.Residual (a, k2, k3)
        map = net.Normed <groups: int = 4> (b, gain, bias)
        y = net.Head (map, w)
    }
    <domain: "net", opset_import: ["" : 18]> Bent <slope> (v) => (r)
    {
        r = LeakyRelu <alpha: float = @slope> (v)
    }
    <domain: "net", opset_import: ["" : 18, "net" : 1]> Residual <slope: float = 0.05> (v, k, l)
        => (r)
    {
        c = Conv <pads = [1, 1, 1, 1]> (v, k)
        b = net.Bent <slope: float = @slope> (c)
        d = Conv <pads = [1, 1, 1, 1]> (b, l)
        r = Add (v, d)
    }
    <domain: "net", opset_import: ["" : 18]> Normed <groups> (v, g, o) => (r)
    {
        shape = Shape (v)
        count = Constant <value_int: int = @groups> ()
        axis = Constant <value = int64[1] {0}> ()
        rest = Constant <value = int64[2] {0, -1}> ()
        n = Unsqueeze (count, axis)
        cut = Constant <value = int64[1] {-1}> ()
        start = Constant <value = int64[1] {0}> ()
        end = Constant <value = int64[1] {1}> ()
        batch = Slice (shape, start, end, start)
        form = Concat <axis = 0> (batch, n, cut)
        grouped = Reshape (v, form)
        last = Constant <value = int64[1] {2}> ()
        mean = ReduceMean (grouped, last)
        off = Sub (grouped, mean)
        square = Mul (off, off)
        var = ReduceMean (square, last)
        small = Constant <value_float = 0.00001> ()
        safe = Add (var, small)
        root = Sqrt (safe)
        flat = Div (off, root)
        back = Reshape (flat, shape)
        scaled = Mul (back, g)
        r = Add (scaled, o)
    }
    <domain: "net", opset_import: ["" : 18]> Head (v, m) => (r)
    {
        pooled = GlobalAveragePool (v)
        vector = Flatten <axis = 1> (pooled)
        r = MatMul (vector, m)
    }"""
    weights = {f"k{n}": (8, 8, 3, 3) for n in range(4)} | {"w": (8, 5)}
    constants = {
        "gain": np.linspace(0.5, 1.5, 8, dtype=np.float32).reshape(8, 1, 1),
        "bias": np.linspace(-1, 1, 8, dtype=np.float32).reshape(8, 1, 1),
    }
    return network(text, weights, constants)


def _old_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    shapes = {
        "k0": (8, 3, 3, 3), "b0": (8,), "k1": (12, 4, 3, 3), "b1": (12,), "k2": (10, 6, 1, 1),
        "gain": (12,), "bias": (12,), "mean": (12,), "slope": (12,), "w": (7, 176), "w_b": (7,),
        "shift": (8,),
    }  # fmt: skip
    arrays = {
        name: (normal(random, *shape) * np.prod(shape[1:] or (1,)) ** -0.5).astype(np.float32)
        for name, shape in shapes.items()
    }
    return arrays | {"var": np.linspace(0.5, 2, 12, dtype=np.float32)}


def _old(nodes: list[onnx.NodeProto], opset: int, more: dict[str, np.ndarray]) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    arrays = _old_weights() | more
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "old",
        [
            info("x", TensorProto.FLOAT, [2, 3, 20, 24]),
            # Before version 4 of the format, initializers had to be inputs as well.
            *(
                info(name, numpy_helper.from_array(array).data_type, array.shape)
                for name, array in arrays.items()
                if name in used
            ),
        ],
        [info("y", TensorProto.FLOAT, [2, 7]), info("rows", TensorProto.FLOAT, [2, 22, 1])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    onnx.checker.check_model(proto)
    return proto


def old() -> onnx.ModelProto:
    """Return a classifier in opset 3, as converters of 2017 wrote them.

    Broadcasting by attribute, training modes spelled out, shapes, pads and axes as attributes.
    """
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "k0", "b0"], ["c0"], kernel_shape=[3, 3], pads=[1, 1, 1, 1],
             strides=[1, 1], dilations=[1, 1], group=1),
        node("Add", ["c0", "shift"], ["a0"], broadcast=1, axis=1),
        node("Relu", ["a0"], ["r0"]),
        node("LRN", ["r0"], ["l0"], size=5, alpha=1e-2, beta=0.75, bias=1.0),
        node("MaxPool", ["l0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p0", "k1", "b1"], ["c1"], kernel_shape=[3, 3], group=2, auto_pad="VALID"),
        node("BatchNormalization", ["c1", "gain", "bias", "mean", "var"], ["n1"], is_test=1,
             epsilon=1e-5, consumed_inputs=[0, 0, 0, 1, 1]),
        node("PRelu", ["n1", "slope"], ["r1"]),
        node("Pad", ["r1"], ["d1"], mode="constant", pads=[0, 0, 1, 0, 0, 0, 1, 0], value=0.1),
        node("Dropout", ["d1"], ["o1"], is_test=1, ratio=0.5),
        node("AveragePool", ["o1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Split", ["p1"], ["low", "high"], axis=1, split=[6, 6]),
        node("Conv", ["low", "k2"], ["c2"], kernel_shape=[1, 1]),
        node("Sigmoid", ["high"], ["gate"]),
        node("Concat", ["c2", "gate", "high"], ["joined"], axis=1),
        node("ReduceMean", ["joined"], ["mean1"], axes=[2, 3], keepdims=0),
        node("Unsqueeze", ["mean1"], ["rows_w"], axes=[2]),
        node("Slice", ["joined"], ["part"], axes=[2, 3], starts=[0, 1], ends=[2, 6]),
        node("Reshape", ["part"], ["vector"], shape=[0, -1]),
        node("Gemm", ["vector", "w", "w_b"], ["g"], transB=1, broadcast=1, alpha=1.0, beta=1.0),
        node("Clip", ["g"], ["q"], min=-2.0, max=2.0),
        node("Mul", ["rows_w", "two"], ["rows"], broadcast=1),
        node("Softmax", ["q"], ["y"], axis=1),
    ]  # fmt: skip
    return _old(nodes, 3, {"two": np.array([2], np.float32)})


def renewed() -> onnx.ModelProto:
    """Return the classifier of `old` in opset 13."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "k0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        node("Add", ["c0", "shift_3"], ["a0"]),
        node("Relu", ["a0"], ["r0"]),
        node("LRN", ["r0"], ["l0"], size=5, alpha=1e-2, beta=0.75, bias=1.0),
        node("MaxPool", ["l0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p0", "k1", "b1"], ["c1"], group=2),
        node("BatchNormalization", ["c1", "gain", "bias", "mean", "var"], ["n1"], epsilon=1e-5),
        node("PRelu", ["n1", "slope_3"], ["r1"]),
        node("Pad", ["r1", "pads", "fill"], ["d1"]),
        node("AveragePool", ["d1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Split", ["p1", "parts"], ["low", "high"], axis=1),
        node("Conv", ["low", "k2"], ["c2"]),
        node("Sigmoid", ["high"], ["gate"]),
        node("Concat", ["c2", "gate", "high"], ["joined"], axis=1),
        node("ReduceMean", ["joined"], ["mean1"], axes=[2, 3], keepdims=0),
        node("Unsqueeze", ["mean1", "a2"], ["rows_w"]),
        node("Slice", ["joined", "starts", "ends", "axes"], ["part"]),
        node("Reshape", ["part", "form"], ["vector"]),
        node("Gemm", ["vector", "w", "w_b"], ["g"], transB=1),
        node("Clip", ["g", "low_v", "high_v"], ["q"]),
        node("Mul", ["rows_w", "two"], ["rows"]),
        node("Softmax", ["q"], ["y"], axis=1),
    ]
    arrays = _old_weights()
    more = {
        "shift_3": arrays["shift"].reshape(8, 1, 1), "slope_3": arrays["slope"].reshape(12, 1, 1),
        "pads": np.array([0, 0, 1, 0, 0, 0, 1, 0]), "fill": np.float32(0.1),
        "parts": np.array([6, 6]), "a2": np.array([2]), "starts": np.array([0, 1]),
        "ends": np.array([2, 6]), "axes": np.array([2, 3]), "form": np.array([0, -1]),
        "low_v": np.float32(-2), "high_v": np.float32(2), "two": np.array([2], np.float32),
    }  # fmt: skip
    return _old(nodes, 13, {name: np.asarray(array) for name, array in more.items()})


def _series(random: np.random.Generator) -> list[Feeds]:
    return [{"x": normal(random, b, t, 12)} for b, t in ((2, 9), (1, 1), (1, 14), (2, 9))]


OTHER_FORMS = {
    "selective_scan": Written("state-space block: a Scan over time", selective_scan, _series),
    "sequences": Written(
        "sequences cut, filled in a loop, and joined",
        sequences,
        lambda random: [
            {"x": normal(random, t, 6), "size": np.array(size)}
            for t, size in ((7, 3), (6, 2), (1, 4), (7, 3))
        ],
    ),
    "old": Written(
        "classifier of opset 3",
        old,
        lambda random: [{"x": normal(random, 2, 3, 20, 24)} for _ in range(2)],
        twin=renewed,
    ),
    "functions": Written(
        "residual blocks as functions of the model",
        functions,
        lambda random: [
            {"x": normal(random, n, 8, h, w)} for n, h, w in ((1, 9, 13), (2, 5, 7), (1, 9, 13))
        ],
    ),
}
