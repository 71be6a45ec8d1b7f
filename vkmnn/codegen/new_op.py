"""`new-op`: writes the files of a new operator, as an identity that builds and passes its test."""

from __future__ import annotations

import json
import keyword
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jinja2
import typer

from vkmnn._version import __version__
from vkmnn.base.elements import FLOATS, NARROW
from vkmnn.codegen.console import fail, out
from vkmnn.codegen.jsonpos import parse
from vkmnn.codegen.places import MACRO_FILE, SHADERS, TEMPLATE_SUFFIX
from vkmnn.errors import ShaderError
from vkmnn.shader_files.lock import camel

Value = float | int | bool | str | bytes | tuple[float | str | bytes, ...]

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_MAX_NAME = 32
_MAX_DOMAIN = 40
_MAX_INPUTS = 7
_MAX_PARAMS = 31  # with n4, 128 bytes of push constants

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_OP = re.compile(r"[A-Z][A-Za-z0-9]*")
_DOMAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_DISTRIBUTION = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")
_PARAM = re.compile(r"(?P<name>\w+):(?P<type>\w+)(=(?P<default>.+))?")

# Words of GLSL that Python allows, and names that the generated files use themselves.
_TAKEN = frozenset(
    [
        "attribute",
        "bool",
        "buffer",
        "case",
        "centroid",
        "coherent",
        "common",
        "const",
        "default",
        "discard",
        "do",
        "double",
        "enum",
        "extern",
        "external",
        "fixed",
        "flat",
        "float",
        "goto",
        "half",
        "highp",
        "in",
        "inline",
        "inout",
        "input",
        "int",
        "interface",
        "invariant",
        "layout",
        "long",
        "lowp",
        "mediump",
        "namespace",
        "noinline",
        "noperspective",
        "out",
        "output",
        "packed",
        "partition",
        "patch",
        "precise",
        "precision",
        "public",
        "readonly",
        "resource",
        "restrict",
        "sample",
        "sampler",
        "shared",
        "short",
        "sizeof",
        "smooth",
        "static",
        "struct",
        "subroutine",
        "superp",
        "switch",
        "template",
        "this",
        "true",
        "typedef",
        "uint",
        "uniform",
        "union",
        "unsigned",
        "using",
        "varying",
        "void",
        "volatile",
        "writeonly",
        "attributes",
        "doc_string",
        "domain",
        "inputs",
        "n4",
        "name",
        "op_type",
        "outputs",
        "overload",
        "pack",
        "rank",
        "self",
        "y",
    ]
)
_NUMBERS = {"float": float, "int": int}
_PYTHON = {
    "float": "float",
    "int": "int",
    "bool": "bool",
    "string": "str",
    "bytes": "bytes",
    "floats": "tuple[float, ...]",
    "ints": "tuple[int, ...]",
    "strings": "tuple[str, ...]",
    "byte_strings": "tuple[bytes, ...]",
}
"""Types of parameters, named like the readers of a node, and their Python types."""
_OTHERS: dict[str, Value] = {
    "bool": True,
    "string": "text",
    "bytes": b"\x00\xff",
    "floats": (0.5, -2.0),
    "ints": (1, -2),
    "strings": ("some", "texts"),
    "byte_strings": (b"some", b"\xff"),
}
"""Values for the test of parameters that are not numbers."""
_ELEMENTS = (*FLOATS, "i32")
_MAX_OUTPUTS = 4


