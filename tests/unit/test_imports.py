"""Imports go one way, without cycles: the parts of vkmnn know only those beneath them."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import vkmnn
from tests.model.networks import NETWORKS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "vkmnn"
SUITE = "vkmnn_suite"  # the folder beside it: one part, on top of it

# part of vkmnn -> the parts that it may import. Reads from the bottom to the top.
ALLOWED: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "base": {"errors"},  # files, threads, registries, budgets: without a word of networks
    "ir": {"errors"},
    "schema": {"errors", "ir"},  # FlatBuffers, by the schemas of model files
    "shape": {"errors", "ir"},
    "geometry": {"errors", "ir", "shape"},
    "converter": {
        *("errors", "ir", "shape", "schema"),
    },
    "host": {
        "errors",
        "ir",
        "converter",
    },  # evaluators of ONNX, for what has no kernel
    "core": {
        *("errors", "ir", "shape", "geometry"),
    },
    "control_flow": {  # networks inside If, Loop and Scan
        *("errors", "ir", "shape", "core"),
    },
    "cpu_fallback": {"errors", "ir", "shape", "core"},
    "runtime": {
        "errors",
    },  # knows Vulkan, knows no operator
    "shader_files": {"errors"},  # what the generator writes and the run time reads
    "codegen": {"errors", "shader_files"},  # runs without the engine
    "shaders": {"errors", "runtime", "shader_files", "codegen"},  # a checkout compiles on demand
    "vulkan": {
        *("errors", "ir", "shape", "geometry", "core", "runtime"),
        *("shader_files", "shaders"),
    },
    "plugin": {  # what authors of operators import: it re-exports, and registers nothing itself
        *("errors", "ir", "shape", "geometry", "converter", "core"),
        *("cpu_fallback", "runtime", "vulkan"),
    },
    "discovery": {"errors", "plugin"},  # finds plug-ins; these import `plugin`
    "schedule_config": {"errors"},
    "arguments": {"errors", "ir", "core"},  # what callers pass, checked
    "sources": {"errors", "converter", "runtime"},  # from names of models to files
    "opening": {  # from a model to a session: what every face stands on
        *("errors", "ir", "discovery", "converter", "core", "cpu_fallback", "sources"),
        *("runtime", "vulkan", "schedule_config", "arguments", "host", "control_flow"),
    },
    "comparison": {  # tensors here and on another engine
        *("errors", "ir", "arguments", "converter", "core", "cpu_fallback", "discovery", "host"),
        *("opening", "runtime", "schedule_config", "sources"),
    },
    "decoding": {  # state that a session keeps between runs: KV caches, sampling, batched steps
        *("errors", "ir", "shape", "core", "arguments"),
    },
    # The faces stand side by side on `opening`; they do not know each other.
    "interpreter": {
        *("errors", "ir", "core", "runtime", "schedule_config", "arguments", "opening"),
    },
    "inference_session": {
        *("errors", "ir", "core", "runtime", "schedule_config", "arguments", "opening"),
        "decoding",
    },
    "model": {
        *("errors", "ir", "runtime", "schedule_config", "arguments", "opening"),
    },
    "onnx_backend": {
        *("errors", "ir", "schedule_config", "arguments", "opening"),
        "runtime",
    },
    "onnxruntime": {
        *("errors", "ir", "core", "runtime", "schedule_config", "arguments", "opening"),
    },
    "llm": {  # language models: text around a session's state
        *("errors", "ir", "converter", "schedule_config", "arguments", "opening"),
        *("decoding", "shape", "runtime", "sources"),
    },
    "mnn": {  # sessions, modules, MNN's functions on numpy, and its language models
        *("errors", "ir", "core", "runtime", "schedule_config", "arguments", "opening"),
        *("converter", "cpu_fallback", "llm", "schema"),
    },
    "torch": {"errors", "ir", "converter", "inference_session", "arguments"},  # PyTorch's modules
    "serve": {
        *("errors", "ir", "llm", "inference_session", "schedule_config", "sources"),
        "pipelines",
    },
    "pipelines": {  # tasks: pictures, sounds and texts around sessions
        *("errors", "ir", "converter", "opening", "schedule_config", "inference_session"),
        *("sources", "llm"),
    },
    "quantization": {  # onnxruntime's tools; samples by pipelines, and language models
        *("errors", "ir", "converter", "arguments", "inference_session", "sources"),
        *("host", "opening", "llm", "pipelines", "runtime", "vulkan"),
    },
    "batch": {"errors", "ir", "runtime", "inference_session", "pipelines"},  # many items
    "ray": {  # many items on many machines
        *("errors", "ir", "runtime", "inference_session", "pipelines", "batch", "llm"),
    },
    "bench": {"errors", "ir", "runtime", "host"},
    "shader_function": {"errors", "runtime", "shaders", "codegen"},
    "testing": {  # the pytest plug-in of shader tests, and what authors of operators check
        *("errors", "ir", "core", "cpu_fallback", "runtime", "shaders", "codegen"),
        *("shape", "vulkan"),
    },
    SUITE: {  # cases, mutants, the fuzzer of whole models, faults
        *("errors", "llm", "decoding", "host", "ir", "shape", "core"),
        *("cpu_fallback", "runtime", "shaders", "codegen", "vulkan", "converter"),
        *("inference_session", "testing"),
    },
    "cli": {  # doctor, info and ops look into every part
        *("errors", "ir", "discovery", "shape", "geometry", "converter", "core"),
        *("cpu_fallback", "runtime", "shaders", "codegen", "vulkan"),
        *(
            "inference_session",
            "schedule_config",
            "bench",
            "opening",
            "llm",
            "quantization",
            "pipelines",
        ),
        *("serve", "sources", "comparison", "batch"),
    },
    "__main__": {"cli"},
}
EVERYWHERE = {"base", "_version"}  # what a standard library might have; a constant
FACES = {"cli", "bench", SUITE}  # what may import the package `vkmnn` for its public names
PUBLIC_NAMES = "__init__"  # vkmnn/__init__.py gathers the public names, from anywhere but the cli

# package of others -> the only parts that may import it at run time (by dotted prefix).
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "vulkan": ("vkmnn.runtime.drivers", "vkmnn_suite.faults"),
    "kp": ("vkmnn.runtime.drivers",),
    "onnx": (
        *("vkmnn.converter.onnx", "vkmnn.converter.nodes", "vkmnn.converter.mnn"),
        *("vkmnn.converter.language", "vkmnn.converter.caffe", "vkmnn.converter.torch"),
        *("vkmnn.onnx_backend", "vkmnn.onnxruntime"),
        *("vkmnn.bench.engines", "vkmnn_suite.fuzz", "vkmnn.host", "vkmnn.llm"),
        *("vkmnn.quantization", "vkmnn.comparison"),
    ),
    "google": (  # protobuf: the errors of onnx's parser, and Caffe's messages
        *("vkmnn.converter.onnx", "vkmnn.converter.caffe", "vkmnn.converter.messages"),
        *("vkmnn.converter.tensorflow", "vkmnn_suite.fuzz", "vkmnn.serve"),
    ),
    "flatbuffers": ("vkmnn.schema",),
    "platformdirs": ("vkmnn.base",),
    "keras": ("vkmnn.converter.keras",),  # imported with the first model of Keras's
    "tensorflow": ("vkmnn.converter.keras",),  # which Keras runs on
    "torch": ("vkmnn.converter.torch", "vkmnn.torch.dynamo"),  # imported when first needed
    "onnxscript": ("vkmnn.converter.torch",),  # what torch's exporter is written in
    "typer": (
        "vkmnn.cli",
        "vkmnn.codegen",
        "vkmnn_suite.mutate",
        "vkmnn_suite.fuzz",
        "vkmnn_suite.faults",
    ),
    "rich": (
        "vkmnn.cli",
        "vkmnn.codegen",
        "vkmnn_suite.mutate",
        "vkmnn_suite.fuzz",
        "vkmnn_suite.faults",
    ),
    "jinja2": (
        *("vkmnn.codegen", "vkmnn.testing.report", "vkmnn.testing.session"),
        "vkmnn.llm.confined_worker",  # a process of its own
    ),
    "onnxruntime": (
        *("vkmnn.host", "vkmnn.cli", "vkmnn.bench.engines", "vkmnn_suite.fuzz"),
        "vkmnn.quantization",
    ),
    "llguidance": ("vkmnn.llm.confined_worker",),  # a process of its own; otherwise by `need`
    "starlette": ("vkmnn.serve",),
    "prometheus_client": ("vkmnn.serve",),
    "uvicorn": ("vkmnn.serve",),
    "python_multipart": ("vkmnn.serve",),
    "h11": ("vkmnn.serve",),  # comes with uvicorn
    "grpc": ("vkmnn.serve",),  # imported with --grpc-port
    "_mnncengine": ("vkmnn.bench.engines",),
    "ncnn": ("vkmnn.bench.engines",),
    "pnnx": ("vkmnn.bench.engines",),
    "pytest": ("vkmnn.testing",),
    "setuptools": ("vkmnn.codegen.packaging",),  # which it imports
    "numpy": ("vkmnn", SUITE),
    "ml_dtypes": ("vkmnn.ir",),  # comes with onnx; without it the host has these types
}


# (module, name) in which a text only looks like an import: it goes to another process.
NOT_IMPORTED = {
    ("vkmnn.codegen.watch", "vkmnn.testing.pytest_plugin"),
    ("vkmnn.testing.selection", "vkmnn_suite.cases"),  # asked for; it may not be installed
    ("vkmnn.cli.declared", "vkmnn_suite.fuzz.recipes"),
}


class Import(NamedTuple):
    """One import: importer, imported name, location, and whether only for type checkers."""

    importer: str
    target: str
    line: int
    typing_only: bool


def imports_of(source: str, module: str, *, is_package: bool) -> Iterator[Import]:
    """Yield every import in a module's source, inside functions too."""
    package = module.split(".") if is_package else module.split(".")[:-1]

    def walk(node: ast.AST, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from walk(child, True)
            for child in node.orelse:
                yield from walk(child, typing_only)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *([node.module] if node.module else [])]
            for alias in node.names:
                yield Import(module, ".".join([*base, alias.name]), node.lineno, typing_only)
        else:
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, ast.expr):  # statements and what holds them
                    yield from walk(child, typing_only)

    yield from walk(parsed(source), False)


