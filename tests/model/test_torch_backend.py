"""torch.compile(module, backend="vkmnn") gives what PyTorch itself gives, and what it says."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vkmnn
from vkmnn.errors import ConversionError, InvalidInputError

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import vkmnn.torch  # noqa: E402 - after the skip
from vkmnn.torch import graph_sessions  # noqa: E402

nn, F = torch.nn, torch.nn.functional
FallbackWarning = vkmnn.torch.FallbackWarning
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setattr(vkmnn.torch.dynamo, "_said", set())
    with torch.no_grad():
        yield


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return weak references to the sessions that graphs open from now on."""
    found: list[Any] = []

    def session(*args: Any, **options: Any) -> vkmnn.InferenceSession:
        made = vkmnn.InferenceSession(*args, **options)
        found.append(weakref.ref(made))
        return made

    monkeypatch.setattr(graph_sessions, "InferenceSession", session)
    return found


def compiled(function: Any, **options: Any) -> Any:
    """Compile for numpy, which opens soonest; a graph for PyTorch is an error."""
    given = {"device": "cpu", "fallback": "raise", **options}
    return torch.compile(function, backend="vkmnn", options=given)


def same(found: Any, right: Any) -> None:
    """Equal values, types and layouts, but for rounding."""
    leaves = torch.utils._pytree.tree_leaves
    for one, two in zip(leaves(found), leaves(right), strict=True):
        assert type(one) is type(two)
        if isinstance(two, torch.Tensor):
            assert (one.dtype, one.stride()) == (two.dtype, two.stride())
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
        else:
            assert one == two


