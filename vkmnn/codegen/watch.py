"""`watch`: build on save, then run the tests of the changed variants.

Polls the content of the files. That needs no package, works on every file system (including network
mounts and containers) and with every editor's way of saving; all templates together are read in a
few milliseconds.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from vkmnn.codegen.browse import Settings
from vkmnn.codegen.build import build
from vkmnn.codegen.cache import Cache
from vkmnn.codegen.compiler import Compiler
from vkmnn.codegen.compilers import find_compiler
from vkmnn.codegen.console import fail, out, print_changes, print_errors
from vkmnn.codegen.failures import raise_all
from vkmnn.codegen.outputs import write
from vkmnn.codegen.places import BUILTIN_FOLDER, MACRO_FILE, SHADERS, TEMPLATE_SUFFIX
from vkmnn.codegen.report import Changes
from vkmnn.codegen.variants import closest
from vkmnn.errors import ShaderError

_SETTLE = 0.05  # seconds in which nothing may change: editors write in several steps
_SHOWN_CHANGES = 12
_SUITE = SHADERS.parent / "testing" / "suite.py"
# The suite's plug-in by its module: its entry point exists only if vkmnn is installed.
_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:vkmnn", "-p", "vkmnn.testing.pytest_plugin")
_PATIENCE = 5.0  # seconds for a test run to end when interrupted


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one check of the files.

    Attributes:
        files: the files that are new, changed or gone since the last look.
        compiled: the variants that had to be compiled.
        changes: changes of the outputs; None if the build failed.
        error: why it failed.
        seconds: how long it took.
    """

    files: tuple[str, ...]
    compiled: tuple[str, ...]
    changes: Changes | None
    error: ShaderError | None
    seconds: float


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return the digests of everything that a build of `folder` reads."""
    found: dict[str, bytes] = {}
    for root in {folder.resolve(), BUILTIN_FOLDER}:
        for path in sorted([*root.rglob("*.j2"), root / MACRO_FILE]):
            try:
                data = path.read_bytes()
            except FileNotFoundError:  # being replaced just now
                continue
            found[str(path)] = hashlib.sha256(data).digest()
    return found


class Watch:
    """Builds a folder again whenever the content of a file that it reads has changed."""

    def __init__(
        self,
        settings: Settings,
        compiler: Compiler,
        cache: Cache,
        only: frozenset[str] = frozenset(),
    ) -> None:
        self._settings = settings
        self._compiler = compiler
        self._cache = cache
        self._only = only
        self._seen: dict[str, bytes] = {}

    def step(self, sleep: Callable[[float], object] = time.sleep) -> Step | None:
        """Check the files; build and write if they changed, else return None."""
        now = snapshot(self._settings.templates)
        if now == self._seen:
            return None
        while True:
            sleep(_SETTLE)
            later = snapshot(self._settings.templates)
            if later == now:
                break
            now = later
        files = sorted(p for p in now.keys() | self._seen.keys() if now.get(p) != self._seen.get(p))
        names = tuple(Path(path).name for path in files) if self._seen else ()
        self._seen = now
        start = time.monotonic()
        try:
            built = build(
                self._settings.templates,
                self._compiler,
                cache=self._cache,
                jobs=self._settings.jobs,
                only=self._only,
            )
            changes = write(built, self._settings.shaders, self._cache)
        except ShaderError as error:
            return Step(names, (), None, error, time.monotonic() - start)
        return Step(names, tuple(built.compiled), changes, None, time.monotonic() - start)


def command_for(variants: Iterable[str], tests: str | None, shaders: Path) -> list[str] | None:
    """Return the command that tests these variants; None when nothing is to be run.

    Args:
        variants: names of the changed variants.
        tests: pytest's arguments; None for the shader regression suite with these variants.
        shaders: the folder that is watched; the suite knows the built-in one only.
    """
    names = sorted(variants)
    pytest = [sys.executable, "-m", "pytest", "-q", "-x"]
    if tests is not None:
        return [*pytest, *shlex.split(tests)] if names and tests else None
    if not names or shaders.resolve() != SHADERS:
        return None
    chosen = [argument for name in names for argument in ("--vkmnn-kernel", name)]
    return [*pytest, *_PLUGINS, str(_SUITE), "--vkmnn-shaders", *chosen]


class _Tests:
    """The test run in a child process; its output goes to ours."""

    def __init__(self, tests: str | None, shaders: Path) -> None:
        self._tests = tests
        self._shaders = shaders
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: set[str] = set()  # changed since tests last passed

    def changed(self, changes: Changes) -> None:
        """Start over with the variants that changed now or did not pass before."""
        self.stop()
        gone = set(changes.names("removed"))
        self._pending |= {row.variant for row in changes.rows}
        self._pending -= gone
        command = command_for(self._pending, self._tests, self._shaders)
        if command:
            shown = [word for word in command[1:] if word != "--vkmnn-kernel"]
            text = shlex.join(shown)
            out.print(f"[bold]tests[/] {escape(text[:300])}{'…' if len(text) > 300 else ''}")
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def look(self) -> None:
        """Print how the run ended, once it has."""
        if self._process is None or self._process.poll() is None:
            return
        if self._process.returncode == 0:
            out.print("[bold green]tests passed[/]")
            self._pending.clear()
        else:
            out.print(f"[bold red]tests failed[/] (status {self._process.returncode})")
        self._process = None
        _print_waiting()

    @property
    def running(self) -> bool:
        """Whether a run is under way."""
        return self._process is not None

    def stop(self) -> None:
        """End a run that is out of date."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _known(names: frozenset[str], folder: Path) -> None:
    """Refuse names of no template: one that is only broken will be mended while we watch."""
    known = {path.name.removesuffix(TEMPLATE_SUFFIX) for path in folder.glob(f"*{TEMPLATE_SUFFIX}")}
    raise_all(
        [
            ShaderError(f"there is no template '{name}'", hint=closest(name, known))
            for name in sorted(names - known)
        ]
    )


