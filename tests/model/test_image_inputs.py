"""Images as stored in files cost as many dispatches as planes of floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
from tests.model.oracle import assert_agree
from tests.onnxruntime_oracle import open_oracle

HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
WEIGHTS = np.random.default_rng(0).standard_normal((6, 3, 3, 3)).astype(np.float32)
MEAN = "mean = Constant <value = float[3] {0.485, 0.456, 0.406}> ()"
STD = "std = Constant <value = float[3] {0.229, 0.224, 0.225}> ()"
BLOCK = "axes = Constant <value = int64[2] {1, 2}> ()"
MOVE = "Transpose <perm = [0, 3, 1, 2]>"
FLOAT = "Cast <to = 1>"

# The form of the input, and the ops that convert it to "p", planes of floats.
NETWORKS = {
    "detector": ("uint8[N, H, W, 3] x", f"t = {MOVE} (x) c = {FLOAT} (t) p = Div (c, s)"),
    "scaled first": ("uint8[N, H, W, 3] x", f"c = {FLOAT} (x) d = Div (c, s) p = {MOVE} (d)"),
    "normalised last": (
        "uint8[N, H, W, 3] x",
        (
            f"t = {MOVE} (x) c = {FLOAT} (t) d = Div (c, s) {MEAN} {STD} {BLOCK} m = Unsqueeze"
            " (mean, axes) v = Unsqueeze (std, axes) n = Sub (d, m) p = Div (n, v)"
        ),
    ),
    "normalised first": (
        "uint8[N, H, W, 3] x",
        (
            f"c = {FLOAT} (x) d = Div (c, s) {MEAN} {STD} n = Sub (d, mean) v = Div (n, std)"
            f" p = {MOVE} (v)"
        ),
    ),
    "mobile": (
        "uint8[N, H, W, 3] x",
        (
            f"c = {FLOAT} (x) h = Constant <value_float = 127.5> ()"
            f" o = Constant <value_float = 1.0> () d = Div (c, h) n = Sub (d, o) p = {MOVE} (n)"
        ),
    ),
    "by int32": ("uint8[N, H, W, 3] x", f"i = Cast <to = 6> (x) c = {FLOAT} (i) p = {MOVE} (c)"),
    "planes of bytes": ("uint8[N, 3, H, W] x", f"c = {FLOAT} (x) p = Sub (c, s)"),
    "floats, channels last": ("float[N, H, W, 3] x", f"p = {MOVE} (x)"),
    "shifted planes": ("float[N, 3, H, W] x", "p = Sub (x, s)"),
    "one picture": (
        "uint8[H, W, 3] x",
        (
            f"t = Transpose <perm = [2, 0, 1]> (x) a = Constant <value = int64[1] {{0}}> ()"
            f" u = Unsqueeze (t, a) c = {FLOAT} (u) p = Sub (c, s)"
        ),
    ),
}


def build(before: tuple[str, str], after: str = "y = Conv <pads = [1, 1, 1, 1]> (p, w)") -> Any:
    given, nodes = before
    text = f"{HEAD} g ({given}) => (float[n, c, h, w] y) <float s = {{255.0}}> {{{nodes} {after}}}"
    model = onnx.parser.parse_model(text.replace(") ", ")\n"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS, "w"))
    return model


def feed(model: onnx.ModelProto, height: int, width: int, batch: int) -> dict[str, Any]:
    info = model.graph.input[0].type.tensor_type
    sizes = {"N": batch, "H": height, "W": width}
    shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in info.shape.dim]
    x = np.random.default_rng(height).integers(0, 256, shape)
    return {"x": x.astype(onnx.helper.tensor_dtype_to_np_dtype(info.elem_type))}


@pytest.mark.parametrize("name", NETWORKS)
def test_as_many_dispatches_as_planes_of_floats(name: str, validation: bool) -> None:
    """A change of layout before the convolution, and one after it."""
    model = build(NETWORKS[name])
    oracle = open_oracle(model)
    with vkmnn.InferenceSession(model, validation=validation, require_device=True) as session:
        for height, width, batch in ((5, 7, 1), (32, 9, 2), (1, 1, 3)):
            feeds = feed(model, height, width, batch)
            assert_agree(session.run(None, feeds), oracle.run(None, feeds), 1e-5, name)
        types = [op.type for op in session.placement()]
    assert types == ["ImageToTensor", "Convolution", "ConvertTensor"]


@pytest.mark.parametrize("name", NETWORKS)
def test_in_halves_and_on_the_host(name: str) -> None:
    model = build(NETWORKS[name])
    feeds = feed(model, 6, 5, 2)
    expected = open_oracle(model).run(None, feeds)
    for options, limit in (({"precision": "normal"}, 1e-2), ({"device": "cpu"}, 1e-5)):
        with vkmnn.InferenceSession(model, **options) as session:
            assert_agree(session.run(None, feeds), expected, limit, name)


def test_pictures_that_are_resized_first() -> None:
    """The resize keeps channel blocks."""
    after = (
        "r = Constant <value = float[4] {1.0, 1.0, 0.5, 0.75}> ()"
        ' q = Resize <mode = "linear"> (p, , r) y = Conv <pads = [1, 1, 1, 1]> (q, w)'
    )
    model = build(NETWORKS["detector"], after)
    with vkmnn.InferenceSession(model, require_device=True) as session:
        feeds = feed(model, 12, 20, 2)
        assert_agree(session.run(None, feeds), open_oracle(model).run(None, feeds), 1e-5)
        types = [op.type for op in session.placement()]
    assert types == ["ImageToTensor", "Interp", "Convolution", "ConvertTensor"]


@pytest.mark.parametrize("order", ["planes", "channels last", "padded, then moved"])
def test_asymmetric_pads_cost_nothing(order: str, validation: bool) -> None:
    """As TensorFlow pads before it strides, in either order of axes."""
    planes, last = ("0, 0, 0, 0, 0, 0, 1, 1", "0, 0, 0, 0, 0, 1, 1, 0")
    head, nodes = {
        "planes": (NETWORKS["shifted planes"][0], "p = Pad (x, k)"),
        "channels last": (
            NETWORKS["detector"][0],
            f"t = {MOVE} (x) c = {FLOAT} (t) p = Pad (c, k)",
        ),
        "padded, then moved": (
            NETWORKS["detector"][0],
            f"c = {FLOAT} (x) q = Pad (c, k) p = {MOVE} (q)",
        ),
    }[order]
    pads = last if order.startswith("padded") else planes
    pads = f"k = Constant <value = int64[8] {{{pads}}}> () "
    model = build((head, pads + nodes), "y = Conv <strides = [2, 2]> (p, w)")
    with vkmnn.InferenceSession(model, validation=validation, require_device=True) as session:
        for height, width, batch in ((6, 8, 1), (7, 4, 2)):
            feeds = feed(model, height, width, batch)
            assert_agree(session.run(None, feeds), open_oracle(model).run(None, feeds), 1e-5)
        types = [op.type for op in session.placement()]
    first = "ConvertTensor" if order == "planes" else "ImageToTensor"
    assert types == [first, "Convolution", "ConvertTensor"]
