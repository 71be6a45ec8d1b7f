"""Template + axis values → GLSL, with a map from every GLSL line to the template's file and line.

The lexer's output is marked: each piece of literal template text carries an invisible `<file:line>`
mark through includes, macros and loops. The finished text is then split at the marks, which gives
both clean GLSL and the map.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vkmnn.codegen.declare import RESERVED_NAMES, Declarations, SpecValue
from vkmnn.codegen.places import BUILTIN_FOLDER, TEMPLATE_SUFFIX
from vkmnn.errors import ShaderError

if TYPE_CHECKING:
    from vkmnn.codegen.variants import AxisValue, Variant

GLSL_VERSION = 450
_NO_DEFAULTS: Mapping[str, SpecValue] = {}

# Exceptions of an expression in a template, apart from those handled by name.
_TEMPLATE_MISTAKES = (
    jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError,
)  # fmt: skip

_MARK_BEGIN, _MARK_END = "\x01", "\x02"
_MARK = re.compile(f"{_MARK_BEGIN}\\d+:\\d+{_MARK_END}")
_DIRECTIVE = re.compile(r"\s*#\s*(version|extension)\b")
_DOC = re.compile(r"\s*\{#-?(.*?)-?#\}", re.DOTALL)
_PURPOSE = re.compile(r"\s*Computes: (.*?)\n(?=\S|\s*\n)", re.DOTALL)
"""The first of a header's parts: Computes, Grid, Shared memory, Axes, Operands, Constants, Show."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """One variant as GLSL.

    `lines[i]` is the (template file, line) that GLSL line `i + 1` comes from.
    """

    text: str
    lines: tuple[tuple[str, int], ...]
    declared: Declarations


class _Marks(Extension):
    """Puts a mark before each literal piece and expression, and after each newline in a piece."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        files: list[str] = self.environment.mark_files  # type: ignore[attr-defined]
        name = stream.name or "<template>"
        if name not in files:
            files.append(name)
        number = files.index(name)
        for token in stream:
            if token.type == "variable_begin":  # a helper's output has no literal text of its own
                mark = f"{_MARK_BEGIN}{number}:{token.lineno}{_MARK_END}"
                yield Token(token.lineno, "data", mark)
            if token.type != "data":
                yield token
                continue
            pieces = token.value.split("\n")
            marked = "\n".join(
                f"{_MARK_BEGIN}{number}:{token.lineno + i}{_MARK_END}{piece}"
                for i, piece in enumerate(pieces)
            )
            yield Token(token.lineno, "data", marked)


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox in which only includes can be included."""

    def join_path(self, template: str, parent: str) -> str:
        if template.endswith(TEMPLATE_SUFFIX):
            raise jinja2.TemplateError(f"'{template}' is a template, not an include")
        return template


class Renderer:
    """Renders the templates of one folder, which may use the built-in includes as well.

    Not thread-safe: one variant at a time (rendering is pure Python anyway).
    """

    def __init__(self, folder: Path) -> None:
        self.folders = (folder.resolve(), BUILTIN_FOLDER)
        loader = jinja2.FileSystemLoader(self.folders, encoding="utf-8")
        self._env = _Environment(
            loader=loader,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            newline_sequence="\n",
            auto_reload=False,
            autoescape=False,
        )
        self._files: list[str] = []
        # Variants of a template share most of their lines: each marked line is split once.
        self._cut: dict[str, tuple[str, tuple[str, int] | None, str | None]] = {}
        self._env.mark_files = self._files  # type: ignore[attr-defined]
        self._env.add_extension(_Marks)
        self._current = Declarations(self._where)
        self._env.globals.clear()
        self._env.globals.update(self._helpers())

    def _helpers(self) -> dict[str, Callable[..., object]]:
        def tensor(access: str) -> Callable[..., str]:
            def declare(
                name: object,
                element: object,
                *,
                load: object = "buffer",
                restrict: bool = False,
                coherent: bool = False,
                view_of: object = None,
            ) -> str:
                if view_of is not None:
                    return self._current.do_view(
                        access, _clean(name), _clean(element), _clean(view_of)
                    )
                return self._current.do_tensor(
                    access, _clean(name), _clean(element), _clean(load), restrict, coherent
                )

            return declare

        def plain(method: str) -> Callable[..., object]:
            def call(*args: Any, **kwargs: Any) -> object:
                bound = getattr(self._current, method)
                return bound(*map(_clean, args), **{k: _clean(v) for k, v in kwargs.items()})

            return call

        variables = {"range", "variant", "emulated"}
        names = RESERVED_NAMES - variables - {"tensor_in", "tensor_out", "tensor_inout"}
        return {
            "range": range,
            "tensor_in": tensor("r"),
            "tensor_out": tensor("w"),
            "tensor_inout": tensor("rw"),
            **{name: plain(f"do_{name}") for name in sorted(names)},
        }

    def doc(self, file: str) -> str:
        """Return the computation stated in the template's header, or an empty string."""
        match = _DOC.match((self.folders[0] / file).read_text(encoding="utf-8"))
        if match is None:
            return ""
        purpose = _PURPOSE.match(match.group(1))
        text = " ".join((purpose or match).group(1).split())
        return text if text[1:2] in (" ", "[") else text[:1].upper() + text[1:]

    def render(self, variant: Variant, *, emulated: bool = False) -> Rendered:
        """Render one variant; raises `ShaderError` with file and line.

        `emulated` says that it is to run on a device without its features (see
        `vkmnn.codegen.emulation`).
        """
        spec = variant.template.spec
        return self.render_file(
            variant.template.file, variant.axes, variant.name, spec, emulated=emulated
        )

    def render_file(
        self,
        file: str,
        axes: dict[str, AxisValue],
        name: str,
        spec: Mapping[str, SpecValue] = _NO_DEFAULTS,
        *,
        emulated: bool = False,
    ) -> Rendered:
        """Render `file` with these axis values and spec defaults under a variant name."""
        self._current = Declarations(self._where, spec)
        try:
            marked = self._env.get_template(file).render(**axes, variant=name, emulated=emulated)
        except ShaderError as error:
            raise _in_variant(error, name) from None
        except jinja2.TemplateSyntaxError as error:
            raise ShaderError(
                f"{error.message} [{name}]", template=error.name or file, line=error.lineno
            ) from None
        except jinja2.TemplateNotFound as error:
            where = self._where_raised(error.__traceback__) or (file, 1)
            raise ShaderError(
                f"there is no template or include '{error.name}' [{name}]",
                template=where[0],
                line=where[1],
                hint="includes are named from the template folder: 'include/common.glsl.j2'",
            ) from None
        except jinja2.UndefinedError as error:
            where = self._where_raised(error.__traceback__) or (file, 1)
            raise ShaderError(
                f"{error.message} [{name}]",
                template=where[0],
                line=where[1],
                hint=f"axes of this template: {', '.join(axes) or 'none'}; an imported macro sees "
                "them only with '{% import … with context %}'",
            ) from None
        except _TEMPLATE_MISTAKES as error:
            where = self._where_raised(error.__traceback__) or (file, 1)
            raise ShaderError(
                f"{type(error).__name__}: {error} [{name}]", template=where[0], line=where[1]
            ) from None
        return self._finish(marked, file, name)

    def _finish(self, marked: str, file: str, name: str) -> Rendered:
        declared = self._current
        body: list[str] = []
        origin: list[tuple[str, int]] = []
        here = (file, 1)
        for raw in marked.split("\n"):
            found = self._cut.get(raw)
            if found is None:
                found = self._cut[raw] = self._cut_line(raw)
            line, place, directive = found
            here = place or here
            if directive:
                raise ShaderError(
                    f"'#{directive}' is written by the generator [{name}]",
                    template=here[0],
                    line=here[1],
                    hint="use {{ extension('GL_…') }}"
                    if directive == "extension"
                    else "take the line out",
                )
            if line or (body and body[-1]):
                body.append(line)
                origin.append(here)
        while body and not body[-1]:
            body.pop()
            origin.pop()
        head = [f"#version {GLSL_VERSION}"]
        head_lines = [(file, 1)]
        for extension in sorted(declared.extensions):
            head.append(f"#extension {extension} : require")
            head_lines.append(declared.extensions[extension])
        if declared.local_size is None:
            raise ShaderError(
                f"the template declares no workgroup size [{name}]",
                template=file,
                line=1,
                hint="add {{ local_size(64) }}",
            )
        if not declared.bindings:
            raise ShaderError(f"the template declares no tensor [{name}]", template=file, line=1)
        text = "\n".join([*head, *body]) + "\n"
        return Rendered(text, (*head_lines, *origin), declared)

    def _cut_line(self, raw: str) -> tuple[str, tuple[str, int] | None, str | None]:
        """Return a line without its marks, its place, and a forbidden directive, if any."""
        line, *marks = raw.split(_MARK_BEGIN)
        place = None
        for mark in marks:
            where, _, text = mark.partition(_MARK_END)
            if not line.strip():  # only marks before the first word give the origin of the line
                number, _, source_line = where.partition(":")
                place = (self._files[int(number)], int(source_line))
            line += text
        directive = _DIRECTIVE.match(line)
        return line.rstrip(), place, directive.group(1) if directive else None

    # --- places ----------------------------------------------------------------------------------

    def _where(self) -> tuple[str, int]:
        """The template line being executed right now, seen from a helper."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            place = _place_of(frame, frame.f_lineno)
            if place:
                return place
            frame = frame.f_back
        return ("<template>", 1)

    def _where_raised(self, traceback: TracebackType | None) -> tuple[str, int] | None:
        """The innermost template line of a traceback (Jinja has inserted template lines)."""
        place = None
        while traceback is not None:
            filename = Path(traceback.tb_frame.f_code.co_filename)
            for folder in self.folders:
                if filename.suffix == ".j2" and filename.is_relative_to(folder):
                    place = (filename.relative_to(folder).as_posix(), traceback.tb_lineno)
            traceback = traceback.tb_next
        return place


def _place_of(frame: FrameType, lineno: int) -> tuple[str, int] | None:
    template = frame.f_globals.get("__jinja_template__")
    return _place_in(template, lineno) if template is not None else None


@functools.lru_cache(maxsize=4096)
def _place_in(template: jinja2.Template, lineno: int) -> tuple[str, int]:
    return (template.name or "<template>", template.get_corresponding_lineno(lineno))


def _clean(value: Any) -> Any:
    """Remove the marks from a string that a macro has rendered."""
    return _MARK.sub("", value) if isinstance(value, str) else value


def _in_variant(error: ShaderError, name: str) -> ShaderError:
    """Return the error with the variant's name in its message."""
    prefix = f"{error.template}:{error.line}: "
    message = error.message.removeprefix(prefix)
    return ShaderError(
        f"{message} [{name}]", template=error.template, line=error.line, hint=error.hint
    )
