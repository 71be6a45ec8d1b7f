"""Imports run one way: the parts of vkmnn know only what lies beneath them."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "vkmnn"

# part of vkmnn -> the parts that it may import. Reads from the bottom to the top.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "threads": set(),
    "registry": {"errors"},
    "cache_files": set(),
    "budget": {"errors"},
    "ir": {"errors", "registry"},
    "discovery": {"errors", "registry"},  # finds plug-ins, and imports them by name
    "shape": {"errors", "ir", "registry"},
    "folding": {"errors", "budget", "ir", "shape"},  # of constants: asked by passes and by plans
    "geometry": {"errors", "budget", "ir", "registry", "shape"},
    "converter": {"errors", "budget", "ir", "registry", "shape", "folding"},
    "host": {"errors", "ir", "converter"},  # evaluators of ONNX, for what has no kernel
    "core": {"errors", "budget", "ir", "shape", "geometry", "folding"},
    "cpu_fallback": {"errors", "ir", "registry", "shape", "geometry", "core"},
    "runtime": {"errors", "budget", "threads", "cache_files"},  # knows Vulkan, knows no operator
    "shaders": {"errors", "runtime"},
    "codegen": {"errors", "cache_files"},  # runs without the engine, and the engine without it
    "vulkan": {
        *("errors", "threads", "ir", "registry", "shape", "geometry", "core", "runtime"),
        *("shaders", "cache_files"),
    },
    "plugin": {  # what authors of operators import: it re-exports, and registers nothing itself
        *("errors", "registry", "ir", "shape", "geometry", "converter", "core"),
        *("cpu_fallback", "runtime", "shaders", "vulkan"),
    },
    "schedule_config": {"errors"},
    "arguments": {"errors", "ir"},  # what callers pass, checked
    "opening": {  # from a model to a session: what every face stands on
        *("errors", "budget", "threads", "ir", "discovery", "converter", "core", "cpu_fallback"),
        *("runtime", "vulkan", "schedule_config", "host"),
    },
    # The faces stand side by side on `opening`; they do not know each other.
    "interpreter": {
        *("errors", "budget", "ir", "core", "runtime", "schedule_config", "arguments", "opening"),
    },
    "inference_session": {
        *("errors", "budget", "ir", "core", "runtime", "schedule_config", "arguments", "opening"),
    },
    "model": {
        *("errors", "budget", "ir", "runtime", "schedule_config", "arguments", "opening"),
    },
    "mnn": {
        *("errors", "ir", "shape", "core", "runtime", "schedule_config", "arguments", "opening"),
    },
    "onnx_backend": {"errors", "ir", "runtime", "schedule_config", "arguments", "opening"},
    "onnxruntime": {
        *("errors", "ir", "runtime", "schedule_config", "arguments", "opening"),
    },
    "bench": {"errors", "cache_files", "ir", "runtime", "opening", "inference_session"},
    "shader_function": {"errors", "runtime", "shaders", "codegen"},
    "testing": {  # the pytest plug-in of shader tests, and the fuzzer of whole models
        *("errors", "registry", "ir", "core", "cpu_fallback", "runtime", "shaders", "codegen"),
        *("vulkan", "converter", "discovery", "inference_session"),
    },
    "cli": {  # doctor, info and ops look into every part
        *("errors", "ir", "discovery", "shape", "geometry", "converter", "core"),
        *("cpu_fallback", "runtime", "shaders", "codegen", "vulkan"),
        *("inference_session", "schedule_config", "bench", "cache_files", "opening"),
    },
}
PUBLIC_NAMES = "__init__"  # vkmnn/__init__.py gathers the public names, from anywhere but the cli

# package of others -> the only parts that may import it at run time (by dotted prefix).
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "vulkan": ("vkmnn.runtime.drivers",),
    "cffi": ("vkmnn.runtime.drivers",),
    "kp": ("vkmnn.runtime.drivers",),
    "onnx": (
        *("vkmnn.converter.onnx", "vkmnn.onnx_backend", "vkmnn.onnxruntime"),
        *("vkmnn.bench.engines", "vkmnn.testing.fuzz", "vkmnn.host"),
    ),
    "google": (
        "vkmnn.converter.onnx",
        "vkmnn.testing.fuzz",
    ),  # protobuf: the errors of onnx's parser
    "typer": (
        "vkmnn.cli",
        "vkmnn.codegen",
        "vkmnn.testing.mutate",
        "vkmnn.testing.fuzz",
        "vkmnn.testing.faults",
    ),
    "rich": (
        "vkmnn.cli",
        "vkmnn.codegen",
        "vkmnn.testing.mutate",
        "vkmnn.testing.fuzz",
        "vkmnn.testing.faults",
    ),
    "jinja2": ("vkmnn.codegen", "vkmnn.testing.report", "vkmnn.testing.session"),
    "jsonschema": ("vkmnn.codegen",),
    "slangpy": ("vkmnn.codegen",),
    "onnxruntime": ("vkmnn.host", "vkmnn.cli", "vkmnn.bench.engines", "vkmnn.testing.fuzz"),
    "ncnn": ("vkmnn.bench.engines",),
    "pnnx": ("vkmnn.bench.engines",),
    "pytest": ("vkmnn.testing",),
    "numpy": ("vkmnn",),
}


class Import(NamedTuple):
    """One import: who imports what, where, and whether only for type checkers."""

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
                yield from walk(child, typing_only)

    yield from walk(ast.parse(source), False)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else PUBLIC_NAMES


def all_imports() -> list[Import]:
    return [
        found
        for path in sorted(PACKAGE.rglob("*.py"))
        for found in imports_of(
            path.read_text("utf-8"), module_name(path), is_package=path.stem == "__init__"
        )
    ]


def is_own(found: Import) -> bool:
    return found.target.startswith("vkmnn.") and part_of(found.target) != part_of(found.importer)


def complaint(found: Import) -> str | None:
    """Say what is wrong with an import, or None."""
    here = f"{found.importer}, line {found.line}: imports {found.target}"
    importer, target = part_of(found.importer), part_of(found.target)
    if is_own(found):
        if importer == PUBLIC_NAMES:
            return (
                f"{here}: the library must not need the command line" if target == "cli" else None
            )
        if target not in ALLOWED[importer]:
            return f"{here}, but {importer} may import only {sorted(ALLOWED[importer])}"
        return None
    top = found.target.split(".")[0]
    if top == "vkmnn" or top in sys.stdlib_module_names or found.typing_only:
        return None
    if top not in THIRD_PARTY:
        return f"{here}: {top} is not a dependency of vkmnn"
    if not any(f"{found.importer}.".startswith(f"{home}.") for home in THIRD_PARTY[top]):
        return f"{here}, but only {THIRD_PARTY[top]} may import {top}"
    return None


def test_every_part_is_in_the_table():
    parts = {part_of(module_name(path)) for path in PACKAGE.rglob("*.py")}
    assert parts - {PUBLIC_NAMES, "__main__"} == set(ALLOWED)


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
        ("vkmnn.core.session", "import json.decoder", False),
        ("vkmnn", "from vkmnn.cli import main", True),
    ],
)
def test_the_check_itself(module: str, source: str, wrong: bool):
    found = list(imports_of(source, module, is_package=module == "vkmnn"))
    assert len(found) == 1
    assert (complaint(found[0]) is not None) == wrong


def test_import_vkmnn_loads_nothing_heavy():
    """`import vkmnn` must work without a Vulkan loader and without paying for tools."""
    heavy = ["vulkan", "onnx", "typer", "rich", "jinja2", "jsonschema", "slangpy", "torch"]
    code = f"import sys, vkmnn; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
