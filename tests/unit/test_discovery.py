"""Plug-ins: found, loaded once, and never silently omitted."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn import discovery
from vkmnn.cli import checks
from vkmnn.cli.app import run_cli
from vkmnn.converter.onnx import load_model
from vkmnn.converter.passes import optimize
from vkmnn.cpu_fallback import run_op
from vkmnn.discovery import plugin_folders
from vkmnn.errors import ModelError, PluginError
from vkmnn.ir import OP_TYPES

IN_DEFAULT_FOLDER = plugin_folders.in_default_folder  # tests look into none: see conftest.py
ROOT = Path(__file__).resolve().parents[2]

# An operator without a shader: it runs on the numpy backend, on every machine.
PLUGIN = """
from __future__ import annotations

from dataclasses import dataclass

from vkmnn.plugin import *

@op_type("{name}", inputs=2)
@dataclass(frozen=True, slots=True)
class Attrs(OpAttrs):
    alpha: float = 1.0

@size_computer("{name}")
def shape(op, inputs, values):
    return [(same_dtype(inputs, 0, 1), same_shape(inputs, 0, 1))]

@cpu_execution("{name}")
def compute(op, inputs):
    x, y = required(inputs, 0), required(inputs, 1)
    return [x + x.dtype.type(op.attrs.alpha) * y]

@converter("{name}", domain="test.plugin")
def convert(node):
    node.finish("{name}", node.inputs, Attrs(node.float("alpha", 1.0)))
"""


@pytest.fixture(autouse=True)
def _fresh(registrations, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget everything that a test loads, including the modules."""
    discovery.load_plugins()
    monkeypatch.setattr(discovery, "_loaded", dict(discovery._loaded))
    monkeypatch.setattr(discovery, "_left_out", {})
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("plug_"):
            del sys.modules[name]
    importlib.invalidate_caches()


def write(folder: Path, module: str, name: str) -> Path:
    path = folder / f"{module}.py"
    path.write_text(PLUGIN.format(name=name), "utf-8")
    return path