@functools.lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def names_of(source: str, module: str) -> Iterator[Import]:
    """Yield what a module may import by name: every string that is the name of a module of ours."""
    nodes = list(ast.walk(parsed(source)))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = [node.body[0] for node in nodes if isinstance(node, documented) and node.body]
    prose = {id(doc.value) for doc in docs if isinstance(doc, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Call) and called(node).endswith("import_module"):
            prose |= {id(node.args[0])}
            if isinstance(node.args[0], ast.Constant):
                yield Import(module, node.args[0].value, node.lineno, False)
        named = isinstance(node, ast.Constant) and node.value in modules()
        if (
            named
            and node.value != module
            and id(node) not in prose
            and (module, node.value) not in NOT_IMPORTED
        ):
            yield Import(module, node.value, node.lineno, False)


def called(call: ast.Call) -> str:
    """Return the last part of a called function's name; `ast.unparse` would take seconds."""
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


@functools.cache
def modules() -> frozenset[str]:
    return frozenset(map(module_name, sources())) - {PACKAGE.name}


@functools.cache
def sources() -> tuple[Path, ...]:
    return tuple(path for root in (PACKAGE, ROOT / SUITE) for path in sorted(root.rglob("*.py")))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    if module.split(".")[0] == SUITE:
        return SUITE
    return module.split(".")[1] if "." in module else PUBLIC_NAMES


@functools.cache
def all_imports() -> tuple[Import, ...]:
    found: list[Import] = []
    for path in sources():
        source, module = path.read_text("utf-8"), module_name(path)
        found += imports_of(source, module, is_package=path.stem == "__init__")
        found += names_of(source, module)
    return tuple(found)


def is_own(found: Import) -> bool:
    ours = found.target.startswith(("vkmnn.", f"{SUITE}."))
    return ours and part_of(found.target) != part_of(found.importer)


def complaint(found: Import) -> str | None:
    """Describe the violation of an import, or return None."""
    here = f"{found.importer}, line {found.line}: imports {found.target}"
    importer, target = part_of(found.importer), part_of(found.target)
    if is_own(found):
        if importer == PUBLIC_NAMES:
            above = target in ("cli", SUITE)
            return f"{here}: the library must not need {target}" if above else None
        if target not in ALLOWED[importer] | EVERYWHERE:
            return f"{here}, but {importer} may import only {sorted(ALLOWED[importer])}"
        return None
    if found.target == "vkmnn" and importer not in FACES and not found.typing_only:
        return f"{here}: only {sorted(FACES)} use vkmnn as its users do"
    top = found.target.split(".")[0]
    if top in ("vkmnn", SUITE) or top in sys.stdlib_module_names or found.typing_only:
        return None
    if top not in THIRD_PARTY:
        return f"{here}: {top} is not a dependency of vkmnn"
    if not any(f"{found.importer}.".startswith(f"{home}.") for home in THIRD_PARTY[top]):
        return f"{here}, but only {THIRD_PARTY[top]} may import {top}"
    return None


def test_the_table_has_every_part_and_no_other():
    parts = {part_of(module_name(path)) for path in sources()}
    assert parts - {PUBLIC_NAMES} == set(ALLOWED)


def test_the_table_allows_nothing_that_nobody_does():
    done: dict[str, set[str]] = {part: set() for part in ALLOWED}
    for found in filter(is_own, all_imports()):
        if part_of(found.importer) in done and part_of(found.target) not in EVERYWHERE:
            done[part_of(found.importer)].add(part_of(found.target))
    assert {
        part: sorted(ALLOWED[part] - done[part]) for part in ALLOWED if ALLOWED[part] - done[part]
    } == {}


def test_no_packages_of_others_are_allowed_in_vain():
    used = {found.target.split(".")[0] for found in all_imports() if not found.typing_only}
    assert set(THIRD_PARTY) - used == set()


def test_no_circle_of_modules():
    """None at all: not in types, not inside functions, not by name."""
    graph: dict[str, set[str]] = {}
    for found in all_imports():
        target = found.target
        while target and target not in modules():
            target = target.rpartition(".")[0]
        if target and target != found.importer:
            graph.setdefault(found.importer, set()).add(target)
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_the_table_has_no_circle():
    tuple(graphlib.TopologicalSorter(ALLOWED).static_order())  # raises CycleError


def test_imports_run_one_way():
    complaints = [text for text in map(complaint, all_imports()) if text]
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("vkmnn.ir.graph", "from vkmnn.core import session", True),
        ("vkmnn.ir.graph", "from ..core import session", True),
        ("vkmnn.ir.graph", "from vkmnn.errors import ModelError", False),
        ("vkmnn.runtime.device", "def f():\n    import vkmnn.ir", True),
        ("vkmnn.runtime.device", "import vulkan", True),
        ("vkmnn.runtime.drivers.vulkan.api", "import vulkan", False),
        ("vkmnn.interpreter", "if TYPE_CHECKING:\n    import onnx", False),
        ("vkmnn.interpreter", "if TYPE_CHECKING:\n    pass\nelse:\n    import onnx", True),
        ("vkmnn.core.session", "import requests", True),
        ("vkmnn.runtime.pipeline_cache", "import vkmnn", True),
        ("vkmnn.runtime.pipeline_cache", "from vkmnn import __version__", True),
        ("vkmnn.runtime.pipeline_cache", "from vkmnn._version import __version__", False),
        ("vkmnn.cli.checks", "import vkmnn", False),
        ("vkmnn.core.session", "import json.decoder", False),
        ("vkmnn", "from vkmnn.cli import main", True),
        ("vkmnn", "from vkmnn_suite import fuzz", True),
        ("vkmnn.core.session", "import vkmnn_suite.cases", True),
        ("vkmnn_suite.mutation", "from vkmnn.testing import case", False),
        ("vkmnn_suite.fuzz.check", "from vkmnn.opening import open_session", True),
    ],
)
def test_the_check_itself(module: str, source: str, wrong: bool):
    found = list(imports_of(source, module, is_package=module == "vkmnn"))
    assert len(found) == 1
    assert (complaint(found[0]) is not None) == wrong


