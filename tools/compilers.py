"""The task `compilers`: compiles every kernel for GPUs that this machine lacks.

Mesa's driver for Radeons can open a device without hardware ("null hardware"), with its real
compiler. The compiler's statistics of each kernel (registers, spills, occupancy, instructions) are
compared with recorded ones, so that a change of a template shows what it costs.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import drivers, environment, page, process, vulkan
from tools.process import CannotError, say

PAGE = process.ROOT / "docs" / "gpu-compilers.md"
RECORDS = process.ROOT / "benchmarks" / "compilers"
BEGIN = "<!-- written by `tasks.py compilers --record`; do not edit -->"
END = "<!-- end -->"
KEPT = ("registers", "shared", "waves", "instructions", "cycles")
RISE = 0.10
"""Share by which a kernel's instructions may rise without a new record."""
SHOWN = 30
ALL = ".*"

Figures = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Compiler:
    """A GPU to compile for.

    Attributes:
        family: RADV's name of its family.
        what: its architecture and examples.
        driver: the driver whose compiler runs.
    """

    family: str
    what: str
    driver: str = "mesa-25"


COMPILERS = {
    one.family: one
    for one in (
        Compiler("navi21", "RDNA 2: Radeon RX 6800, 6900"),
        Compiler("navi31", "RDNA 3: Radeon RX 7900"),
        Compiler("gfx1201", "RDNA 4: Radeon RX 9070"),
    )
}


def _compiled(compiler: Compiler, python: Path, pattern: str) -> dict[str, Any]:
    """Compile all kernels for one GPU; return the output of `tools.compiled_kernels`.

    Raises:
        CannotError: the driver is not available for this machine.
        TaskError: the driver does not open a device.
    """
    icd = drivers.radeon_icd(drivers.DRIVERS[compiler.driver])
    env = {
        "RADV_FORCE_FAMILY": compiler.family,
        "RADV_DEBUG": "shaderstats,nocache",
        "MESA_SHADER_CACHE_DISABLE": "1",
        "VK_DRIVER_FILES": str(icd),
        "VK_ICD_FILENAMES": str(icd),
    }
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "compiled.json")
        command = [python, "-m", "tools.compiled_kernels", output, pattern]
        with process.step(f"compiling the kernels for {compiler.family} ({compiler.what})"):
            process.run_quiet(command, f"the driver for {compiler.family} does not open", env)
        made: dict[str, Any] = json.loads(output.read_text("utf-8"))
    return made


# --- records -------------------------------------------------------------------------------------


def load(path: Path) -> tuple[str, dict[str, dict[str, int]]]:
    """Return the recorded driver and figures; "" and none if there is no record."""
    if not path.is_file():
        return "", {}
    head, *lines = path.read_text("utf-8").splitlines()
    rows = csv.DictReader(lines, delimiter="\t")
    return head.removeprefix("# "), {
        row["kernel"]: {name: int(row[name]) for name in KEPT} for row in rows
    }


def save(path: Path, driver: str, kernels: Figures) -> None:
    """Record the figures of all kernels, a line each."""
    lines = [f"# {driver}", "\t".join(("kernel", *KEPT))]
    for name, figures in sorted(kernels.items()):
        lines.append("\t".join((name, *(str(figures[one]) for one in KEPT))))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")


def changes(before: Figures, after: Figures) -> list[tuple[str, ...]]:
    """Return the kernels whose figures differ, those with the most new instructions first."""

    def risen(name: str) -> float:
        return after[name]["instructions"] / max(before[name]["instructions"], 1)

    changed = [
        name
        for name in before.keys() & after.keys()
        if any(before[name][one] != after[name][one] for one in KEPT)
    ]
    return [
        (name, *(_arrow(before[name][one], after[name][one]) for one in KEPT))
        for name in sorted(changed, key=lambda name: (-risen(name), name))
    ]


def _arrow(before: int, after: int) -> str:
    return str(after) if before == after else f"{before} -> {after}"