def _print_waiting() -> None:
    out.print("[dim]watching; Ctrl-C ends[/]")


def _print_step(step: Step) -> None:
    if out.is_terminal:
        out.clear()
    if step.files:
        out.print(f"[bold]saved[/] {escape(', '.join(step.files))}", highlight=False)
    if step.error is not None:
        print_errors(step.error)
    elif step.changes is not None:
        print_changes(step.changes, _SHOWN_CHANGES)
        out.print(f"{len(step.compiled)} compiled, {step.seconds:.1f} s", highlight=False)


def watch(
    ctx: typer.Context,
    templates: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEMPLATE…]", help="Templates to build; all by default."),
    ] = None,
    tests: Annotated[
        str | None,
        typer.Option(
            "--tests",
            metavar="ARGUMENTS",
            help="Arguments of pytest to run after a build, '' for no tests; "
            "default: the shader regression suite on the variants that changed.",
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.01, help="Seconds between two checks.")
    ] = 0.3,
) -> None:
    """Build on every save of a template, include or macro.json, and test the changed variants."""
    settings: Settings = ctx.obj
    only = frozenset(name.removesuffix(TEMPLATE_SUFFIX) for name in templates or ())
    try:
        _known(only, settings.templates)
        compiler = find_compiler(settings.glslang)
    except ShaderError as error:
        fail(error)
    watching = Watch(settings, compiler, settings.cache, only)
    running = _Tests(tests, settings.shaders)
    try:
        while True:
            step = watching.step()
            if step is not None:
                running.stop()
                _print_step(step)
                if step.changes is not None:
                    running.changed(step.changes)
                if not running.running:
                    _print_waiting()
            running.look()
            time.sleep(interval)
    except KeyboardInterrupt:
        running.stop()
        out.print("stopped")