def test_import_vkmnn_loads_nothing_heavy():
    """`import vkmnn` must work without a Vulkan loader and without paying for tools."""
    heavy = ["vulkan", "onnx", "typer", "rich", "jinja2", "slangpy", "torch", "keras"]
    code = f"import sys, vkmnn; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_face_loads_neither_front_ends_nor_kernels():
    """They are imported while a model is read and a device opened, by those who need them."""
    late = ("vkmnn.converter", "vkmnn.host", "vkmnn.vulkan", "vkmnn.shaders", "onnx")
    code = (
        "import sys, vkmnn; vkmnn.InferenceSession, vkmnn.load\n"
        f"print([name for name in sys.modules if name.startswith({late})])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_model_file_needs_neither_converters_nor_passes(tmp_path: Path):
    """A file of vkmnn's own holds what they make: sessions open without importing them."""
    path = tmp_path / "net.vkmnn"
    vkmnn.convert(NETWORKS["espcn"].build(), path, sizes={"N": 1, "H": 8, "W": 8})
    late = ("vkmnn.converter.passes", "vkmnn.converter.onnx.", "onnx", "statistics")
    code = (
        f"import sys, vkmnn; vkmnn.InferenceSession({str(path)!r})\n"
        f"print([name for name in sys.modules if name.startswith({late})])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_wheels_are_built_without_numpy() -> None:
    """The environment that a wheel is built in has the packages of [build-system] alone."""
    code = (
        "import sys\n"
        "for name in ('cffi', 'flatbuffers', 'numpy', 'onnx', 'platformdirs', 'typer', 'vulkan'):\n"
        "    sys.modules[name] = None\n"
        "import vkmnn.codegen.packaging\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
