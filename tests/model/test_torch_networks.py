"""Sample networks of PyTorch's by every road: programs, their files, traces and torch.compile."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from vkmnn.cli.app import run_cli

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import vkmnn.torch  # noqa: E402 - after the skip
from tests.model.torch_networks import NETWORKS, Network, made, open_sizes  # noqa: E402

FOLDER = Path(__file__).resolve().parents[1] / "data" / "torch"
SCRIPTS = [name for name, network in NETWORKS.items() if network.script]
FIXED = {"attention", "choices", "means", "norms", "ratings", "spectrum", "vit"}
"""What the exporter of TorchScript refuses; the other roads of traces take fixed sizes."""


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def tensors(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple | list) else [results]


def agree(found: Iterable[Any], right: Iterable[Any]) -> None:
    """Arrays or tensors, within 1e-4 of the range."""
    for one, two in zip(map(np.asarray, found), map(np.asarray, right), strict=True):
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
        limit = 1e-4 * max(1.0, float(np.abs(two).max(initial=0))) if two.dtype.kind == "f" else 0
        np.testing.assert_allclose(one, two, rtol=0, atol=limit)


def run(session: vkmnn.InferenceSession, args: Iterable[Any]) -> list[Any]:
    infos = session.get_inputs()
    return session.run(
        None,
        {
            info.name: np.asarray(one).astype(info.dtype)
            for info, one in zip(infos, args, strict=True)
        },
    )


def check(session: vkmnn.InferenceSession, module: Any, network: Network, sizes: Any) -> None:
    """Run for each size, with what the module writes."""
    module = copy.deepcopy(module)
    for size in sizes:
        args = network.args(size)
        agree(run(session, args), tensors(module(*args)))


def program_of(module: Any, network: Network) -> Any:
    return torch.export.export(
        copy.deepcopy(module), network.args(3), dynamic_shapes=open_sizes(network)
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_program(name: str, tmp_path: Path) -> None:
    module, network = made(name)
    program = program_of(module, network)
    with vkmnn.InferenceSession(program) as session:
        check(session, module, network, (3, 3, 2))
        for info, axes in zip(session.get_inputs(), network.open, strict=True):
            assert {at: one for at, one in enumerate(info.shape) if isinstance(one, str)} == axes
        results = [tensors(copy.deepcopy(module)(*network.args(size))) for size in (3, 2)]
        for info, one, two in zip(session.get_outputs(), *results, strict=True):
            for declared, first, second in zip(info.shape, one.shape, two.shape, strict=True):
                assert declared == first if first == second else isinstance(declared, str)
    torch.export.save(program, tmp_path / "net.pt2")
    assert run_cli(["convert", str(tmp_path / "net.pt2"), str(tmp_path / "net.vkmnn")]) == 0
    with vkmnn.InferenceSession(tmp_path / "net.vkmnn") as session:
        check(session, module, network, (3, 3, 4))


@pytest.mark.parametrize("name", SCRIPTS)
def test_trace(name: str, tmp_path: Path) -> None:
    module, network = made(name)
    args = network.args(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        traced = torch.jit.trace(module, args)
        torch.jit.save(traced, tmp_path / "net.pt")
        if name in FIXED:
            compiled = vkmnn.torch.compile(torch.jit.load(tmp_path / "net.pt"), args)
            for given in (args, network.args(3)):
                agree(tensors(compiled(*given)), tensors(module(*given)))
            return
    shapes = {
        formal.name: [axes.get(axis, size) for axis, size in enumerate(arg.shape)]
        for formal, arg, axes in zip(
            traced.forward.schema.arguments[1:], args, network.open, strict=True
        )
    }
    with vkmnn.InferenceSession(tmp_path / "net.pt", input_shapes=shapes) as session:
        check(session, module, network, (3, 3, 4))


@pytest.mark.parametrize("name", NETWORKS)
def test_backend(name: str) -> None:
    module, network = made(name)
    right = copy.deepcopy(module)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="vkmnn", options={"fallback": "raise"})
    for size in (3, 3, 4, 2):
        args = network.args(size)
        agree(tensors(compiled(*args)), tensors(right(*args)))
    for one, two in zip(module.buffers(), right.buffers(), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.pt*")), ids=lambda path: path.name)
def test_stored_files(path: Path) -> None:
    """What PyTorch 2.13 wrote and computed; see tests/data/torch/make.py."""
    stored = np.load(path.with_suffix(".npz"))

    def values(number: int, kind: str) -> list[Any]:
        return [stored[one] for one in stored if one.startswith(f"{number}/{kind}/")]

    shapes = None
    if path.suffix == ".pt":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            formal = torch.jit.load(path).forward.schema.arguments[1:]
        shapes = {one.name: two.shape for one, two in zip(formal, values(0, "in"), strict=True)}
    with vkmnn.InferenceSession(path, "cpu", input_shapes=shapes) as session:
        for number in (0, 1) if shapes is None else (0, 0):
            agree(run(session, values(number, "in")), values(number, "out"))


def test_files_at_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOLDER / "mixer.pt2")
    for command, *options in (["info"], ["run", "--shape", "x=3,4,5"]):
        assert run_cli([command, path, *options]) == 0, capsys.readouterr().err
    assert "x" in capsys.readouterr().out