def model(name: str, inputs: int = 2, shape: tuple[int | str, ...] | None = ("n", 3)) -> bytes:
    names = [f"x{index}" for index in range(inputs)]
    node = helper.make_node(name, names, ["h"], domain="test.plugin", alpha=2.0)
    after = helper.make_node("Softmax", ["h"], ["y"])
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in names]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node, after], "g", values, [out])
    opsets = [helper.make_opsetid("", 11), helper.make_opsetid("test.plugin", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


class Point:
    """importlib.metadata's information on one entry point."""

    class dist:  # noqa: N801 - stands for an attribute
        name = "vkmnn-thing"
        version = "1.2"

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self.module = module


def announce(monkeypatch: pytest.MonkeyPatch, *points: Point) -> None:
    monkeypatch.setattr(discovery, "_entry_points", lambda: points)
    monkeypatch.setattr(discovery, "_complete", False)


def test_load_a_file_and_run_its_operator(tmp_path: Path) -> None:
    plugin = vkmnn.load_plugin(write(tmp_path, "plug_file", "PlugAdd"))
    assert plugin.module == "plug_file"
    assert set(plugin.registered) == {
        "op type PlugAdd",
        "shape computer of PlugAdd",
        "numpy execution of PlugAdd",
        "converter of test.plugin::PlugAdd since opset 1",
    }
    assert vkmnn.load_plugin(str(tmp_path / "plug_file.py")) is plugin
    x, y = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    session = vkmnn.InferenceSession(model("PlugAdd"), device="cpu")
    (result,) = session.run(None, {"x0": x, "x1": y})
    e = np.exp(x + 2 * y)
    np.testing.assert_allclose(result, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_load_a_package_by_its_folder(tmp_path: Path) -> None:
    package = tmp_path / "plug_package"
    package.mkdir()
    write(package, "inner", "PlugInner")
    (package / "__init__.py").write_text("from plug_package import inner\n", "utf-8")
    assert "op type PlugInner" in vkmnn.load_plugin(package).registered


def test_load_a_module_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "plug_named", "PlugNamed")
    monkeypatch.syspath_prepend(tmp_path)
    assert "op type PlugNamed" in vkmnn.load_plugin("plug_named").registered


@pytest.mark.parametrize("place", ["nowhere.py", "folder/without/package"])
def test_there_is_no_such_file(tmp_path: Path, place: str) -> None:
    with pytest.raises(PluginError, match=r"neither a \.py file nor the folder of a package"):
        vkmnn.load_plugin(tmp_path / place)


def test_a_name_that_is_no_identifier(tmp_path: Path) -> None:
    path = write(tmp_path, "plug-in", "PlugIn")
    with pytest.raises(PluginError, match="cannot be the name of a module"):
        vkmnn.load_plugin(path)


def test_two_files_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    vkmnn.load_plugin(write(tmp_path, "plug_twin", "PlugTwin"))
    with pytest.raises(PluginError, match=r"comes from .*plug_twin\.py already"):
        vkmnn.load_plugin(write(tmp_path / "other", "plug_twin", "PlugOther"))


def test_there_is_no_such_module() -> None:
    with pytest.raises(PluginError, match=r"plug_missing.* cannot be loaded: ModuleNotFoundError"):
        vkmnn.load_plugin("plug_missing")


def test_a_failed_plugin_leaves_nothing_and_can_be_repaired(tmp_path: Path) -> None:
    package = tmp_path / "plug_broken"
    package.mkdir()
    write(package, "good", "PlugGood")
    init = package / "__init__.py"
    init.write_text("from plug_broken import good\nraise RuntimeError('not today')\n", "utf-8")
    for _ in range(2):
        with pytest.raises(PluginError, match="RuntimeError: not today"):
            vkmnn.load_plugin(package)
        assert "PlugGood" not in OP_TYPES
    init.write_text("from plug_broken import good  # repaired\n", "utf-8")
    assert "op type PlugGood" in vkmnn.load_plugin(package).registered


def test_a_plugin_that_ends_the_process(tmp_path: Path) -> None:
    path = tmp_path / "plug_exit.py"
    path.write_text("import sys\nsys.exit(7)\n", "utf-8")
    with pytest.raises(PluginError, match="SystemExit: 7"):
        vkmnn.load_plugin(path)


def test_a_plugin_that_takes_a_name_of_vkmnn(tmp_path: Path) -> None:
    path = write(tmp_path, "plug_greedy", "Softmax")
    with pytest.raises(PluginError, match="op type Softmax is already registered") as caught:
        vkmnn.load_plugin(path)
    assert str(path) in str(caught.value)
    assert caught.value.op == "Softmax"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('@size_computer("{name}")', "", r"no shape computer of PlugOdd \(op PlugOdd\)\n.*@size"),
        ('@cpu_execution("{name}")', "", r"no numpy execution of PlugOdd"),
        ('@size_computer("{name}")', '@size_computer("{name}")\n@size_computer("PlugOd")',
         r"PlugOd: there is no such op type .*\n.*did you mean PlugOdd"),
        ('@geometry("Else")', "", None),
        ("frozen=True, ", "", "cannot inherit non-frozen dataclass"),
        ("inputs=2", "inputs=-1", "make no sense"),
    ],
)  # fmt: skip
def test_registrations_that_do_not_fit(tmp_path: Path, old: str, new: str, message) -> None:
    path = tmp_path / "plug_odd.py"
    path.write_text(PLUGIN.replace(old, new).format(name="PlugOdd"), "utf-8")
    if message is None:
        vkmnn.load_plugin(path)
        return
    with pytest.raises(PluginError, match=message):
        vkmnn.load_plugin(path)
    assert "PlugOdd" not in OP_TYPES


def test_announced_plugins_load_before_the_first_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "plug_announced", "PlugAnnounced")
    monkeypatch.syspath_prepend(tmp_path)
    point = Point("thing", "plug_announced")
    announce(monkeypatch, point, point)
    session = vkmnn.InferenceSession(model("PlugAnnounced"), device="cpu")
    assert session.get_inputs()[0].name == "x0"
    (plugin,) = (p for p in discovery.load_plugins() if p.module == "plug_announced")
    assert (plugin.name, plugin.distribution) == ("thing", "vkmnn-thing 1.2")


