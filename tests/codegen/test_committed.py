"""The shaders in the repository: up to date, valid, and consistent with their claims."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tomllib

from vkmnn.codegen import build as building
from vkmnn.codegen import outputs
from vkmnn.codegen.cache import Cache
from vkmnn.codegen.compiler import Compiler
from vkmnn.codegen.features import target_for
from vkmnn.codegen.reflect import reflect
from vkmnn.shaders.library import BUILTIN

SHADERS = BUILTIN.folder


@pytest.fixture(scope="module")
def built(compiler: Compiler) -> building.Built:
    """All built-in shaders, compiled unless they have been before."""
    return building.build(SHADERS / "glsl", compiler, cache=Cache.of(SHADERS))


@pytest.mark.soak
@pytest.mark.elsewhere("lock of the shaders")
def test_the_lock_is_up_to_date() -> None:
    diff = outputs.check(building.describe(SHADERS / "glsl"), SHADERS)
    assert diff == "", diff[:4000]


def test_the_compilers_are_pinned() -> None:
    """Shaders are compiled by the same compilers everywhere: from a checkout, and for a wheel."""
    project = tomllib.loads((SHADERS.parents[1] / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = {line for line in extras["codegen"] if not line.startswith("jinja2")}
    assert len(wanted) == 2
    assert all("==" in line for line in wanted)
    assert wanted < set(project["build-system"]["requires"])


def test_git_has_no_binaries() -> None:
    git = shutil.which("git")
    root = SHADERS.parents[1]
    if git is None or not (root / ".git").exists():
        pytest.skip("not a checkout")
    done = subprocess.run([git, "ls-files"], cwd=root, capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.splitlines() if "spv" in name] == []


# The newest environment that spirv-val of 2023 knows; modules for 1.1 must run there as well.
NEWEST = "vulkan1.3"
# Extensions that it does not know; the validator inside glslang has seen these modules.
UNKNOWN = frozenset({"bfloat16", "cooperative_matrix"})


def environments(entry: dict[str, Any]) -> list[str]:
    claimed: str = entry["target"].split()[0]
    return list(dict.fromkeys([claimed, NEWEST]))


@pytest.mark.soak
def test_valid_for_every_target_it_claims(built: building.Built, tmp_path: Path) -> None:
    program = shutil.which("spirv-val")
    if program is None:
        pytest.skip("spirv-val is not installed")

    def validate(name: str, environment: str) -> str:
        path = tmp_path / f"{name}.spv"
        done = subprocess.run(
            [program, "--target-env", environment, str(path)],
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        return f"{name}, {environment}: {done.stdout}{done.stderr}" if done.returncode else ""

    jobs = [
        (name, environment)
        for name, entry in built.variants.items()
        if not UNKNOWN & set(entry["requires"])
        for environment in environments(entry)
    ]
    assert len(jobs) > len(built.variants)
    for name, code in built.spirv.items():
        (tmp_path / f"{name}.spv").write_bytes(code)
    with ThreadPoolExecutor(2) as pool:
        found = [message for message in pool.map(lambda job: validate(*job), jobs) if message]
    assert not found, "\n".join(found)


@pytest.mark.soak  # each module is compared when it is compiled
def test_what_it_needs_is_what_it_says(built: building.Built) -> None:
    """The claims of the manifest, against the modules themselves."""
    for name, entry in built.variants.items():
        data = built.spirv[name]
        module = reflect(data)
        assert entry["target"] == str(target_for(frozenset(entry["requires"]))), name
        assert "spirv{}.{}".format(*module.version) == entry["target"].split()[1], name
        assert list(module.capabilities) == entry["capabilities"], name
        assert hashlib.sha256(data).hexdigest() == entry["spirv_sha256"], name


def test_pages_do_not_say_how_many_variants_there_are() -> None:
    """The report does, and is generated; elsewhere the number would soon be wrong."""
    root = SHADERS.parents[1]
    pages = [
        root / "README.md",
        *(root / "docs").rglob("*.md"),
        SHADERS.parent / "codegen/README.md",
    ]
    stated = re.compile(r"\b(\d{3,}) (?:kernel |shader )?variants|\bof (\d{3,})\. \|")
    found = {
        page.name: match[0] for page in pages for match in stated.finditer(page.read_text("utf-8"))
    }
    assert found == {}
