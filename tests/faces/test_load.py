"""`vkmnn.load`: a network as a function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vkmnn
from vkmnn import InvalidInputError

X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def net(dense: Path) -> vkmnn.Model:
    return vkmnn.load(dense)


def test_by_position_and_by_name(net: vkmnn.Model, dense: Path) -> None:
    y, z = vkmnn.InferenceSession(dense).run(None, {"x": X})
    for result in (net(X), net(x=X), net({"x": X}), net(X.tolist()), net(memoryview(X))):
        np.testing.assert_array_equal(result.y, y)
        np.testing.assert_array_equal(result.z, z)
        assert len(result) == 2
    np.testing.assert_array_equal(np.maximum(y, 0), z)


def test_anything_that_is_an_array(net: vkmnn.Model) -> None:
    class Tensor:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return X

    np.testing.assert_array_equal(net(Tensor()).y, net(X).y)


def test_one_output_is_the_array(tmp_path: Path, dense: Path) -> None:
    import onnx

    model = onnx.load(dense)
    model.graph.output.pop()
    result = vkmnn.load(model, "cpu")(X)
    assert isinstance(result, np.ndarray)
    assert result.shape == (2, 3)


def test_names_that_python_does_not_take(dense: Path) -> None:
    import onnx

    model = onnx.load(dense)
    model.graph.output[0].name = model.graph.node[1].output[0] = "out:0"
    model.graph.node[2].input[0] = "out:0"
    model.graph.output[1].name = model.graph.node[2].output[0] = "1"
    model.graph.input[0].name = model.graph.node[0].input[0] = "x:0"
    net = vkmnn.load(model, "cpu")
    result = net({"x:0": X})
    assert result._fields == ("out_0", "_1")
    np.testing.assert_array_equal(net(X).out_0, result[0])
    assert list(net.outputs) == ["out:0", "1"]


@pytest.mark.parametrize(
    ("arrays", "named", "text"),
    [
        ((), {}, "input 'x' is missing"),
        ((X, X), {}, "has 1 input, got 2 arrays"),
        ((X,), {"x": X}, "input 'x' is given twice"),
        ((), {"q": X}, "no input 'q'"),
        ((X.astype(np.float64),), {}, "got an array of float64"),
        ((X[0],), {}, r"shape \[N, 4\], got \[4\]"),
        (("words",), {}, "str is not an array of float32"),
    ],
)
def test_wrong_calls(
    net: vkmnn.Model, arrays: tuple[object, ...], named: dict[str, object], text: str
) -> None:
    with pytest.raises(InvalidInputError, match=text):
        net(*arrays, **named)


def test_it_says_what_it_is_and_closes(dense: Path) -> None:
    with vkmnn.load(dense, "cpu") as net:
        assert repr(net) == (
            "<vkmnn.Model (x: float32[N, 4]) -> (y: float32[N, 3], z: float32[N, 3]) "
            "on CPU (numpy backend)>"
        )
    with pytest.raises(InvalidInputError, match="closed"):
        net(X)


def test_it_takes_the_options_of_a_session(dense: Path, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(dense)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    with pytest.raises(InvalidInputError, match=r"shape \[3, 4\]"):
        vkmnn.load(model, "cpu")(X)
    assert vkmnn.load(model, "cpu", input_shapes={"x": ("N", 4)})(X).y.shape == (2, 3)
    for wrong in ("unsupported", "on_device_lost", "input_shapes"):
        with pytest.raises(InvalidInputError, match=wrong):
            vkmnn.load(dense, "cpu", **{wrong: "perhaps"})  # type: ignore[arg-type]
