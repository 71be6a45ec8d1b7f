"""The wheel contains everything that the package needs at run time."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import setuptools

if sys.version_info < (3, 11):
    pytest.skip("the standard library reads TOML from Python 3.11 on", allow_module_level=True)

import tomllib

from vkmnn.errors import page

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("vkmnn", "vkmnn_suite")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_data_file_is_in_the_wheel(pyproject):
    """setuptools includes only the data files that pyproject.toml names."""
    patterns = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, globs in pyproject["tool"]["setuptools"]["package-data"].items()
        for pattern in globs
    ]
    left_out = [
        name
        for path in sorted((ROOT / "vkmnn").rglob("*"))
        if path.is_file() and path.suffix not in (".py", ".pyc", ".md")
        for name in [path.relative_to(ROOT).as_posix()]
        if not any(fnmatch(name, pattern) for pattern in patterns)
    ]
    assert not left_out


def test_every_python_folder_is_a_package():
    """setuptools finds only folders with an __init__.py."""
    folders = {path.parent for root in PACKAGES for path in (ROOT / root).rglob("*.py")}
    assert not [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()]


def test_console_script_exists(pyproject):
    module, _, function = pyproject["project"]["scripts"]["vkmnn"].partition(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))


def test_version_is_the_packages_version(pyproject):
    import vkmnn

    assert vkmnn.__version__ == pyproject["project"]["version"]
    try:
        installed = metadata.version("vkmnn")
    except metadata.PackageNotFoundError:
        pytest.skip("vkmnn is not installed, only on the path")
    assert installed == vkmnn.__version__


def test_the_suite_is_a_distribution_of_the_same_version(pyproject):
    """Its pyproject.toml is in the package itself, so setuptools cannot find the packages."""
    suite = tomllib.loads((ROOT / "vkmnn_suite" / "pyproject.toml").read_text("utf-8"))
    version = pyproject["project"]["version"]
    assert suite["project"]["version"] == version
    assert f"vkmnn[codegen]=={version}" in suite["project"]["dependencies"]
    folders = {path.parent for path in (ROOT / "vkmnn_suite").rglob("*.py")}
    names = [".".join(folder.relative_to(ROOT).parts) for folder in sorted(folders)]
    assert suite["tool"]["setuptools"]["packages"] == [n for n in names if "build" not in n]


def test_the_wheel_of_vkmnn_has_no_part_of_the_suite(pyproject):
    found = pyproject["tool"]["setuptools"]["packages"]["find"]
    packages = setuptools.find_packages(str(ROOT), include=found["include"])
    assert "vkmnn.testing" in packages
    assert [name for name in packages if name.startswith("vkmnn_suite")] == []


def test_every_extra_that_tasks_installs_exists(pyproject):
    extras = set(pyproject["project"]["optional-dependencies"])
    assert {"codegen", "test", "lint", "dev", "networks"} <= extras


def test_sandboxes_of_templates_hold(pyproject):
    """Before 3.1.6, templates left jinja2's sandbox (CVE-2024-56326, CVE-2025-27516)."""
    extras = pyproject["project"]["optional-dependencies"].values()
    found = {one for extra in extras for one in extra if one.startswith("jinja2")}
    assert found == {"jinja2>=3.1.6"}


def test_pages_that_messages_name_are_there_and_in_the_wheel(tmp_path, monkeypatch):
    """A message gives the path of a page, never "docs/…", which who installs a wheel has not."""
    named, typed = set(), []
    for path in (ROOT / "vkmnn").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        doc = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "page":
                named |= {name.value for name in node.args if isinstance(name, ast.Constant)}
            text = node.value if isinstance(node, ast.Constant) and id(node) not in doc else None
            if isinstance(text, str) and re.search(r"(?<!/)docs/[\w/-]+\.md", text):
                typed.append((path.name, node.lineno, text))
    assert typed == []
    assert len(named) > 4
    assert [name for name in named if not Path(page(name)).is_file()] == []
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: None)
    runpy.run_path(str(ROOT / "setup.py"))["add_pages"](tmp_path)
    assert [name for name in named if not (tmp_path / f"vkmnn/docs/{name}.md").is_file()] == []


def test_kompute_has_no_extra_and_its_page_says_why(pyproject):
    """An extra would install a `kp` that computes with wrong data."""
    extras = pyproject["project"]["optional-dependencies"]
    assert [
        name for name, packages in extras.items() if any(p.startswith("kp") for p in packages)
    ] == []
    text = (ROOT / "docs" / "kompute.md").read_text("utf-8")
    assert "Why there is no extra" in text
    assert "Images" in text