def test_an_announced_plugin_that_fails_is_left_out_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    announce(monkeypatch, Point("thing", "plug_gone"))
    for _ in range(2):
        with pytest.raises(vkmnn.UnsupportedOpError, match="PlugAdd") as caught:
            vkmnn.InferenceSession(model("PlugAdd"), device="cpu")
        assert "plug-in 'thing' of vkmnn-thing 1.2" in str(caught.value.hint)
        monkeypatch.setattr(discovery, "_complete", False)
    (record,) = (one for one in caplog.records if "thing" in one.getMessage())
    assert "No module named 'plug_gone', and is left out" in record.getMessage()
    (absent,) = discovery.left_out()
    assert (absent.name, absent.where) == ("thing", "vkmnn-thing 1.2 (plug_gone)")


def test_the_others_load_and_what_they_share_with_one_that_fails_stays_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "plug_shared", "PlugShared")
    (tmp_path / "plug_a.py").write_text("import plug_shared\nraise ValueError('no')\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    announce(monkeypatch, Point("a", "plug_a"), Point("b", "plug_shared"))
    loaded = {plugin.name: plugin for plugin in discovery.load_plugins()}
    assert "op type PlugShared" in loaded["b"].registered
    assert "a" not in loaded
    write(tmp_path, "plug_a", "PlugA")  # repaired: doctor finds it well
    importlib.invalidate_caches()
    assert [error for _, _, error in discovery.survey()] == [None, None]


def manifest(folder: Path, **content: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vkmnn-plugin.json").write_text(json.dumps(content), "utf-8")
    return folder


def test_folders_with_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, order in (("plug_late", 5), ("plug_soon", -1)):
        text = {"name": name, "version": "2.0", "module": f"{name}.py", "order": order}
        write(manifest(tmp_path / name, **text), name, name.title().replace("_", ""))
    monkeypatch.setenv("VKMNN_PLUGIN_PATH", str(tmp_path))
    announce(monkeypatch)
    found = discovery.load_plugins()
    assert [plugin.name for plugin in found] == ["plug_soon", "plug_late"]
    assert found[0].distribution.startswith(f"plug_soon 2.0, {tmp_path}")
    assert "op type PlugSoon" in found[0].registered
    vkmnn.InferenceSession(model("PlugLate"), device="cpu")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, '"name" is missing'),
        ({"module": 3}, '"module" is 3, not a text'),
        ({"module": "../plug_x.py"}, "does not lie beside the manifest"),
        ({"module": "plug_none.py"}, "neither a .py file nor the folder"),
        ({"modul": "x"}, '"modul" is not known'),
        ({"order": True}, "not an integer"),
        ({"vkmnn": "999.0"}, "it needs vkmnn 999.0"),
        ({"vkmnn": "new"}, "not a version"),
    ],
)
def test_a_manifest_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: dict[str, object], message: str
) -> None:
    usual = {"name": "odd", "version": "1", "module": "plug_x.py"} if content else {}
    manifest(tmp_path / "odd", **{**usual, **content})
    monkeypatch.setenv("VKMNN_PLUGIN_PATH", str(tmp_path))
    announce(monkeypatch)
    assert discovery.load_plugins() == tuple(discovery._loaded.values())
    (absent,) = discovery.left_out()
    assert absent.name == "odd"
    assert message in absent.error.message
    found = {check.name: check for check in checks.check_plugins()}
    assert found["plug-in odd"].status is checks.Status.FAILED


@pytest.mark.parametrize("text", ["{", "[]", "\xff", "[" * 5000])
def test_a_manifest_that_is_none(tmp_path: Path, text: str, monkeypatch) -> None:
    (manifest(tmp_path / "odd") / "vkmnn-plugin.json").write_bytes(text.encode("latin-1"))
    monkeypatch.setenv("VKMNN_PLUGIN_PATH", os.pathsep.join([str(tmp_path), str(tmp_path / "no")]))
    announce(monkeypatch)
    discovery.load_plugins()
    assert [absent.name for absent in discovery.left_out()] == ["no", "odd"]


def test_a_folder_whose_name_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_PLUGIN_PATH", "a" * 300)
    announce(monkeypatch)
    discovery.load_plugins()
    (absent,) = discovery.left_out()
    assert "aaa cannot be read" in str(absent.error.__cause__ or absent.error)


