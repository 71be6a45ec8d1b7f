"""The rooms of `vkmnn/vulkan`: executions are operators, and no two modules need each other."""

from __future__ import annotations

import graphlib
from pathlib import Path

import pytest

from tests.unit.test_imports import PACKAGE, imports_of, module_name
from vkmnn.vulkan import executions
from vkmnn.vulkan.execution import EXECUTIONS
from vkmnn.vulkan.gemm import families
from vkmnn.vulkan.gemm.family import FAMILIES

VULKAN = PACKAGE / "vulkan"


def modules(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]


@pytest.mark.parametrize("path", modules(VULKAN / "executions"), ids=lambda path: path.stem)
def test_executions_are_operators(path: Path) -> None:
    executions.load_all()
    homes = {execution.__module__ for execution in map(EXECUTIONS.get, EXECUTIONS) if execution}
    assert module_name(path) in homes, "what several operators share has no place here"


def test_the_table_of_executions_is_right() -> None:
    """They are imported by it, when an op of theirs is planned."""
    assert list(executions.MODULES) == [path.stem for path in modules(VULKAN / "executions")]
    executions.load_all()
    found: dict[str, set[str]] = {}
    for op_type in EXECUTIONS:
        home, _, module = EXECUTIONS[op_type].__module__.rpartition(".")
        if home == executions.__name__:
            found.setdefault(module, set()).add(op_type)
    assert {module: set(names) for module, names in executions.MODULES.items()} == found


@pytest.mark.parametrize("path", modules(VULKAN / "gemm" / "families"), ids=lambda path: path.stem)
def test_every_module_of_families_registers_one(path: Path) -> None:
    families.load_all()
    homes = {family.__module__ for family in FAMILIES.values()}
    assert module_name(path) in homes


def test_no_two_modules_need_each_other() -> None:
    """What only type checkers import is part of a circle, too."""
    known = {module_name(path) for path in VULKAN.rglob("*.py")}
    needs: dict[str, set[str]] = {}
    for path in VULKAN.rglob("*.py"):
        name = module_name(path)
        found = imports_of(path.read_text("utf-8"), name, is_package=path.stem == "__init__")
        targets = [each.target for each in found]
        # `from package import name` means a module or something in one.
        needs[name] = {t if t in known else t.rpartition(".")[0] for t in targets} & known - {name}
    tuple(graphlib.TopologicalSorter(needs).static_order())  # raises CycleError
