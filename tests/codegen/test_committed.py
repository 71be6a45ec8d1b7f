"""The shaders in the repository: up to date, valid, and what they claim."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tomllib
from packaging.requirements import Requirement

from vkmnn.codegen import build as building
from vkmnn.codegen import outputs
from vkmnn.codegen.compilers import Compiler
from vkmnn.codegen.features import target_for
from vkmnn.codegen.reflect import reflect

SHADERS = Path(building.__file__).resolve().parents[1] / "shaders"
MANIFEST = json.loads((SHADERS / "manifest.json").read_text(encoding="utf-8"))


@pytest.mark.soak  # and what `tasks.py codegen --check` says
def test_up_to_date(compiler: Compiler) -> None:
    diff, _ = outputs.check(building.build(SHADERS / "glsl", compiler), SHADERS)
    assert diff == "", diff[:4000]


def test_the_compiler_is_pinned(compiler: Compiler) -> None:
    """Who installs what tests need has the compiler that made the committed shaders."""
    text = (SHADERS.parents[1] / "pyproject.toml").read_text("utf-8")
    pins = [
        Requirement(line)
        for line in tomllib.loads(text)["project"]["optional-dependencies"]["test"]
        if line.startswith("slangpy")
    ]
    assert [[one.operator for one in pin.specifier] for pin in pins] == [["=="]]
    if pins[0].specifier.contains(metadata.version("slangpy")):
        assert compiler.identity == MANIFEST["compiler"]


# The newest environment that spirv-val of 2023 knows; what runs on 1.1 must run there, too.
NEWEST = "vulkan1.3"
# Extensions that it does not know; the validator inside glslang has seen these modules.
UNKNOWN = frozenset({"bfloat16", "cooperative_matrix"})


def environments(entry: dict[str, Any]) -> list[str]:
    claimed: str = entry["target"].split()[0]
    return list(dict.fromkeys([claimed, NEWEST]))


@pytest.mark.soak
def test_valid_for_every_target_it_claims() -> None:
    program = shutil.which("spirv-val")
    if program is None:
        pytest.skip("spirv-val is not installed")

    def validate(name: str, environment: str) -> str:
        path = SHADERS / "spirv" / f"{name}.spv"
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
        for name, entry in MANIFEST["variants"].items()
        if not UNKNOWN & set(entry["requires"])
        for environment in environments(entry)
    ]
    assert len(jobs) > len(MANIFEST["variants"])
    with ThreadPoolExecutor(2) as pool:
        found = [message for message in pool.map(lambda job: validate(*job), jobs) if message]
    assert not found, "\n".join(found)


def test_what_it_needs_is_what_it_says() -> None:
    """The claims of the manifest, against the modules themselves."""
    for name, entry in MANIFEST["variants"].items():
        data = (SHADERS / "spirv" / f"{name}.spv").read_bytes()
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