def test_the_variable_turns_discovery_off(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, Point("thing", "plug_gone"))
    monkeypatch.setenv("VKMNN_PLUGINS", "off")
    assert [plugin.module for plugin in discovery.load_plugins()] == []
    assert list(discovery.survey()) == []


def test_the_variable_names_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path, "plug_first", "PlugFirst")
    write(tmp_path, "plug_second", "PlugSecond")
    monkeypatch.syspath_prepend(tmp_path)
    announce(monkeypatch, Point("thing", "plug_gone"))
    monkeypatch.setenv("VKMNN_PLUGINS", f"{first}, plug_second")
    loaded = [plugin.module for plugin in discovery.load_plugins()]
    assert loaded == ["plug_first", "plug_second"]


def test_the_variable_names_nothing_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch)
    monkeypatch.setenv("VKMNN_PLUGINS", "plug_gone")
    with pytest.raises(PluginError, match="plug_gone"):
        discovery.load_plugins()


@pytest.mark.parametrize(
    ("shape", "inferred"), [((2, 3), (2, 3)), (("n", 3), ("n", 3)), (None, None)]
)
def test_what_follows_from_a_shape_computer(tmp_path: Path, shape, inferred) -> None:
    vkmnn.load_plugin(write(tmp_path, "plug_inferred", "PlugInferred"))
    infos = load_model(model("PlugInferred", shape=shape)).infos
    assert (infos["h"].shape if "h" in infos else None) == inferred


