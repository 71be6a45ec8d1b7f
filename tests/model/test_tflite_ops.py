"""TFLite's operators match LiteRT's reference kernels."""

from __future__ import annotations

import numpy as np
import pytest

import vkmnn
from tests.model.tflite_ops import CASES, Case
from tests.tflite_files import Oracle


def compare(found: np.ndarray, wanted: np.ndarray, limit: float) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    if wanted.dtype.kind == "f":
        span = max(float(np.abs(wanted).max(initial=0)), 1e-3)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=limit * span)
    else:
        apart = np.abs(found.astype(np.int64) - wanted.astype(np.int64)).max(initial=0)
        assert apart <= (limit if limit >= 1 else 0)


def agrees(case: Case, device: str) -> vkmnn.InferenceSession:
    wanted = Oracle(case.model).run(*case.feeds)
    session = vkmnn.InferenceSession(case.model, device=device)
    names = [arg.name for arg in session.get_inputs()]
    for _ in range(2):
        found = session.run(None, dict(zip(names, case.feeds, strict=True)))
        for one, other in zip(found, wanted, strict=True):
            compare(one, other, case.limit)
    return session


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    agrees(CASES[name], "cpu")


@pytest.mark.parametrize("name", CASES)
def test_operator_on_device(name: str) -> None:
    agrees(CASES[name], "auto")