def faults(made: Mapping[str, Any], before: Figures) -> list[str]:
    """Return messages about kernels that fail to compile, spill, or have become much longer."""
    found = [f"{name} does not compile: {why}" for name, why in made["failed"].items()]
    for name, figures in made["kernels"].items():
        if figures["spilled"] or figures["scratch"]:
            found.append(
                f"{name} spills {figures['spilled']} registers "
                f"({figures['scratch']} bytes of scratch memory)"
            )
        was = before.get(name, figures)["instructions"]
        if figures["instructions"] > was * (1 + RISE) + 8:
            found.append(f"{name} has {figures['instructions']} instructions instead of {was}")
    return found


# --- the page ------------------------------------------------------------------------------------


def summary(compiler: Compiler, made: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one GPU as a row of the page's table."""
    kernels: Figures = made["kernels"]
    fewest = min((figures["waves"] for figures in kernels.values()), default=0)
    most = max(kernels, key=lambda name: (kernels[name]["registers"], name), default="")
    few = sum(figures["waves"] == fewest for figures in kernels.values())
    spilled = sum(bool(figures["spilled"]) for figures in kernels.values())
    return (
        compiler.family,
        compiler.what,
        made["driver"],
        str(len(kernels)),
        str(len(made["lacking"])),
        str(len(made["refused"])),
        str(spilled),
        f"{kernels[most]['registers'] if most else 0} (`{most}`)",
        f"{fewest} ({few})",
    )


_TITLES = (
    *("Family", "GPUs", "Driver", "Compiled", "Lack a feature", "Refused", "Spill"),
    *("Most registers", "Fewest subgroups a SIMD (kernels)"),
)


def record(rows: Sequence[Sequence[str]], path: Path = PAGE) -> None:
    """Write the table into the page; rows of other GPUs stay."""
    text = path.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    kept = {line.split("|")[1].strip(): line for line in table.strip().splitlines()[2:]}
    kept |= {row[0]: f"| {' | '.join(row)} |" for row in rows}
    lines = [f"| {' | '.join(_TITLES)} |", f"|{'---|' * len(_TITLES)}"]
    lines += [kept[name] for name in COMPILERS if name in kept]
    path.write_text("\n".join([before + BEGIN, "", *lines, "", END]) + after, "utf-8")


# --- the task ------------------------------------------------------------------------------------


def main(args: Sequence[str]) -> int:
    """Compile for the GPUs that are named, or for all; return the exit status."""
    parser = _parser()
    options = parser.parse_args(args)
    if options.record and options.only != ALL:
        parser.error("--record replaces the figures of all kernels; leave --only out")
    python = environment.prepare("codegen")
    vulkan.ensure_loader()
    if platform.machine() != "x86_64":
        raise CannotError("the drivers are available for x86-64 only")
    status, rows = 0, []
    for name in options.names or COMPILERS:
        compiler = COMPILERS[name]
        made = _compiled(compiler, python, options.only)
        rows.append(summary(compiler, made))
        path = RECORDS / f"{name}.tsv"
        driver, before = load(path)
        comparable = before if driver == made["driver"] else {}
        if driver and not comparable:
            say(f"{name}: recorded with {driver}, now {made['driver']}: only spills are checked")
        differences = changes(comparable, made["kernels"])
        if differences:
            print(page.columns([("kernel", *KEPT), *differences[:SHOWN]]), flush=True)
            say(f"{name}: {len(differences)} kernels differ from the record")
        new = made["kernels"].keys() - comparable.keys()
        if comparable and new and not options.record:
            say(f"{name}: {len(new)} kernels are not recorded yet")
        wrong = faults(made, {} if options.record else comparable)
        for line in wrong:
            say(f"{name}: {line}")
        if options.record:
            save(path, made["driver"], made["kernels"])
        elif wrong:
            say("python3 tasks.py compilers --record accepts longer kernels, but no spills")
        status = status or int(bool(wrong))
    print(page.columns([_TITLES, *rows]), flush=True)
    if options.record:
        record(rows)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tasks.py compilers",
        description="Compile every kernel for GPUs that are not here; see docs/gpu-compilers.md.",
    )
    parser.add_argument("names", nargs="*", choices=[*COMPILERS, []], metavar="FAMILY")
    parser.add_argument("--only", metavar="PATTERN", default=ALL, help="kernels, by a pattern")
    parser.add_argument("--record", action="store_true", help="record the figures")
    return parser
