"""Inputs and outputs of an Interpreter's session, mapped and on the device."""

from __future__ import annotations

import numpy as np
import pytest

import vkmnn
from tests.session.models import tanh_chain
from vkmnn.runtime.device import enumerate_devices


def test_map_and_unmap() -> None:
    interpreter = vkmnn.Interpreter(tanh_chain([2, 3]))
    session = interpreter.create_session({"device": "cpu"})
    interpreter.resize_session(session)
    x, y = interpreter.get_session_input(session), interpreter.get_session_output(session)
    with pytest.raises(vkmnn.InvalidInputError, match="not mapped"):
        x.unmap()
    with pytest.raises(vkmnn.InvalidInputError, match="no data yet"):
        y.map()
    x.map()[...] = 2
    x.unmap()
    interpreter.run_session(session)
    np.testing.assert_allclose(y.map(), np.full((2, 3), -np.tanh(2)), rtol=1e-6)
    y.unmap()
    x.map()[0] = 1
    x.unmap()
    interpreter.run_session(session)
    np.testing.assert_allclose(y.copy_to()[:, 0], [-np.tanh(1), -np.tanh(2)], rtol=1e-6)


def test_an_open_shape_cannot_be_mapped() -> None:
    interpreter = vkmnn.Interpreter(tanh_chain(["N"]))
    session = interpreter.create_session({"device": "cpu"})
    with pytest.raises(vkmnn.InvalidInputError, match="no shape yet"):
        interpreter.get_session_input(session).map()


def test_device_tensors_are_inputs() -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    array = np.linspace(-1, 1, 5, dtype=np.float32)
    tensor = vkmnn.InferenceSession(tanh_chain(["N"])).upload(array)
    interpreter = vkmnn.Interpreter(tanh_chain([5]))
    session = interpreter.create_session()
    interpreter.resize_session(session)
    interpreter.get_session_input(session).copy_from(tensor)
    for factor in (1, 2):
        tensor.copy_from(array * factor)
        interpreter.run_session(session)
        got = interpreter.get_session_output(session).copy_to()
        np.testing.assert_allclose(got, -np.tanh(array * factor), rtol=1e-5)
