"""Mutation tests of kernels: does a case fail when one operator of a shader is wrong?

A mutant is a variant's rendered GLSL with one operator, constant or statement changed. It replaces
the variant in the variant's cases (DeMillo, Lipton and Sayward, "Hints on test data selection",
1978). Mutants that loop forever or crash the driver count as caught: a child process runs them.
"""

from __future__ import annotations

import functools
import multiprocessing
import random
import re
import runpy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatch
from hashlib import sha256
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import NamedTuple

from vkmnn.codegen.browse import find_variant
from vkmnn.codegen.compiler import CompileError, Compiler
from vkmnn.codegen.compilers import find_compiler
from vkmnn.codegen.features import Target, target_for
from vkmnn.codegen.render import Rendered, Renderer
from vkmnn.codegen.variants import Variant as Source
from vkmnn.errors import DeviceLostError, VkmnnError
from vkmnn.ir import Array
from vkmnn.runtime.device import Device, open_device
from vkmnn.runtime.shader import Shader
from vkmnn.testing.case import Case, Variant, variants
from vkmnn.testing.emulation import bench_for
from vkmnn.testing.runner import Picks, reach, run_case
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn_suite import cases as builtin_cases
from vkmnn_suite.equivalents import EQUIVALENTS, UNSEEN, Equivalent

FUNCTION_LIBRARIES = {
    "include/activation.glsl.j2": ("binary_map_*_f32_*",),
    "include/common.glsl.j2": ("raster_*", "unary_*"),
    "include/divide.glsl.j2": ("raster_*",),
    "include/erf.glsl.j2": ("binary_map_*_f32_*",),
    "include/math.glsl.j2": ("unary_*",),
    "include/power.glsl.j2": ("unary_*",),
    "include/special.glsl.j2": ("binary_map_*", "unary_*"),
}
"""Includes of functions that many kernels share, and the variants whose cases test them."""

MUTANT_SECONDS = 30.0
"""Seconds after which a mutant counts as hanging."""

_TOKEN = re.compile(
    r"(?P<comment>//.*)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)"
    r"|(?P<integer>0[xX][0-9a-fA-F]+|\d+)u?"
    r"|(?P<operator>\+\+|--|<<=|>>=|[-+*/%&|^]=|<<|>>|<=|>=|==|!=|&&|\|\||\^\^|[-+*/%<>=!&|^~?])"
    r"|(?P<other>.)"
)
_OPERATORS = {
    "+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "<": "<=", "<=": "<", ">": ">=", ">=": ">",
    "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=",
    "++": "--", "--": "++", "&": "|", "|": "&", "^": "|", "<<": ">>", ">>": "<<", ">>=": "<<=",
    "<<=": ">>=", "|=": "&=", "&=": "|=", "!": "",
}  # fmt: skip
_FUNCTIONS = {
    "min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor",
    "lessThan": "lessThanEqual", "lessThanEqual": "lessThan", "greaterThan": "greaterThanEqual",
    "greaterThanEqual": "greaterThan", "equal": "notEqual", "notEqual": "equal", "true": "false",
    "false": "true",
}  # fmt: skip
_SIGNATURE = re.compile(r"[A-Za-z]\w* ([a-z]\w*)\([^;]*$")
# A statement that may be removed: an assignment or a call, on a line of its own.
_STATEMENT = re.compile(r"\s*(?!return\b|break\b|continue\b|case\b|default\b|const\b)"
                        r"(?:[A-Za-z_][\w.]*(?:\[[^\]]*\])*\s*(?:[-+*/%&|^]|<<|>>)?=[^=]|"
                        r"\+\+|--|[A-Za-z_]\w*\().*;\s*")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a rendered variant.

    `file` and `line` are the template's, `before` the GLSL line (counted from 0 as `number`) and
    `after` its replacement; `change` describes it briefly.
    """

    number: int
    file: str
    line: int
    before: str
    after: str
    change: str

    def applied(self, text: str) -> str:
        """Return the variant's GLSL with the change."""
        lines = text.split("\n")
        lines[self.number] = self.after
        return "\n".join(lines)