def test_what_follows_a_plugin_is_fused_in_models_with_dynamic_axes(tmp_path: Path) -> None:
    """x[N, L, 8] → plug-in → MatMul → Add(x): the sum is fused into the product."""
    vkmnn.load_plugin(write(tmp_path, "plug_fused", "PlugFused"))
    weights = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    nodes = [
        helper.make_node("PlugFused", ["x", "x"], ["h"], domain="test.plugin", alpha=2.0),
        helper.make_node("MatMul", ["h", "w"], ["p"]),
        helper.make_node("Add", ["p", "x"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", "L", 8]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test.plugin", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    optimised = optimize(load_model(proto), run_op)
    assert [op.type for op in optimised.ops] == ["PlugFused", "MatMul"]
    session = vkmnn.InferenceSession(proto.SerializeToString(), device="cpu")
    for shape in ((2, 3, 8), (1, 7, 8)):
        value = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        (result,) = session.run(None, {"x": value})
        np.testing.assert_allclose(result, 3 * value @ weights + value, rtol=1e-5, atol=1e-5)


def test_a_model_with_too_many_inputs(tmp_path: Path) -> None:
    vkmnn.load_plugin(write(tmp_path, "plug_misused", "PlugMisused"))
    with pytest.raises(ModelError, match="takes 2 to 2 inputs, got 3"):
        load_model(model("PlugMisused", 3))


def test_without_the_plugin_the_operator_is_unsupported() -> None:
    with pytest.raises(vkmnn.UnsupportedOpError, match=r"test\.plugin::PlugAdd"):
        vkmnn.InferenceSession(model("PlugAdd"), device="cpu")


def test_entry_points_of_an_installed_package(tmp_path: Path) -> None:
    """Through the real metadata, in a separate process."""
    write(tmp_path, "plug_real", "PlugReal")
    info = tmp_path / "plug_real-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-real\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(f"[{discovery.GROUP}]\nreal = plug_real\n")
    found = metadata.distributions(path=[str(tmp_path)])
    assert [dist.name for dist in found] == ["plug-real"]
    code = (
        "from vkmnn.discovery import load_plugins; "
        "print(next(one.distribution for one in load_plugins() if one.name == 'real'))"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("VKMNN_PLUGINS", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "plug-real 0.3"


def test_the_command_line_shows_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "plug_shown", "PlugShown")
    monkeypatch.syspath_prepend(tmp_path)
    announce(monkeypatch, Point("shown", "plug_shown"), Point("gone", "plug_gone"))
    found = {check.name: check for check in checks.check_plugins()}
    assert found["plug-in shown"].status is checks.Status.OK
    assert "vkmnn-thing 1.2" in found["plug-in shown"].detail
    assert found["plug-in gone"].status is checks.Status.FAILED
    assert "No module named 'plug_gone'" in found["plug-in gone"].detail
    assert run_cli(["ops", "--plugins"]) == 0
    assert "left out" in capsys.readouterr().out

    announce(monkeypatch, Point("shown", "plug_shown"))
    assert run_cli(["ops", "--plugins"]) == 0
    text = capsys.readouterr().out
    for words in ("vkmnn-thing 1.2", "op type PlugShown"):
        assert words in text
    assert run_cli(["ops", "PlugShown"]) == 0
    text = capsys.readouterr().out
    for words in ("test.plugin", "direct", "numpy"):
        assert words in text


# --- what authors get wrong ----------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("[x.astype('f8')]", r"float64 \[3, 4\] for output 0 \('h'\), declared float32 \[3, 4\]"),
        ("[x[:1]]", r"float32 \[1, 4\] for output 0 \('h'\), declared float32 \[3, 4\]"),
        ("[x, x]", "returned 2 results, the op declares 1"),
        ("[]", "returned 0 results, the op declares 1"),
        ("x", "returned an array, not a list"),
        ("None", "returned NoneType, not a list"),
        ("[x.tolist()]", "returned list for output 0"),
    ],
)
@pytest.mark.parametrize("folded", [False, True])
def test_results_of_numpy_code_are_checked(
    returned: str, text: str, kernel: bool, folded: bool, tmp_path: Path
) -> None:
    path = write(tmp_path, "plug_results", "PlugResults")
    source = path.read_text("utf-8")
    code = source.replace(
        "return [x + x.dtype.type(op.attrs.alpha) * y]",
        f"return {'[x + y]' if kernel else returned}",
    )
    if kernel:
        code += f"""
@kernel("PlugResults", backend="CPU", provider="acme")
class Own(CpuKernel):
    def compute(self, inputs):
        x, y = inputs
        return {returned}
"""
    path.write_text(code, "utf-8")
    vkmnn.load_plugin(path)
    given = model("PlugResults", shape=(3, 4))
    feeds = {name: np.ones((3, 4), np.float32) for name in ("x0", "x1")}
    if folded:
        proto = onnx.load_from_string(given)
        proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in feeds.items())
        del proto.graph.input[:]
        given, feeds = proto.SerializeToString(), {}
    if folded and kernel:
        return  # constants are folded by the execution, whatever kernels there are
    with pytest.raises(PluginError, match=text) as caught:
        vkmnn.InferenceSession(given, "cpu").run(None, feeds)
    assert caught.value.op == "PlugResults"
    assert "PlugResults_0" in str(caught.value)


TWO = """
from dataclasses import dataclass
from vkmnn.plugin import *

@op_type("PlugTwo")
@dataclass(frozen=True, slots=True)
class Attrs(OpAttrs):
    pass

@size_computer("PlugTwo")
def shape(op, inputs, values):
    return [(inputs[0].dtype, inputs[0].dims), (DType.INT64, inputs[0].dims[:1])]

@cpu_execution("PlugTwo")
def compute(op, inputs):
    x = required(inputs, 0)
    return [x * 2, np.arange(len(x), dtype=np.int64)]

@converter("PlugTwo", domain="test.plugin")
def convert(node):
    {body}
"""


def two_outputs(first: str = "a", second: str = "b") -> bytes:
    node = helper.make_node("PlugTwo", ["x"], [first, second], domain="test.plugin")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])
    kinds = {first: TensorProto.FLOAT, second: TensorProto.INT64}
    outs = [helper.make_tensor_value_info(n, kind, None) for n, kind in kinds.items() if n]
    graph = helper.make_graph([node], "g", [x], outs)
    opsets = [helper.make_opsetid("", 11), helper.make_opsetid("test.plugin", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def plug_two(folder: Path, body: str) -> None:
    path = folder / "plug_two.py"
    text = TWO.format(body=body).replace("from dataclasses", "import numpy as np\nfrom dataclasses")
    path.write_text(text, "utf-8")
    vkmnn.load_plugin(path)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("{}['oops']", "KeyError: 'oops'"),
        ("raise RuntimeError('no')", "RuntimeError: no"),
        ("node.finish('PlugTwo', [], Attrs())", "PlugTwo takes 1 to 1 inputs, got 0"),
        (
            "node.finish('PlugTwo', node.inputs, Attrs())",
            r"makes no output 1, 'b'.*(\n.*)*node\.outputs",
        ),
        ("pass", "makes no output 0, 'a'"),
    ],
)
def test_mistakes_of_a_parse_function_are_its_own(body: str, text: str, tmp_path: Path) -> None:
    plug_two(tmp_path, body)
    with pytest.raises(PluginError, match=text) as caught:
        vkmnn.InferenceSession(two_outputs(), "cpu")
    assert "plug_two.convert of test.plugin::PlugTwo" in str(caught.value)
    assert caught.value.op == "PlugTwo"


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("a", ""), ("", "b")])
def test_several_outputs(first: str, second: str, tmp_path: Path) -> None:
    plug_two(tmp_path, "node.emit('PlugTwo', node.inputs, Attrs(), node.outputs)")
    x = np.ones((3, 2), np.float32)
    found = vkmnn.InferenceSession(two_outputs(first, second), "cpu").run(None, {"x": x})
    want = [one for name, one in ((first, 2 * x), (second, np.arange(3))) if name]
    for one, other in zip(found, want, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_plugin_that_registers_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plug_empty.py").write_text("x = 1\n")
    assert vkmnn.load_plugin(tmp_path / "plug_empty.py").registered == ()
    assert "registers nothing" in caplog.text
    caplog.clear()
    vkmnn.load_plugin(write(tmp_path, "plug_full", "PlugFull"))
    assert "registers nothing" not in caplog.text


def in_folder(folder: Path, module: str, op: str, name: str, version: str) -> None:
    folder.mkdir(parents=True)
    write(folder, module, op)
    manifest = {"name": name, "version": version, "module": f"{module}.py"}
    (folder / "vkmnn-plugin.json").write_text(json.dumps(manifest))


def test_two_plugins_of_one_name_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_folder(tmp_path / "one", "plug_old", "PlugOld", "acme-gates", "1.2")
    in_folder(tmp_path / "two", "plug_new", "PlugNew", "acme-gates", "1.3")
    monkeypatch.setenv("VKMNN_PLUGIN_PATH", str(tmp_path))
    announce(monkeypatch)
    loaded = [plugin for plugin in discovery.load_plugins() if plugin.name == "acme-gates"]
    assert [plugin.module for plugin in loaded] == ["plug_old"]
    assert "acme-gates 1.2" in caplog.text
    assert "acme-gates 1.3" in caplog.text
    (left,) = discovery.left_out()
    assert "another plug-in of that name" in left.error.message


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders of users are their own there")
def test_the_folder_that_needs_no_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(plugin_folders, "in_default_folder", IN_DEFAULT_FOLDER)
    place = tmp_path / "vkmnn" / "plugins" / "gates"
    announce(monkeypatch)
    before = discovery.load_plugins()  # it is not there
    in_folder(place, "plug_home", "PlugHome", "home-gates", "1.0")
    monkeypatch.setattr(discovery, "_complete", False)
    place.chmod(0o777)  # others could put code there
    assert discovery.load_plugins() == before
    (left,) = discovery.left_out()
    assert "others may write it" in left.error.message
    place.chmod(0o755)
    monkeypatch.setattr(discovery, "_complete", False)
    assert discovery.load_plugins()[-1].name == "home-gates"


def test_a_package_in_a_folder_of_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to the project, Python takes its folder for a package without __init__.py."""
    package = tmp_path / "plug_same" / "plug_same"
    package.mkdir(parents=True)
    write(package, "part", "PlugSame")
    (package / "__init__.py").write_text("from plug_same import part\n")
    monkeypatch.syspath_prepend(tmp_path)
    announce(monkeypatch, Point("same", "plug_same"))
    assert any("op type PlugSame" in one.registered for one in discovery.load_plugins())
    (tmp_path / "plug_bare").mkdir()
    with pytest.raises(PluginError, match="a folder without __init__"):
        vkmnn.load_plugin("plug_bare")