class Everything(nn.Module):
    """Writes a buffer, and returns parts, views, inputs, numbers and None."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))

    def forward(self, x: Any, times: int = 2) -> Any:
        self.count += 1
        y = self.linear(x)
        first, second = y.chunk(2, -1)
        rows = {"view": x.view(-1), "input": x, "turned": (y * times).T, "none": None}
        return first, second, rows, x[1:], self.count, x.shape[0] * 2


def test_results_are_what_the_module_returns(opened: list[Any]) -> None:
    module = Everything().eval()
    right = copy.deepcopy(module)
    run = compiled(module)
    for rows, *times in ((2,), (5,), (6,), (5, 7), (5, 9)):
        x = torch.randn(rows, 3)
        found = run(x, *times)
        same(found, right(x, *times))
        first, second, returned, part, count, _ = found
        assert first.data_ptr() + 8 == second.data_ptr()  # parts of one tensor
        assert returned["input"] is x
        assert returned["view"].data_ptr() == x.data_ptr()
        assert part.data_ptr() == x.data_ptr() + 12
        assert count is module.count
    assert len(opened) == 3  # two rows, any rows, any rows and times


def test_inputs_are_written() -> None:
    def write(x: Any, y: Any) -> Any:
        x.mul_(2)
        y[1:] += x[:1]
        return y.sum(), x.T

    x, y = torch.randn(3, 4).T, torch.randn(4, 3)
    mine, theirs = (x.clone(), y.clone()), (x.clone(), y.clone())
    same(compiled(write)(*mine), write(*theirs))
    same(mine, theirs)
    base = torch.ones(6)
    with pytest.warns(FallbackWarning, match="memory is another's"):
        compiled(lambda x, y: x.add_(1) + y, fallback="eager")(base[:4], base[2:])


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.bool]
)
def test_element_types(dtype: Any) -> None:
    def work(x: Any, y: Any) -> Any:
        return torch.where(x > y, x, y), x.flip(1).contiguous(), (x != y).any(1)

    x, y = (torch.randint(0, 5, (4, 3)).to(dtype) for _ in range(2))
    same(compiled(work)(x, y), work(x, y))


def test_layouts() -> None:
    def work(x: Any, y: Any, z: Any) -> Any:
        return (x * 2).relu(), (y + 1).transpose(0, 1), z.mean(0, keepdim=True).expand(4, -1)

    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    y, z = torch.randn(4, 6)[:, ::2], torch.randn(1, 3).expand(2, 3)
    same(compiled(work)(x, y, z), work(x, y, z))


# --- weights -------------------------------------------------------------------------------------


def test_weights_are_read_once_and_when_they_change(opened: list[Any]) -> None:
    module = nn.Linear(3, 2)
    run, x = compiled(module), torch.randn(2, 3)
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: module.weight.mul_(2),  # a counter of PyTorch's notices
        lambda: setattr(module.weight, "data", torch.ones(2, 3)),
        lambda: module.load_state_dict({"weight": torch.zeros(2, 3), "bias": torch.ones(2)}),
    ]
    for number, change in enumerate(changes, 1):
        change()
        for _ in range(2):
            same(run(x), module(x))
        assert len(opened) == number


def test_layers_that_share_a_graph_have_their_own_weights(opened: list[Any]) -> None:
    layers = [nn.Linear(3, 3) for _ in range(3)]
    run = compiled(lambda layer, x: layer(x).relu())
    x = torch.randn(2, 3)
    for _ in range(2):
        for layer in layers:
            same(run(layer, x), layer(x).relu())
    assert len(opened) == 3


def test_sessions_are_bounded_and_end_with_the_weights(opened: list[Any]) -> None:
    layers = [nn.Linear(3, 3) for _ in range(3)]
    run = compiled(lambda layer, x: layer(x).relu(), sessions=2)
    x = torch.randn(2, 3)
    for layer in (*layers, *layers[1:], layers[0]):
        same(run(layer, x), layer(x).relu())
    assert len(opened) == 4  # the first layer's had to go

    gc.collect()
    assert [one() is None for one in opened] == [True, True, False, False]
    del layer
    layers.clear()
    gc.collect()
    assert not any(one() for one in opened)


# --- gradients -----------------------------------------------------------------------------------


def test_gradients_are_left_to_pytorch() -> None:
    module, x = nn.Linear(3, 2), torch.randn(2, 3)
    with torch.enable_grad():
        run = compiled(module, fallback="eager")
        with pytest.warns(FallbackWarning, match=r"gradients(?s:.*)torch\.no_grad\(\)"):
            run(x).sum().backward()
        assert module.weight.grad is not None
        torch._dynamo.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled(module, fallback="eager")(x)  # said once
        torch._dynamo.reset()
        with pytest.raises(Exception, match="gradients"):
            compiled(module)(x)


def test_graphs_without_gradients_run_where_gradients_are_on(opened: list[Any]) -> None:
    module, x = nn.Linear(3, 2), torch.randn(2, 3)

    @torch.no_grad()
    def inside(x: Any) -> Any:
        return module(x)

    with torch.enable_grad():
        same(compiled(inside)(x), inside(x))
        same(compiled(lambda x: x * 2)(x), x * 2)
    with torch.inference_mode():
        same(compiled(module)(x), module(x))
        fresh = nn.Linear(3, 2)  # PyTorch counts no writes to what is made here
        same(compiled(fresh)(x), fresh(x))
    assert len(opened) >= 3


# --- what PyTorch runs ---------------------------------------------------------------------------


def test_what_is_refused_is_said_once_for_each_reason() -> None:
    def bessel(x: Any) -> Any:
        return torch.special.modified_bessel_k1(x)

    def random(x: Any) -> Any:
        return x + torch.rand(3)

    x = torch.rand(3)
    for function, words in (
        (bessel, r"aten\.special_modified_bessel_k1"),
        (random, "draws random numbers"),
        (nn.BatchNorm1d(3).train(), r"updates its statistics(?s:.*)eval\(\)"),
        (lambda x: torch.view_as_complex(x[:, :2].contiguous()), "complex"),
        (nn.Dropout(), "draws random numbers"),
    ):
        given = x if function in (bessel, random) else torch.rand(4, 3)
        torch._dynamo.reset()
        vkmnn.torch.dynamo._said.clear()
        run = compiled(function, fallback="eager")
        with pytest.warns(FallbackWarning, match=words):
            run(given)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert run(given).shape[0] == len(given)
        torch._dynamo.reset()
        with pytest.raises((ConversionError, torch._dynamo.exc.BackendCompilerFailed), match=words):
            compiled(function)(given)


def test_integers_beyond_the_devices_run_in_pytorch_for_that_call() -> None:
    run = torch.compile(lambda x: x * 2 + 1, backend="vkmnn")
    same(run(torch.tensor([1, 2])), torch.tensor([3, 5]))
    large = torch.tensor([2**40, 1])
    same(run(large), large * 2 + 1)
    same(run(torch.tensor([7, 2])), torch.tensor([15, 5]))


def test_graph_breaks(opened: list[Any]) -> None:
    def work(x: Any) -> Any:
        y = x.relu() * 2
        if float(y.sum()) > 3:  # PyTorch looks at the value between two graphs
            return y - 1
        return (y + 1, y.view(-1))

    for x in (torch.ones(2, 3), torch.zeros(2, 3)):
        same(compiled(work)(x), work(x))
    assert len(opened) > 2


# --- options and threads -------------------------------------------------------------------------


def test_options(opened: list[Any]) -> None:
    x = torch.randn(4, 4)
    same(compiled(lambda x: x @ x)(x), x @ x)
    assert type(opened[0]().device).__name__ == "CpuInfo"
    run = torch.compile(lambda x: x @ x, backend="vkmnn", options={"precision": "fp16"})
    torch.testing.assert_close(run(x), x @ x, rtol=0.05, atol=0.05)
    run = torch.compile(lambda x: x @ x + 1, backend="vkmnn", mode="max-autotune")
    same(run(x), x @ x + 1)
    for arguments, words in (
        ({"options": {"devise": "cpu"}}, r"no option 'devise'(?s:.*)device"),
        ({"options": {"fallback": "never"}}, '"eager" or "raise"'),
        ({"options": {"sessions": 0}}, "number of sessions"),
        ({"mode": "fastest"}, "no mode 'fastest'"),
    ):
        with pytest.raises((InvalidInputError, Exception), match=words) as caught:
            torch.compile(lambda x: x + 1, backend="vkmnn", **arguments)(x)
        inner = getattr(caught.value, "inner_exception", caught.value)
        assert isinstance(inner, InvalidInputError)


def test_threads() -> None:
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    run = compiled(module)
    inputs = [torch.randn(2, 3) for _ in range(8)]
    run(inputs[0])
    errors: list[BaseException] = []

    def work(x: Any) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    same(run(x), module(x))
        except BaseException as error:  # noqa: BLE001 - the test raises it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_the_backend_has_a_name() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["vkmnn"].partition(":")
    assert getattr(importlib.import_module(module), name) is vkmnn.torch.backend
    assert "vkmnn" in torch._dynamo.list_backends()
    vkmnn.torch.dynamo.register()  # a second time
    assert sys.modules["vkmnn.torch"].backend is vkmnn.torch.backend


def test_an_installed_package_does_not_import_dynamo(tmp_path: Path) -> None:
    """PyTorch finds the entry point itself."""
    package = tmp_path / "installed-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1.0\n")
    points = "[torch_dynamo_backends]\nvkmnn = vkmnn.torch.dynamo:backend\n"
    (package / "entry_points.txt").write_text(points)
    code = """
import sys
import torch
before = "torch._dynamo" in sys.modules
import vkmnn.torch
assert before or "torch._dynamo" not in sys.modules
import torch._dynamo
assert torch._dynamo.lookup_backend("vkmnn") is vkmnn.torch.backend
"""
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths},
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