class Fate(Enum):
    """The outcome of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    INVALID = "does not compile"
    SAME = "same SPIR-V"
    KNOWN = "known to be equivalent"
    UNSEEN = "not to be seen on a CPU device"


class Outcome(NamedTuple):
    """A mutant's outcome, and the case that caught it or the reason why it cannot be caught."""

    mutant: Mutant
    fate: Fate
    why: str


def mutants(rendered: Rendered, name: str) -> Iterator[Mutant]:
    """Yield every change of the code of the variant called `name`.

    Declarations, preprocessor lines, comments and functions that are never called are not changed,
    nor are the includes of `FUNCTION_LIBRARIES` unless the variant is one of those that test them.
    """
    block = False
    dead = _dead_lines(rendered.text)
    for number, (text, (file, line)) in enumerate(
        zip(rendered.text.split("\n"), rendered.lines, strict=False)
    ):
        declares = text.startswith(("layout", "struct", "shared", "spirv_instruction", "#"))
        if block or declares:
            block = not text.startswith("}") and (block or not text.rstrip().endswith((";", ")")))
            block = block and not text.startswith("#")
            continue
        testing = FUNCTION_LIBRARIES.get(file, ("*",))
        if number in dead or not any(fnmatch(name, pattern) for pattern in testing):
            continue
        for start, end, new, change in _changes(text):
            yield Mutant(number, file, line, text, text[:start] + new + text[end:], change)


def _dead_lines(text: str) -> set[int]:
    """Return the lines of functions that `main` does not reach."""
    bodies: dict[str, list[int]] = {}
    name = ""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        signature = _SIGNATURE.match(line)
        if signature:
            name = signature.group(1)
        if name:
            bodies.setdefault(name, []).append(number)
        if line.startswith("}"):
            name = ""
    words = {
        name: {word for number in numbers for word in re.findall(r"\w+", lines[number])}
        for name, numbers in bodies.items()
    }
    # Macros and declarations may call functions as well.
    inside = {number for numbers in bodies.values() for number in numbers}
    outside = " ".join(line for number, line in enumerate(lines) if number not in inside)
    alive, todo = set(), {"main", *re.findall(r"\w+", outside)} & bodies.keys()
    while todo:
        alive |= todo
        todo = {word for name in todo for word in words[name]} & bodies.keys() - alive
    return {number for name in bodies.keys() - alive for number in bodies[name]}