def _literal(value: Value) -> str:
    """Return a value as Python is formatted."""
    if isinstance(value, tuple):
        inner = ", ".join(map(_literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    text = repr(value)
    if isinstance(value, str | bytes) and '"' not in text:
        return text.replace("'", '"', 1)[:-1] + '"'
    return text


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter: an ONNX attribute and a field of the attributes; numbers are push constants."""

    name: str
    type: str
    default: Value | None

    @property
    def python(self) -> str:
        """As a field or argument."""
        default = "" if self.default is None else f" = {_literal(self.default)}"
        return f"{self.name}: {_PYTHON[self.type]}{default}"

    @property
    def is_number(self) -> bool:
        """Whether kernels get it as a push constant."""
        return self.type in ("float", "int", "bool")

    @property
    def glsl(self) -> str:
        """As a member of the parameter block."""
        kind, value = self.type, self.default
        if kind == "bool":
            kind, value = "uint", None if value is None else int(bool(value))
        return f"{self.name}:{kind}{'' if value is None else f'={value!r}'}"

    @property
    def packed(self) -> str:
        """The expression that gives a kernel the value."""
        value = f"self.attrs.{self.name}"
        return f"int({value})" if self.type == "bool" else value

    @property
    def other(self) -> Value:
        """A value that is not the default, for the test."""
        if isinstance(self.default, bool):
            return not self.default
        if self.type in _OTHERS:
            return _OTHERS[self.type]
        assert self.default is None or isinstance(self.default, float | int)
        step = 0.5 if self.type == "float" else 1
        return round((self.default or 0) + step, 6)


@dataclass(frozen=True, slots=True)
class NewOp:
    """The operator to write."""

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    params: tuple[Param, ...]
    package: str
    distribution: str
    outputs: tuple[str, ...] = ("y",)
    optional: tuple[str, ...] = ()
    elements: tuple[str, ...] = ("f32",)
    kind: str = "kernel"

    @property
    def axes(self) -> dict[str, list[str]]:
        """The axes of its template."""
        several = {"element": list(self.elements)} if len(self.elements) > 1 else {}
        return {**several, "load": ["buffer", "texel"]}

    def imports(self) -> list[str]:
        """Return the names that its module imports from `vkmnn.plugin`."""
        kernel, mixed = self.kind == "kernel", "i32" in self.elements
        needed = {
            *("AnyArray", "Infos", "Inputs", "NodeContext", "Op", "OpAttrs", "Outputs", "Values"),
            *("converter", "cpu_execution", "op_type", "required", "same_dtype", "same_shape"),
            *("axes_of", "elementwise_same_shape", "size_computer", "widen"),
        }
        if kernel:
            needed |= {"DeviceInfo", "VulkanEncoder", "VulkanExecution", "vec4_count"}
            needed |= {"vulkan_execution"}
            needed |= {"DType"} if mixed else set()
            needed |= {"Rejection"} if self.elements == ("i32",) else {"reject_integers"}
            needed |= {"FloatRule"} if set(self.elements) & NARROW else set()
        if self.kind == "geometry":
            needed |= {"GeometryContext", "Region", "View", "geometry"}
        # As ruff sorts them: classes, then functions.
        return sorted(needed, key=lambda name: (name[0].islower(), name.lower()))

    def values(self) -> dict[str, object]:
        """Return the variables of the templates."""
        required = {p.name: _literal(p.other) for p in self.params if p.default is None}
        changed = {p.name: _literal(p.other) for p in self.params}
        least, most = len(self.inputs) - len(self.optional), len(self.inputs)
        dtypes = []
        if self.kind == "kernel" and {"f32", "i32"} <= set(self.elements):
            dtypes = ["float32", "int32"]
        return {
            "kind": self.kind,
            "imports": self.imports(),
            "arity": most if least == most else f"({least}, {most})",
            "outputs": self.outputs,
            "optional": self.optional,
            "required": self.inputs[:least],
            "elements": list(self.elements),
            "integers": "i32" in self.elements,
            "narrow": sorted(NARROW & {*self.elements}),
            "lacking": sorted(NARROW - {*self.elements}),
            "dtypes": dtypes,
            "numbers": [param for param in self.params if param.is_number],
            "simple": self.axes == {"load": ["buffer", "texel"]}
            and (self.kind, self.elements) == ("kernel", ("f32",))
            and not self.optional
            and len(self.outputs) == 1,
            "name": self.name,
            "op": self.op,
            "camel": camel(self.name),
            "domain": self.domain,
            "inputs": self.inputs,
            "first": self.inputs[0],
            "indices": ", ".join(map(str, range(len(self.inputs)))),
            "params": self.params,
            "attribute_sets": [required, changed] if required != changed else [changed],
            "package": self.package,
            "distribution": self.distribution,
            "version": __version__,
        }


@dataclass(frozen=True, slots=True)
class Target:
    """Where files go: the folder of the shaders, of the modules, of the tests."""

    root: Path
    shaders: Path
    modules: Path
    tests: Path

    def files(self, new: NewOp) -> dict[Path, str]:
        """Return the operator's own files and their templates."""
        own = {
            self.modules / f"{new.name}.py": "operator.py.j2",
            self.tests / f"test_{new.name}.py": "test.py.j2",
        }
        if new.kind != "kernel":
            return own
        shader = {self.shaders / "glsl" / f"{new.name}{TEMPLATE_SUFFIX}": "kernel.comp.j2"}
        return {**shader, **own, self.tests / f"cases_{new.name}.py": "cases.py.j2"}

    def shared(self) -> dict[Path, str]:
        """Return the files of the package that its operators share."""
        return {
            self.root / "pyproject.toml": "pyproject.toml.j2",
            self.root / "setup.py": "setup.py.j2",
            self.root / "README.md": "README.md.j2",
            self.modules / "__init__.py": "init.py.j2",
            self.tests / "conftest.py": "conftest.py.j2",
        }


def new_op(
    name: Annotated[str, typer.Argument(help="Name of the files, in snake_case: quick_gelu.")],
    plugin: Annotated[
        Path, typer.Option("--plugin", help="Folder of the package to write, or to add to.")
    ],
    inputs: Annotated[
        int, typer.Option("--inputs", "-n", help="How many tensors it takes, all of one shape.")
    ] = 1,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            "-p",
            help="An attribute: alpha:float=1.0, k:int, axes:ints=0,1, mode:string (repeatable).",
        ),
    ] = None,
    outputs: Annotated[int, typer.Option("--outputs", help="How many tensors it returns.")] = 1,
    optional: Annotated[
        int, typer.Option("--optional", help="How many of the last inputs may be absent.")
    ] = 0,
    element: Annotated[
        list[str] | None,
        typer.Option("--element", help="Element types of the kernels: f32, f16, i32 (repeatable)."),
    ] = None,
    cpu_only: Annotated[
        bool, typer.Option("--cpu-only", help="No shader: numpy computes it everywhere.")
    ] = False,
    geometry: Annotated[
        bool, typer.Option("--geometry", help="No shader: it only moves data, as copied regions.")
    ] = False,
    op: Annotated[
        str | None, typer.Option("--op", help="Name of the operator. Default: NAME in CamelCase.")
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option("--domain", help="ONNX domain. Default: the package's name."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the operator's files.")] = False,
    build: Annotated[bool, typer.Option(help="Build the shader afterwards.")] = True,
) -> None:
    """Write a new operator into a plug-in: template, Python module, macro.json entry and test."""
    try:
        kind = _kind(cpu_only, geometry)
        tensors = outputs, optional, element or ()
        asked = Arguments(name, inputs, param or [], op, domain, plugin, *tensors, kind)
        new = describe(asked)
        target = target_of(new, plugin)
        written = write(new, target, force)
    except ShaderError as error:
        fail(error)
    for path in written:
        out.print(f"wrote {_shown(path)}", highlight=False, soft_wrap=True)
    command = ["-m", "vkmnn.codegen", "--shaders", _shown(target.shaders), "--only", new.name]
    builds = build and new.kind == "kernel"
    if builds and subprocess.run([sys.executable, *command], check=False).returncode:
        raise typer.Exit(1)
    _next_steps(new, target, " ".join(["python", *command]))


def _kind(cpu_only: bool, geometry: bool) -> str:
    if cpu_only and geometry:
        raise ShaderError(
            "--cpu-only and --geometry exclude each other",
            hint="data movement runs on devices, by copies",
        )
    return "cpu" if cpu_only else "geometry" if geometry else "kernel"


def _shown(path: Path) -> str:
    """Return the shortest path from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _next_steps(new: NewOp, target: Target, command: str) -> None:
    *shader, module, test = [path for path in target.files(new) if "cases_" not in path.name]
    where = "" if target.root == Path.cwd() else f"cd {_shown(target.root)} && "
    formula = "".join(f"{_shown(path)},\n  in " for path in shader)
    text = (
        f"\n{new.domain}::{new.op} is an identity so far. Next:\n"
        f"  write the formula in {formula}"
        f"{_shown(module)} (with numpy),\n"
        f"  and in {_shown(test)} (as what is expected); then\n"
        + (f"  {command}\n" if shader else "")
        + f"  pip install -e {_shown(target.root)}\n"
        f"  {where}pytest {test.relative_to(target.root)}"
    )
    out.print(text, highlight=False, soft_wrap=True)


# --- arguments ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arguments:
    """The unchecked request."""

    name: str
    inputs: int
    params: Sequence[str]
    op: str | None
    domain: str | None
    plugin: Path
    outputs: int = 1
    optional: int = 0
    elements: Sequence[str] = ()
    kind: str = "kernel"


def describe(asked: Arguments) -> NewOp:
    """Check the arguments.

    Raises:
        ShaderError: one of them is impossible; the hint lists the possible ones.
    """
    name, op, domain, kind = asked.name, asked.op, asked.domain, asked.kind
    inputs, outputs, optional = asked.inputs, asked.outputs, asked.optional
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > _MAX_NAME:
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\W+", "_", name).lower().strip("_")
        raise ShaderError(
            f"'{name}' cannot name a shader and a module",
            hint=f"use snake_case, at most {_MAX_NAME} characters: {snake[:_MAX_NAME]}",
        )
    if name == "kernels":
        raise ShaderError("'kernels' is the module that codegen writes", hint="use another name")
    op = op or camel(name)
    if not _OP.fullmatch(op) or len(op) > _MAX_NAME:
        raise ShaderError(
            f"'{op}' cannot name an operator",
            hint=f"use CamelCase, at most {_MAX_NAME} characters: {camel(name)}",
        )
    _check_tensors(inputs, outputs, optional)
    _check_elements(asked.elements, kind)
    distribution = asked.plugin.resolve().name
    if not _DISTRIBUTION.fullmatch(distribution):
        raise ShaderError(
            f"'{distribution}' cannot name a package",
            hint="letters, digits and '-' only, as in vkmnn-swish",
        )
    package = distribution.replace("-", "_").lower()
    if package in sys.stdlib_module_names or package in ("vkmnn", "numpy", "onnx"):
        raise ShaderError(
            f"'{package}' exists already as a package", hint="give the folder another name"
        )
    domain = domain or package
    if not _DOMAIN.fullmatch(domain) or len(domain) > _MAX_DOMAIN or domain == "ai.onnx":
        raise ShaderError(
            f"'{domain}' cannot be the domain of a custom operator",
            hint=f"a name such as com.example, at most {_MAX_DOMAIN} characters",
        )
    names = ("x",) if inputs == 1 else tuple(f"x{index}" for index in range(inputs))
    made = ("y",) if outputs == 1 else tuple(f"y{index}" for index in range(outputs))
    left_out = names[len(names) - optional :]
    flags = len(left_out) if kind == "kernel" else 0
    read = _params(asked.params, (*names, *made, *(f"has_{one}" for one in left_out)), flags)
    wanted = {*asked.elements, *(["f32"] if set(asked.elements) & NARROW else [])} or {"f32"}
    chosen = tuple(one for one in _ELEMENTS if one in wanted)
    return NewOp(
        *(name, op, domain, names, read, package, distribution),
        outputs=made,
        optional=left_out,
        elements=chosen,
        kind=kind,
    )


def _check_tensors(inputs: int, outputs: int, optional: int) -> None:
    if not 1 <= inputs <= _MAX_INPUTS:
        raise ShaderError(f"{inputs} inputs", hint=f"an operator takes 1 to {_MAX_INPUTS}")
    if not 1 <= outputs <= _MAX_OUTPUTS:
        raise ShaderError(f"{outputs} outputs", hint=f"an operator returns 1 to {_MAX_OUTPUTS}")
    if not 0 <= optional < inputs:
        raise ShaderError(
            f"{optional} of {inputs} inputs cannot be optional", hint="the first input is needed"
        )


def _check_elements(elements: Sequence[str], kind: str) -> None:
    wrong = [one for one in elements if one not in _ELEMENTS]
    if wrong or (elements and kind != "kernel"):
        raise ShaderError(
            f"'{wrong[0]}' is not an element type" if wrong else "only kernels have element types",
            hint=f"--element is one of {', '.join(_ELEMENTS)}, where there is a shader",
        )


def _params(texts: Sequence[str], inputs: Sequence[str], flags: int) -> tuple[Param, ...]:
    """Read the parameters; those without a default come first, as Python requires.

    Args:
        texts: the parameters.
        inputs: names that are in use.
        flags: further push constants.
    """
    read: list[Param] = []
    for text in texts:
        match = _PARAM.fullmatch(text)
        if match is None or match["type"] not in _PYTHON:
            raise ShaderError(
                f"parameter '{text}' is not NAME:TYPE or NAME:TYPE=DEFAULT",
                hint="TYPE is float or int: alpha:float=1.0; or "
                f"{', '.join(kind for kind in _PYTHON if kind not in _NUMBERS)}",
            )
        name = match["name"]
        taken = name in _TAKEN or name in inputs or keyword.iskeyword(name)
        if taken or not _NAME.fullmatch(name) or len(name) > _MAX_NAME or name.startswith("gl_"):
            raise ShaderError(
                f"a parameter cannot be called '{name}'",
                hint="snake_case, no keyword of Python or GLSL, no name of a tensor",
            )
        if name in {param.name for param in read}:
            raise ShaderError(f"parameter '{name}' is given twice", hint="leave one out")
        read.append(Param(name, match["type"], _default(text, match["type"], match["default"])))
    room = _MAX_PARAMS - flags
    if sum(param.is_number for param in read) > room:
        raise ShaderError(f"{len(read)} parameters", hint=f"push constants have room for {room}")
    return tuple(sorted(read, key=lambda param: param.default is not None))


def _default(text: str, kind: str, default: str | None) -> Value | None:
    if default is None:
        return None
    if kind in ("floats", "ints"):
        parts = [part for part in default.split(",") if part.strip()]
        return tuple(_number(text, kind[:-1], part) for part in parts)
    if kind == "bool":
        if default.lower() not in ("true", "false"):
            raise ShaderError(f"parameter '{text}': a bool is true or false", hint="keep:bool=true")
        return default.lower() == "true"
    if kind in ("strings", "byte_strings"):
        texts = tuple(default.split(","))
        return texts if kind == "strings" else tuple(one.encode() for one in texts)
    if kind in ("string", "bytes"):
        return default if kind == "string" else default.encode()
    return _number(text, kind, default)


def _number(text: str, kind: str, default: str) -> float | int:
    try:
        value: float | int = _NUMBERS[kind](default)
    except ValueError:
        value = math.nan
    fits = -(2**31) <= value < 2**31 - 1 if kind == "int" else math.isfinite(value)
    if not fits:
        raise ShaderError(
            f"parameter '{text}': '{default}' is not a valid {kind}",
            hint=f"as in {'alpha:float=1.0' if kind == 'float' else 'k:int=2'}",
        )
    return value


# --- files ----------------------------------------------------------------------------------------


def target_of(new: NewOp, plugin: Path) -> Target:
    """Return where the files go."""
    root = plugin.resolve()
    package = root / new.package
    return Target(root, package, package, root / "tests")


def write(new: NewOp, target: Target, force: bool) -> list[Path]:
    """Write all files and the entry of macro.json; nothing when anything is in the way.

    Raises:
        ShaderError: a file or the entry is there already, and `force` is not given; macro.json is
            damaged, or another of its templates has the operator's type.
    """
    macro = target.shaders / "glsl" / MACRO_FILE
    old = macro.read_text("utf-8") if macro.is_file() else "{}\n"
    entries = parse(old, MACRO_FILE).plain()
    if not isinstance(entries, dict):
        raise ShaderError("it is not an object", template=str(macro), line=1)
    template = f"{new.name}{TEMPLATE_SUFFIX}"
    files = target.files(new)
    there = [path for path in files if path.exists()]
    if (there or template in entries) and not force:
        names = [_shown(path) for path in there] or [f"an entry of {_shown(macro)}"]
        raise ShaderError(
            f"'{new.name}' exists already: {', '.join(names)}",
            hint="choose another name, or overwrite its files with --force",
        )
    _check_op_type(new, entries, template)
    if (target.root / "pyproject.toml").is_file() and not macro.is_file():
        raise ShaderError(
            f"{target.root} is a project, but new-op did not create it",
            hint="choose a folder that does not exist yet",
        )
    shared = {path: name for path, name in target.shared().items() if not path.exists()}
    rendered = {path: render(name, new.values()) for path, name in {**shared, **files}.items()}
    if not (target.modules / "py.typed").exists():
        rendered[target.modules / "py.typed"] = ""
    if template not in entries and new.kind == "kernel":
        rendered[macro] = with_entry(old, template, new.op, new.axes)
    elif not macro.is_file():
        rendered[macro] = old  # the package may get shaders later
    for path, text in rendered.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return list(rendered)


def _check_op_type(new: NewOp, entries: Mapping[str, object], template: str) -> None:
    builtin = parse((SHADERS / "glsl" / MACRO_FILE).read_text("utf-8"), MACRO_FILE).plain()
    assert isinstance(builtin, dict)
    for name, entry in {**builtin, **entries}.items():
        if isinstance(entry, dict) and entry.get("op_type") == new.op and name != template:
            raise ShaderError(
                f"operator {new.op} exists already: {name}",
                hint="give another name with --op",
            )


def render(template: str, values: Mapping[str, object]) -> str:
    """Return a file; its delimiters differ from those of shader templates, as it may be one."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(template).render(values)


def with_entry(
    macro: str, template: str, op: str, axes: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Return macro.json with one more entry, formatted like the rest: a blank line between two."""
    listed = ",\n".join(
        f"      {json.dumps(name)}: {json.dumps(list(values))}"
        for name, values in (axes or {"load": ["buffer", "texel"]}).items()
    )
    entry = (
        f'  "{template}": {{\n    "axes": {{\n{listed}\n    }},\n    "op_type": "{op}"\n  }}\n}}\n'
    )
    head = macro.rstrip().removesuffix("}").rstrip()
    return f"{head}\n{entry}" if head == "{" else f"{head},\n\n{entry}"
