"""Models of PyTorch's where PyTorch is not installed; with it, tests/model/test_torch_models.py."""

from __future__ import annotations

import io
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from vkmnn.converter.front_end import find_front_end
from vkmnn.converter.torch import TorchFrontEnd
from vkmnn.converter.torch.expressions import is_size
from vkmnn.errors import MissingExtraError, ModelFileError


def archive(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written:
        for name in names:
            written.writestr(name, b"{}")
    return stream.getvalue()


PROGRAM = archive("m/data/weights/weight_0", "m/models/model.json", "m/archive_format")
OLD_PROGRAM = archive("serialized_exported_program.json", "version")
SCRIPT = archive("m/data.pkl", "m/code/__torch__/m.py", "m/constants.pkl", "m/version")
WEIGHTS = archive("m/data.pkl", "m/data/0", "m/version")


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("data", "name", "what"),
    [
        (PROGRAM, "m.pt2", "a program of torch.export"),
        (OLD_PROGRAM, "m.pt2", "a program of torch.export"),
        (SCRIPT, "m.pt", "a TorchScript file"),
        (SCRIPT, "m.torchscript", "a TorchScript file"),
    ],
)
def test_the_extra_is_named(data: bytes, name: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    for model in (path, str(path), data):
        with pytest.raises(MissingExtraError) as caught:
            vkmnn.InferenceSession(model, device="cpu")
        assert what in caught.value.message
        assert caught.value.hint == "pip install 'vkmnn[torch]'"


@pytest.mark.usefixtures("no_torch")
def test_objects_and_compile_name_the_extra() -> None:
    exported = type("ExportedProgram", (), {"__module__": "torch.export.exported_program"})
    scripted = type("ScriptModule", (), {"__module__": "torch.jit._script"})
    calls: list[Any] = [lambda: vkmnn.torch.compile(None, ())]
    calls += [partial(vkmnn.InferenceSession, one(), "cpu") for one in (exported, scripted)]
    for call in calls:
        with pytest.raises(MissingExtraError, match=r"vkmnn\[torch\]"):
            call()


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.pt2"])
def test_weights_are_refused_without_torch(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(WEIGHTS)
    with pytest.raises(ModelFileError, match=r"is a PyTorch archive(?s:.*)torch\.onnx\.export"):
        vkmnn.InferenceSession(path, device="cpu")
    assert not isinstance(find_front_end(WEIGHTS), TorchFrontEnd)


def test_a_module_is_to_be_compiled() -> None:
    module = type("Module", (), {"__module__": "torch.nn.modules.module"})()
    with pytest.raises(vkmnn.InvalidInputError, match=r"vkmnn\.torch\.compile\(module, args\)"):
        vkmnn.InferenceSession(module, device="cpu")


@pytest.mark.parametrize(
    "text",
    [
        *("s0", "-1", "2*s0 + s1**2", "Eq(s0, 3)", "Pow(Symbol('s0', integer=True), Integer(2))"),
        "Add(Mul(Integer(4), Symbol('s53', positive=True, integer=True)), Integer(6))",
    ],
)
def test_expressions_of_sizes(text: str) -> None:
    assert is_size(text)


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os')", "s0.args", "x[0]", "lambda: 0", "[x for x in y]", "Symbol(*a)"),
        *("9**9**9**9", "9**99999999", "(s0**16)**16", "LShift(1, 99999999)", "Range(9**9)"),
        "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
        *("9" * 20_000, "(" * 5000 + ")" * 5000, "s" * 200 + ".", "1" * 200 + "_"),
    ],
)
def test_expressions_that_are_no_sizes_or_take_long(text: str) -> None:
    assert not is_size(text)


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for data in (PROGRAM, SCRIPT, WEIGHTS):
        for _ in range(40):
            changed = bytearray(data)
            for place in random.integers(0, len(data), 3):
                changed[place] ^= int(random.integers(1, 256))
            path = tmp_path / "m.pt"
            path.write_bytes(changed)
            for model in (path, bytes(changed)):
                with pytest.raises(vkmnn.VkmnnError):
                    vkmnn.InferenceSession(model, device="cpu")