def _changes(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield (from, to, new text, description) of every change of a line."""
    if _STATEMENT.fullmatch(text.split("//")[0]):
        yield 0, len(text), ";", "statement removed"
    signature = _SIGNATURE.match(text)
    for token in _TOKEN.finditer(text):
        kind, old = token.lastgroup, token.group()
        if kind == "comment" or signature:
            return
        for new in _replacements(str(kind), old):
            yield token.start(), token.end(), new, f"{old} → {new or 'nothing'}"


def _replacements(kind: str, old: str) -> list[str]:
    if kind == "operator":
        return [_OPERATORS[old]] if old in _OPERATORS else []
    if kind == "name":
        return [_FUNCTIONS[old]] if old in _FUNCTIONS else []
    if kind == "float":
        return [repr(float(old) + 1.0)]
    if kind == "integer":
        digits = old.rstrip("u")
        suffix = old[len(digits) :]
        value = int(digits, 0)
        return [f"{value + step}{suffix}" for step in (1, -1) if value + step >= 0]
    return []


def sample(found: Sequence[Mutant], count: int, seed: int = 0) -> list[Mutant]:
    """Return at most `count` of the mutants, always the same ones, in order."""
    if count >= len(found):
        return list(found)
    # Not for secrets: the numbers must be the same everywhere.
    chosen = random.Random(seed).sample(range(len(found)), count)
    return [found[index] for index in sorted(chosen)]


# --- one process ----------------------------------------------------------------------------------


def load_case_files(files: Sequence[str]) -> None:
    """Run files that register the cases of a plug-in's shaders, in this process."""
    for file in files:
        runpy.run_path(file)


def find(name: str) -> Variant:
    """Return the variant called `name`, with the cases of all templates loaded.

    Raises:
        VkmnnError: there is none.
    """
    builtin_cases.load_all()
    found = next((variant for variant in variants() if variant.name == name), None)
    if found is None:
        raise VkmnnError(f"there is no variant '{name}'", hint="`python -m vkmnn.codegen list`")
    return found


@functools.cache
def _compiler() -> Compiler:
    return find_compiler()


def rendered_source(variant: Variant) -> tuple[Source, Rendered]:
    """Return a variant of the current template, and its GLSL."""
    folder = variant.library.folder / "glsl"
    source = find_variant(folder, variant.name)
    return source, Renderer(folder).render(source)


def representatives(device: Device | None = None) -> list[Variant]:
    """Return one variant of every template: the one that renders most of its lines.

    Args:
        device: is used for the variants that it can run without emulation; templates without such a
            variant are left out.
    """
    builtin_cases.load_all()
    renderers: dict[object, Renderer] = {}
    best: dict[str, tuple[tuple[int, int], Variant]] = {}
    for variant in variants():
        if device and not _runs_unemulated(variant, device):
            continue
        folder = variant.library.folder / "glsl"
        renderer = renderers.setdefault(folder, Renderer(folder))
        file = f"{variant.template}.comp.j2"
        rendered = renderer.render_file(file, dict(variant.axes), variant.name)
        own = {line for name, line in rendered.lines if name == file}
        rank = (len(own), -len(rendered.text))
        if variant.template not in best or rank > best[variant.template][0]:
            best[variant.template] = rank, variant
    return [variant for _, variant in best.values()]


def _runs_unemulated(variant: Variant, device: Device) -> bool:
    bench = bench_for(variant, device)
    return not isinstance(bench, str) and not bench.emulated


class Judge:
    """Runs mutants of one variant on a device, in this process.

    Raises:
        AssertionError: the variant itself fails one of its cases.
        VkmnnError: the device cannot run it, or its template does not compile.
    """

    def __init__(self, variant: Variant, device: Device) -> None:
        bench = bench_for(variant, device)
        if isinstance(bench, str) or bench.emulated:
            raise VkmnnError(
                f"{variant} cannot be mutated on {device.info.name}: it does not run there as it is"
            )
        self._variant, self._device = variant, bench.device
        self._source, self._rendered = rendered_source(variant)
        self._target: Target = target_for(self._source.requires)
        self._cases: list[tuple[Case, Picks, list[Array] | None]] = []
        for case, picks in reach(variant, self._device):
            run_case(case, self._device, picks)
            self._cases.append((case, picks, None if case.raises else case.expected()))

    @functools.cached_property
    def _optimized(self) -> bytes:
        return self._compile(self._rendered.text, "-O")

    def _compile(self, text: str, optimize: str) -> bytes:
        return _compiler().compile(text, self._target, optimize).spirv

    def judge(self, mutant: Mutant) -> Outcome:
        """Compile a mutant and run the cases until one fails.

        Raises:
            DeviceLostError: the device hangs and cannot be used any more.
        """
        known = self._known(EQUIVALENTS, mutant)
        if known:
            return Outcome(mutant, Fate.KNOWN, known)
        text = mutant.applied(self._rendered.text)
        try:
            spirv = self._compile(text, "none")
        except CompileError:
            return Outcome(mutant, Fate.INVALID, "")
        original = self._variant.library.load(self._variant.name)
        broken = replace(original, digest=sha256(spirv).hexdigest(), spirv=lambda: spirv)
        why = self._failure(broken)
        if why:
            return Outcome(mutant, Fate.CAUGHT, why)
        # Optimising takes longer than most mutants live: only if it may explain something.
        if self._compile(text, "-O") == self._optimized:
            return Outcome(mutant, Fate.SAME, "")
        unseen = "" if is_gpu(self._device.info) else self._known(UNSEEN, mutant)
        return Outcome(mutant, Fate.UNSEEN if unseen else Fate.SURVIVED, unseen)

    def _known(self, table: Sequence[Equivalent], mutant: Mutant) -> str:
        """Return the reason of the entry that fits a mutant; "" when there is none."""
        change = self._variant.name, mutant.file, mutant.before, mutant.after
        return next((known.reason for known in table if known.fits(*change)), "")

    def _failure(self, broken: Shader) -> str:
        """Return the case that detects a broken shader; "" if none does."""
        for index, (case, picks, expected) in enumerate(self._cases):
            try:
                run_case(case, self._device, picks, {broken.name: broken}, expected)
            except DeviceLostError:
                raise
            except Exception as error:  # noqa: BLE001 - a mutant may upset anything
                # The case that caught one mutant will probably catch the next: try it first.
                self._cases.insert(0, self._cases.pop(index))
                lines = str(error).strip().splitlines() or [type(error).__name__]
                return f"{case}: {lines[0]}"
        return ""


# --- a child process ------------------------------------------------------------------------------


def _serve(name: str, selector: str, channel: Connection, files: Sequence[str]) -> None:
    """Judge the mutants received from the channel; the first answer reports errors."""
    try:
        load_case_files(files)
        device = open_device(selector, validation=True)
        judge = Judge(find(name), device)
    except Exception as error:  # noqa: BLE001 - reported by the parent
        channel.send(f"{type(error).__name__}: {error}")
        return
    channel.send("")
    while True:
        mutant = channel.recv()
        if mutant is None:
            return
        channel.send(judge.judge(mutant))


class _Worker:
    """A child process with a judge."""

    def __init__(self, name: str, selector: str, files: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(
            target=_serve, args=(name, selector, theirs, files), daemon=True
        )
        self._process.start()
        theirs.close()
        failure = self._channel.recv()
        if failure:
            raise VkmnnError(f"{name}: {failure}")

    def judge(self, mutant: Mutant) -> Outcome | str:
        """Return the outcome, or how the process died over it."""
        self._channel.send(mutant)
        if not self._channel.poll(MUTANT_SECONDS):
            return f"nothing for {MUTANT_SECONDS:g} s"
        try:
            outcome: Outcome = self._channel.recv()
        except EOFError:
            return "the process died"
        return outcome

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._channel.close()


def run_mutants(
    variant: Variant,
    chosen: Sequence[Mutant],
    device: str = "auto",
    progress: Callable[[Outcome], None] | None = None,
    files: Sequence[str] = (),
) -> list[Outcome]:
    """Judge mutants of a variant in child processes, which are replaced when they die or hang.

    Args:
        variant: one with cases that pass.
        chosen: mutants of it.
        device: selector of the device.
        progress: called after each.
        files: a plug-in's files of cases.

    Raises:
        VkmnnError: the variant itself does not pass its cases.
    """
    outcomes = []
    worker = None
    try:
        for mutant in chosen:
            worker = worker or _Worker(variant.name, device, files)
            outcome = worker.judge(mutant)
            if isinstance(outcome, str):
                worker.close()
                worker = None
                outcome = Outcome(mutant, Fate.CAUGHT, outcome)
            outcomes.append(outcome)
            if progress:
                progress(outcome)
    finally:
        if worker:
            worker.close()
    return outcomes


def caught_part(outcomes: Sequence[Outcome]) -> float:
    """Return how many of the mutants that can be caught are, from 0 to 1."""
    counted = [outcome for outcome in outcomes if outcome.fate in (Fate.CAUGHT, Fate.SURVIVED)]
    caught = sum(outcome.fate is Fate.CAUGHT for outcome in counted)
    return caught / len(counted) if counted else 1.0


__all__ = [
    "Equivalent", "Fate", "Mutant", "Outcome", "caught_part", "find", "mutants", "rendered_source",
    "representatives", "run_mutants", "sample",
]  # fmt: skip
