"""Every test case of the onnx package that the front end takes, through the public interface on the
device: outputs are right, and every op of the plan runs there but for reasons listed here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import pytest

from tests.onnx_cases import (
    as_array,
    compare,
    node_cases,
    recorded,
    recorded_model,
    recorded_tensors,
)
from tests.op.vulkan.harness import device
from vkmnn import InferenceSession
from vkmnn.errors import ConversionError, UnsupportedOpError

# Why an op may run off the device, and in which cases.
OFF_DEVICE = {
    "float64 tensors cannot be stored on the device": "",  # plain Vulkan 1.1 has no 64-bit types
    "convolution of int32 tensors": "test_convinteger_",
    # A table of powers of two holds what 32-bit integers do not.
    "holds -?[0-9]+, outside int32": "test_bitshift_.*(uint32|64)$",
}
PARTS = 8

DataSet = tuple[Sequence[object], Sequence[object]]  # inputs and outputs


def run(name: str, model: onnx.ModelProto, sets: Sequence[DataSet], rtol: float) -> Iterator[str]:
    """Run a model on its data sets; give what is wrong."""
    with InferenceSession(model, device="auto", validation=True, unsupported="raise") as session:
        names = [info.name for info in session.get_inputs()]
        outputs = session.get_outputs()
        for inputs, expected in sets:
            arrays = [as_array(value) for value in inputs]
            results = session.run(None, dict(zip(names, arrays, strict=False)))
            compare(name, results, [as_array(value) for value in expected], rtol)
            assert [out.dtype for out in outputs] == [array.dtype.name for array in results]
        for op in session.placement().off_device:
            allowed = [
                cases for reason, cases in OFF_DEVICE.items() if re.search(reason, op.reason)
            ]
            if not any(re.match(cases, name) for cases in allowed):
                yield f"{name}: {op.type} is off the device: {op.reason}"


@pytest.mark.validation
@pytest.mark.parametrize("part", range(PARTS))
def test_node_cases(part: int) -> None:
    device()
    wrong: list[str] = []
    right = refused = 0
    for case in node_cases()[part::PARTS]:
        try:
            wrong += run(case.name, case.model, case.data_sets, case.rtol)
            right += 1
        except (UnsupportedOpError, ConversionError):
            refused += 1  # tests of the converter say which cases may be refused
        except Exception as error:  # noqa: BLE001 - one bad case must not hide the others
            wrong.append(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)
    assert right > 2 * refused


@pytest.mark.validation
@pytest.mark.parametrize("folder", list(recorded()), ids=lambda path: path.name)
def test_recorded_models(folder: Path) -> None:
    device()
    sets = [
        (recorded_tensors(data, "input"), recorded_tensors(data, "output"))
        for data in sorted(folder.glob("test_data_set_*"))
    ]
    assert sets
    try:
        wrong = list(run(folder.name, recorded_model(folder, 13), sets, 1e-3))
    except UnsupportedOpError as error:
        pytest.skip(f"refused by the converter: {error.nodes[0].reason}")
    assert not wrong, "\n".join(wrong)
