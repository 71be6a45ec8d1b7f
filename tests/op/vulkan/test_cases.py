"""Ops on the device against numpy: every table of cases, with the kernels that the rules choose."""

from __future__ import annotations

import pytest

from tests.op.vulkan.harness import check_case
from vkmnn.testing.case import OP_CASES
from vkmnn_suite.cases import load_all

load_all()


@pytest.mark.parametrize("name", sorted(OP_CASES))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_cases(name: str) -> None:
    cases = list(OP_CASES[name]())
    assert cases
    for case in cases:
        check_case(case)
