"""Structure of the source: functions that fit on a page, operators where they are expected."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tasks import WANTED

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "vkmnn"
SUITE = ROOT / "vkmnn_suite"
MAX_LINES = 60

# Function -> why it is longer; docstrings do not count.
LONG = {
    "runtime/recorder.py:CommandRecorder.dispatch": "the hot path: a call costs what it does",
    "runtime/drivers/vulkan/features.py:query": "one struct of Vulkan after the other",
    "vkmnn_suite/fuzz/hostile.py:_chain": "one table of ways to damage a model",
}


MAX_PARAMETERS = 9

# Function -> why it takes more parameters than that.
OPTIONS = "each parameter is an option of the command line"
KEYWORDS = "public; each parameter is an option by name"
OF_MNN = "public; the parameters are those of MNN's function"
MANY_PARAMETERS = {
    "cli/app.py:run": OPTIONS,
    "cli/app.py:map_command": OPTIONS,
    "cli/app.py:compare": OPTIONS,
    "cli/app.py:convert": OPTIONS,
    "cli/app.py:quantize": OPTIONS,
    "cli/app.py:generate": OPTIONS,
    "cli/app.py:chat": OPTIONS,
    "cli/app.py:serve": OPTIONS,
    "cli/app.py:profile": OPTIONS,
    "cli/app.py:bench": OPTIONS,
    "cli/app.py:tune": OPTIONS,
    "codegen/new_op.py:new_op": OPTIONS,
    "vkmnn_suite/fuzz/__main__.py:main": OPTIONS,
    "inference_session.py:InferenceSession.__init__": KEYWORDS,
    "llm/__init__.py:load": KEYWORDS,
    "mnn/expr/layers.py:roi_align": OF_MNN,
    "mnn/nn.py:load_module_from_file": OF_MNN,
    "quantization/run.py:quantize": KEYWORDS,
    "opening/saving.py:convert": KEYWORDS,
}


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield every function with its name inside the module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield f"{prefix}{child.name}", child
            yield from functions(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):
            yield from functions(child, prefix)


def length(function: ast.FunctionDef) -> int:
    """Return a function's lines, without those of its docstring."""
    first = function.body[0]
    documented = ast.get_docstring(function, clean=False) is not None
    prose = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - prose


def parameters(function: ast.FunctionDef) -> int:
    """Return how many parameters a function has, without self, *args and **kwargs."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return len([one for one in every if one.arg not in ("self", "cls")])


class Module(NamedTuple):
    """What the tests ask of a module; its syntax tree would slow down garbage collection."""

    name: str
    functions: list[tuple[str, int, int]]  # with their lines and parameters
    is_execution: bool


@cache
def modules() -> list[Module]:
    """Return every module of the package and of the suite, read once for all tests."""
    return [_read(path) for path in sorted([*PACKAGE.rglob("*.py"), *SUITE.rglob("*.py")])]


def _read(path: Path) -> Module:
    tree = ast.parse(path.read_text("utf-8"))
    return Module(
        path.relative_to(ROOT).as_posix().removeprefix("vkmnn/"),
        [(name, length(one), parameters(one)) for name, one in functions(tree)],
        any(
            "vulkan_execution" in ast.unparse(item)
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for item in node.decorator_list
        ),
    )


def test_functions_fit_on_a_page():
    long = {
        f"{module.name}:{name}"
        for module in modules()
        for name, lines, _ in module.functions
        if lines > MAX_LINES
    }
    assert long == set(LONG)


def test_functions_take_few_parameters():
    """What belongs together is passed as one object."""
    many = {
        f"{module.name}:{name}"
        for module in modules()
        for name, _, number in module.functions
        if number > MAX_PARAMETERS
    }
    assert many == set(MANY_PARAMETERS)


def test_executions_are_operators_and_nothing_else():
    """Every module of the folder runs an op on the device, and no other module does."""
    running = {module.name for module in modules() if module.is_execution}
    folder = PACKAGE / "vulkan" / "executions"
    listed = {f"vulkan/executions/{path.name}" for path in folder.glob("*.py")}
    assert running == listed - {"vulkan/executions/__init__.py"}


# Who opens sessions of onnxruntime, each with the options of `vkmnn.host.sessions`: sums of
# quantised values depend on the processor otherwise.
OPENERS = {
    *("vkmnn/host/engines.py", "vkmnn/bench/engines/ort.py", "vkmnn_suite/fuzz/oracle.py"),
    *("vkmnn/comparison/references.py", "benchmarks/llm.py", "tests/onnxruntime_oracle.py"),
    *("benchmarks/served.py", "benchmarks/mapping.py"),
}
# onnxruntime is the subject there, by itself or as a name for vkmnn's face, not an oracle.
OF_FACES = {
    *("tests/faces", "tests/memory/test_leaks.py"),
    *("tests/model/test_native_files.py", "tests/model/test_overflow.py"),
}


def test_the_engine_knows_nothing_of_texts():
    """They are the business of `decoding/`, and of `llm/` above it."""
    words = re.compile(r"(?i)token|vocabular|temperature|logit|sampler|decod|prompt|top_[kp]")
    found = {
        (path.name, word)
        for path in (PACKAGE / "core").rglob("*.py")
        for word in words.findall(path.read_text("utf-8"))
    }
    assert found == set()


def test_sessions_of_onnxruntime_are_opened_with_exact_sums():
    found = set()
    for folder in ("vkmnn", "vkmnn_suite", "tests", "benchmarks", "tools", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            of_face = name.startswith(("vkmnn/onnxruntime/", *OF_FACES))
            if of_face or not _opens_onnxruntime(path.read_text("utf-8")):
                continue
            found.add(name)
            assert "session_options(" in path.read_text("utf-8"), name
    assert found == OPENERS


def _opens_onnxruntime(source: str) -> bool:
    return "InferenceSession" in source and any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "InferenceSession"
        and any(name in ast.unparse(node.func.value) for name in ("onnxruntime", "ort"))
        for node in ast.walk(ast.parse(source))
    )


def test_long_tests_that_ci_leaves_out_name_the_step_that_covers_them():
    """The marker stands at the test, its argument begins with a step of .ci/run."""
    run = (ROOT / ".ci" / "run").read_text("utf-8")
    steps = set(re.findall(r'^step "?([\w ]+?)"? (?:python3|env|\w+$)', run, re.MULTILINE))
    assert {"test", "kernel variants"} <= steps
    assert "tasks.py test --long" in run
    assert "not elsewhere" in WANTED["--long"]
    assert "--deselect" not in run
    named = [
        (path.name, call.args)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "mark.elsewhere" in (source := path.read_text("utf-8"))
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.elsewhere"
    ]
    assert len(named) > 5
    for name, arguments in named:
        (step,) = (argument.value for argument in arguments if isinstance(argument, ast.Constant))
        assert step.partition(":")[0] in steps, name


RUN = 10
"""Lines; as many that stand in two places are a function that is missing."""
MAX_RUNS = 20


def test_few_runs_of_lines_stand_twice():
    """Blank lines and generated modules do not count; a run counts where it stands again."""
    seen: dict[tuple[str, ...], tuple[Path, int]] = {}
    twice: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name.endswith("_generated.py"):
            continue
        lines = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
        at = 0
        while at <= len(lines) - RUN:
            first, place = seen.setdefault(tuple(lines[at : at + RUN]), (path, at))
            again = (first, place) != (path, at)
            if again:
                twice.append(f"{first.name} and {path.name}: {lines[at]}")
            at += RUN if again else 1
    assert len(twice) <= MAX_RUNS, "\n".join(twice)
