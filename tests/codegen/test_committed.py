"""The shaders in the repository: up to date, valid, and what they claim."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vkmnn.codegen import build as building
from vkmnn.codegen import outputs
from vkmnn.codegen.compilers import Compiler
from vkmnn.codegen.features import target_for
from vkmnn.shaders import all_shaders

SHADERS = Path(building.__file__).resolve().parents[1] / "shaders"


def test_up_to_date(compiler: Compiler) -> None:
    diff, _ = outputs.check(building.build(SHADERS / "glsl", compiler), SHADERS)
    assert diff == "", diff[:4000]


@pytest.mark.slow  # a process for each variant
def test_valid() -> None:
    program = shutil.which("spirv-val")
    if program is None:
        pytest.skip("spirv-val is not installed")

    def validate(name: str, target: str) -> str:
        path = SHADERS / "spirv" / f"{name}.spv"
        done = subprocess.run(
            [program, "--target-env", target, str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return f"{name}: {done.stdout}{done.stderr}" if done.returncode else ""

    # An older spirv-val does not know the newer extensions; glslang's own validator saw them.
    jobs = [
        (shader.name, "vulkan{}.{}".format(*target_for(shader.requires).vulkan))
        for shader in all_shaders()
        if not shader.requires & {"bfloat16", "cooperative_matrix"}
    ]
    with ThreadPoolExecutor(2) as pool:
        found = [message for message in pool.map(lambda job: validate(*job), jobs) if message]
    assert not found, "\n".join(found)
