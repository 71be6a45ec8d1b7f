"""`vkmnn.mnn.expr`, `numpy` and `cv`: the results of MNN's own functions, line by line.

data/mnn_lines.json holds lines of programs with the results of MNN 3.6.1, data/mnn_wrong.json those
where MNN crashes, returns an error or other numbers than it should, with what it returns and what
vkmnn returns, and data/mnn_refused.json lines that both refuse. programs/mnn_lines.py wrote the
results; where MNN is installed, it writes them again.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
import vkmnn.mnn as MNN  # noqa: N812 - as programs write it
from tests.model.mnn_models import converted
from vkmnn import InvalidInputError
from vkmnn.mnn import expr, nn
from vkmnn.mnn import numpy as mnp
from vkmnn.mnn.refused import REFUSED

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
PROGRAM = Path(__file__).parent / "programs" / "mnn_lines.py"
LINES, WRONG, SHARED, NAMES = (
    json.loads((DATA / f"mnn_{name}.json").read_text("utf-8"))
    for name in ("lines", "wrong", "refused", "names")
)
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="lines run in forked processes")


def here(lines: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return vkmnn's results for lines."""
    return run([sys.executable, "-m", "vkmnn.mnn"], lines, folder, "together")


def theirs(lines: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return MNN's results for lines."""
    pytest.importorskip("_mnncengine", reason="MNN is not installed: pip install 'vkmnn[test]'")
    return run([sys.executable], lines, folder)


def run(start: list[str], lines: Sequence[str], folder: Path, *more: str) -> dict[str, Any]:
    source, target = folder / "lines.json", folder / "results.json"
    source.write_text(json.dumps(lines), "utf-8")
    done = subprocess.run(
        [*start, str(PROGRAM), str(source), str(target), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(target.read_text("utf-8"))
    return results


def alike(one: Any, other: Any, close: float = 2e-4) -> bool:
    """Compare results: 8-bit numbers may differ by 1, floats by rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        if "matrix" in one and "matrix" in other:
            return np.allclose(one["matrix"], other["matrix"], 1e-3, 1e-3)
        if "data" not in one or "data" not in other:
            return one == other
        if (one["type"], one["shape"]) != (other["type"], other["shape"]):
            return False
        slack = 1.01 if one["type"] == "uint8" else close
        return np.allclose(one["data"], other["data"], close, slack)
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(alike(a, b, close) for a, b in pairs)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return bool(np.isclose(one, other, close, close))
    return bool(one == other)


def test_lines_return_what_mnn_returns(tmp_path: Path) -> None:
    found = here(list(LINES), tmp_path)
    assert len(found) == len(LINES) > 600
    wrong = {
        line: (found[line], LINES[line]) for line in LINES if not alike(found[line], LINES[line])
    }
    assert not wrong


def test_the_results_are_those_of_mnn(tmp_path: Path) -> None:
    found = theirs(list(LINES), tmp_path)
    assert not [line for line in LINES if not alike(found[line], LINES[line])]


def test_lines_where_mnn_is_wrong(tmp_path: Path) -> None:
    """MNN crashes, or returns memory's contents: here lines return what the names promise."""
    found = here(list(WRONG), tmp_path)
    assert not [line for line in WRONG if not alike(found[line], WRONG[line]["vkmnn"])]
    assert not [line for line in WRONG if alike(found[line], WRONG[line]["MNN"])]


def test_lines_that_are_refused_have_typed_errors(tmp_path: Path) -> None:
    found = here(SHARED, tmp_path)
    assert [line for line in SHARED if found[line].get("typed")] == SHARED


IMPORTED = {("expr", "np"), ("numpy", "math"), ("cv", "MNN"), ("llm", "IntEnum")}
"""Modules that MNN's modules import, which show among their names."""


def owner(name: str) -> Any:
    """Return a module of vkmnn's, or a class in one, by MNN's name."""
    found: Any = MNN
    for part in name.split(".") if name else ():
        found = getattr(found, part)
    return found() if name == "llm.Context" else found


@pytest.mark.parametrize("name", [name for name in NAMES if name != "version"])
def test_every_name_of_mnn_is_there_or_refused_with_a_reason(name: str) -> None:
    pytest.importorskip("tokenizers") if name.startswith("llm") else None
    here, refused = owner(name), REFUSED.get(name, {})
    missing = [one for one in NAMES[name] if not hasattr(here, one) and (name, one) not in IMPORTED]
    assert sorted(set(missing) - set(refused)) == []
    for one in refused:
        with pytest.raises(AttributeError, match="coming-from-mnn"):
            getattr(here, one)


def test_the_names_are_those_of_mnn(tmp_path: Path) -> None:
    pytest.importorskip("_mnncengine")
    modules = ("expr", "numpy", "numpy.linalg", "numpy.random", "cv", "nn")
    code = (
        "import importlib, json, sys\n"
        f"names = {{name: dir(importlib.import_module('MNN.' + name)) for name in {modules}}}\n"
        "import MNN\n"
        "json.dump([MNN.version(), names], open('names.json', 'w'))"
    )
    env = {**os.environ, "PATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True)
    version, names = json.loads((tmp_path / "names.json").read_text("utf-8"))
    if version != NAMES["version"]:
        pytest.skip(f"the list is of MNN {NAMES['version']}, not {version}")
    for name in modules:
        assert [one for one in names[name] if not one.startswith("_")] == NAMES[name]


def random_lines(seed: int, count: int) -> list[str]:
    """Return calls with random shapes, axes and types."""
    rng = np.random.default_rng(seed)

    def var(shape: Sequence[int], kind: str) -> str:
        size = int(np.prod(shape))
        values = rng.integers(-9, 10, size) if kind == "int" else rng.normal(0, 3, size).round(3)
        return f"F.const({values.tolist()}, {list(shape)}, F.NCHW, F.{kind})"

    def image(height: int, width: int, channels: int) -> str:
        values = rng.integers(0, 256, height * width * channels).tolist()
        return f"F.const({values}, [{height}, {width}, {channels}], F.NHWC, F.uint8)"

    def shape(most: int = 4) -> list[int]:
        return [int(one) for one in rng.integers(1, 6, rng.integers(1, most + 1))]

    lines = []
    for _ in range(count):
        sizes, kind = shape(), str(rng.choice(["int", "float"]))
        axis = int(rng.integers(-len(sizes), len(sizes)))
        x = var(sizes, kind)
        other = [one if rng.random() < 0.6 else 1 for one in sizes][rng.integers(0, len(sizes)) :]
        op = str(rng.choice(["add", "subtract", "multiply", "minimum", "maximum", "greater"]))
        lines.append(f"F.{op}({x}, {var(other, kind)})")
        op = str(rng.choice(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"]))
        lines.append(f"F.{op}({var(sizes, 'float')}, [{axis}], {bool(rng.integers(2))})")
        op = str(rng.choice(["argmax", "argmin", "cumsum"]))
        distinct = rng.permutation(int(np.prod(sizes))).astype(float).tolist()
        lines.append(f"F.{op}(F.const({distinct}, {sizes}), {axis % len(sizes)})")
        lines.append(f"F.softmax({var(sizes, 'float')}, {axis})")
        lines.append(f"np.sort({var(sizes, 'float')}, {axis})")
        lines.append(f"F.transpose({x}, {rng.permutation(len(sizes)).tolist()})")
        widths = rng.integers(0, 3, (len(sizes), 2)).tolist()
        lines.append(f"np.pad({x}, {widths})")
        lines.append(f"{x}.mean({axis})")
        height, width, channels = (int(one) for one in rng.integers((2, 2, 1), (12, 14, 5)))
        channels = 3 if channels == 2 else channels
        picture = image(height, width, channels)
        to = rng.integers(1, 25, 2).tolist()
        lines.append(f"cv.resize({picture}, {to}, interpolation={rng.integers(0, 2)})")
        lines.append(f"cv.flip({picture}, {rng.integers(-1, 2)})")
        codes = {1: ["GRAY2BGR", "GRAY2RGBA"], 3: ["BGR2GRAY", "RGB2BGR", "BGR2HSV", "RGB2YUV"]}
        code = rng.choice(codes.get(channels, ["BGRA2BGR", "RGBA2GRAY", "BGRA2RGBA"]))
        lines.append(f"cv.cvtColor({picture}, cv.COLOR_{code})")
        size = int(rng.choice([1, 3, 5]))
        if min(height, width) > size // 2 + 1:
            lines.append(f"cv.blur({picture}, [{size}, {size}])")
    return lines


def nearly(one: Any, other: Any) -> bool:
    """Compare results; a few pixels may differ: MNN's coordinates have rounding errors."""
    if alike(one, other, 1e-3):
        return True
    same = all(one.get(key) == other.get(key) for key in ("type", "shape"))
    if not same or one.get("type") != "uint8":
        return False
    return bool((np.abs(np.subtract(one["data"], other["data"])) <= 1).mean() > 0.9)


def test_random_arguments(tmp_path: Path) -> None:
    lines = random_lines(5, 14)
    mine, others = here(lines, tmp_path), theirs(lines, tmp_path)
    failed = [line for line in lines if "error" in str(others[line]) and len(others[line]) == 2]
    assert len(failed) < len(lines) / 10
    differing = [
        (line, mine[line], others[line])
        for line in lines
        if line not in failed and not nearly(mine[line], others[line])
    ]
    assert not differing


def warp_lines() -> list[str]:
    picture = (
        "im = F.const([(i * 37) % 256 for i in range(40 * 50 * 3)], [40, 50, 3], F.NHWC, F.uint8)"
    )
    moves = (
        "m.setRotate(20, 25, 20)",
        "m.setScale(1.3, 0.7, 10, 10)",
        "m.setTranslate(3.25, -2.5)",
        "m.setPolyToPoly([0, 0, 49, 0, 0, 39, 49, 39], [4, 2, 44, 6, 1, 38, 48, 33])",
    )
    return [
        f"{picture}; m = MNN.CVMatrix(); {move}; cv.warpPerspective(im, m, (45, 42), {flag})"
        for move in moves
        for flag in (0, 1)
    ]


def test_warps_and_drawings_cover_the_same_pixels(tmp_path: Path) -> None:
    """Some pixels on edges differ: MNN rounds there in its own way."""
    canvas = "im = F.const([0] * 6000, [60, 100, 1], F.NHWC, F.uint8)"
    drawings = (
        "cv.line(im, (3, 5), (90, 50), (255,))",
        "cv.rectangle(im, (10, 8), (70, 44), (255,), -1)",
        "cv.circle(im, (50, 30), 22, (255,), -1)",
        "cv.fillPoly(im, [[10, 5, 90, 12, 60, 55, 20, 40]], (255,))",
        "cv.drawContours(im, [[10, 5, 90, 12, 60, 55, 20, 40]], -1, (255,))",
        "cv.arrowedLine(im, (5, 50), (80, 10), (255,))",
    )
    lines = [*warp_lines(), *(f"{canvas}; {one}; im" for one in drawings)]
    mine, others = here(lines, tmp_path), theirs(lines, tmp_path)
    for line in lines:
        a, b = (np.array(one[line]["data"], float) for one in (mine, others))
        assert a.any(), line
        assert (np.abs(a - b) <= 2).mean() > 0.98, line


def test_what_is_computed_from_a_placeholder_waits() -> None:
    x = expr.placeholder([2, -1])
    y = expr.exp(x)
    assert (x.shape, y.op_type, y.dtype) == ([2, -1], "EXP", expr.float)
    with pytest.raises(InvalidInputError, match="holds no data yet"):
        y.read()
    deep = x
    depth = sys.getrecursionlimit() + 200  # deeper than Python's own stack
    for _ in range(depth):
        deep = deep + 1.0
    x.resize([2, 1])
    x.write([1, 2])
    np.testing.assert_allclose(deep.read(), [[depth + 1], [depth + 2]])
    expr.lazy_eval(True)
    try:
        x = mnp.array([1.0, 2.0])
        x.replace(x + 1.0)  # itself among its own inputs
        y = x * 2.0
        assert y.read_as_tuple() == (4.0, 6.0)
        with pytest.raises(InvalidInputError, match="depend on"):
            y.set_inputs([y, y])
    finally:
        expr.lazy_eval(False)
    assert (mnp.array([1]) + 1).inputs == []


def test_errors_are_those_that_programs_catch() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        mnp.array([1, 2]) + mnp.array([1, 2, 3])
    with pytest.raises(IndexError, match="out of bounds"):
        mnp.array([1, 2])[5]
    with pytest.raises(NotImplementedError, match="device"):
        mnp.array([1]).set_device_ptr(0, 2)
    with pytest.raises(InvalidInputError, match="32 bits"):
        mnp.array([2**40])
    with pytest.raises(InvalidInputError, match="does not fill"):
        expr.const(5, [3])
    with pytest.raises(InvalidInputError, match="divided by zero"):
        mnp.array([1]) / 0
    assert (mnp.array([1, 2]) == None).__class__ is bool  # noqa: E711 - as programs compare


def test_functions_that_mnn_only_names_are_those_of_numpy() -> None:
    x = mnp.array([[3, 1], [2, 3]])
    assert mnp.unique(x).read_as_tuple() == (1, 2, 3)
    assert mnp.diag(mnp.array([1.0, 2.0])).read().tolist() == [[1, 0], [0, 2]]
    assert mnp.roll(x, 1, axis=1).dtype == expr.int
    mnp.fill_diagonal(x, 7)
    assert x.read().tolist() == [[7, 1], [2, 7]]
    assert mnp.median(x) == 4.5
    with pytest.raises(ValueError, match="shape"):
        mnp.tensordot(mnp.ones([2, 3]), mnp.ones([4, 5]))


def test_images_in_files(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    cv = importlib.import_module("vkmnn.mnn.cv")
    pixels = expr.const(list(range(60)), [4, 5, 3], expr.NHWC, expr.uint8)
    assert cv.imwrite(tmp_path / "a.png", pixels)
    assert (cv.imread(tmp_path / "a.png").read() == pixels.read()).all()
    with pytest.raises(InvalidInputError, match="is not a file"):
        cv.imread(tmp_path / "b.png")
    (tmp_path / "c.png").write_bytes(b"no image")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        cv.imread(tmp_path / "c.png")
    assert not cv.haveImageReader(str(tmp_path / "c.png"))
    with pytest.raises(InvalidInputError, match="not written"):
        cv.imwrite(tmp_path / "a.gif", pixels)


def test_files_are_read_by_both(pictures: Path, tmp_path: Path) -> None:
    """Vars that vkmnn saves, by MNN; a network of MNN's, as Vars, by both."""
    w = expr.const([1.0, 2.0, 3.0], [3])
    w.name = "w"
    expr.save([w, expr.placeholder([2, 2])], tmp_path / "own.mnn")
    net = converted(onnx.load(pictures), tmp_path)
    lines = [
        "F.load_as_dict('own.mnn')['w']",
        "[one.op_type for one in F.load_as_list('own.mnn')]",
        "d = F.load_as_dict('net.mnn'); [d['image'].shape, d['image'].op_type, d['scores'].shape]",
        "list(F.get_inputs_and_outputs(F.load_as_dict('net.mnn'))[0])",
    ]
    mine, others = here(lines, tmp_path), theirs(lines, tmp_path)
    for line in lines:
        assert "error" not in mine[line], (line, mine[line])
        assert alike(mine[line], others[line], 1e-3), (line, others[line])
    found = expr.load_as_dict(net)
    assert list(expr.get_inputs_and_outputs(found)[1]) == ["scores"]
    x = np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)
    found["image"].write(x)
    (want,) = vkmnn.InferenceSession(pictures, "cpu").run(None, {"image": x})
    np.testing.assert_allclose(found["scores"].read(), want, atol=1e-4)
    with pytest.raises(NotImplementedError, match="placeholder"):
        expr.save([expr.exp(expr.placeholder([2]))], tmp_path / "no.mnn")


def test_modules_made_of_vars() -> None:
    x = expr.placeholder([2])
    module = nn.load_module([x], [expr.exp(x), x * 2.0], False)
    first, second = module.forward([np.float32([0, 1])])
    np.testing.assert_allclose(first.read(), [1, np.e], rtol=1e-6)
    assert second.read_as_tuple() == (0.0, 2.0)
    with pytest.raises(InvalidInputError, match="does not train"):
        nn.load_module([x], [x], True)


def test_arguments_of_any_kind_have_typed_errors() -> None:
    """Whatever does not suit a function: never an error of numpy's or of Python's alone."""
    pytest.importorskip("PIL")
    cv = importlib.import_module("vkmnn.mnn.cv")
    picture = expr.const(list(range(60)), [4, 5, 3], expr.NHWC, expr.uint8)
    pool: list[Any] = [
        *(None, 0, -1, 3, 2.5, "a", [], [1, 2], [[1, 2], [3, 4]], (3, 3), float("nan"), {}, True),
        *(picture, expr.placeholder([2, 2]), mnp.array([1.0, 2.0, 3.0]), mnp.zeros([0])),
        *(np.zeros((2, 3)), MNN.CVMatrix()),
    ]
    rng = np.random.default_rng(2)
    files = {"save", "load_as_list", "load_as_dict", "imread", "imwrite", "fromfile", "loadtxt"}
    for module in (expr, mnp, cv):
        for name, function in module.FUNCTIONS.items():
            if name in files:
                continue
            count = len(inspect.signature(function).parameters)
            for _ in range(6):
                chosen = rng.integers(0, len(pool), rng.integers(1, max(count, 1) + 1))
                with contextlib.suppress(vkmnn.VkmnnError), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    function(*(pool[one] for one in chosen))
