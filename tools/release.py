"""Builds what a release consists of, and checks it."""

from __future__ import annotations

import argparse
import re
import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

from tools import environment, process
from tools.process import ROOT, TaskError, say, step

DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"
LOCKED_EXTRAS = ("images", "llm", "serve")
"""Extras that the container and `constraints.txt` hold."""

_LARGEST_WHEEL = 25 << 20
_NEEDED = ("vkmnn/shaders/spirv.zip", "vkmnn/shaders/shaders.lock", "vkmnn/docs/architecture.md")


def main(args: Sequence[str]) -> int:
    """Build the wheel, the source distribution and the bill of materials into `dist/`.

    Raises:
        TaskError: one of them is not fit to be released.
    """
    parser = argparse.ArgumentParser(prog="tasks.py release", description=release.__doc__)
    parser.add_argument("--tag", help="the tag that is released: v and the version")
    parser.add_argument("--lock", action="store_true", help="only renew constraints.txt")
    chosen = parser.parse_args(args)
    python = environment.prepare("release")
    if chosen.lock:
        return lock(python)
    return release(python, chosen.tag)


def lock(python: Path) -> int:
    """Write `constraints.txt`: the newest versions that fit, with the digests of their files."""
    extras = [part for extra in LOCKED_EXTRAS for part in ("--extra", extra)]
    command = ["uv", "pip", "compile", "pyproject.toml", "--universal", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "-q", "-o", CONSTRAINTS.name, "--upgrade"]
    oldest = ".".join(map(str, environment.OLDEST_PYTHON))
    return process.run_loud([python, "-m", *command, "--python-version", oldest, *extras])


def release(python: Path, tag: str | None) -> int:
    """Build and check the wheel, the source distribution and the bill of materials."""
    shutil.rmtree(DIST, ignore_errors=True)
    with step("building the wheel and the source distribution"):
        process.run_quiet([python, "-m", "build", "-o", DIST, ROOT], "the build failed")
    (wheel,) = DIST.glob("*.whl")
    (source,) = DIST.glob("*.tar.gz")
    version = check_wheel(wheel)
    check_source(source)
    if tag is not None and tag != f"v{version}":
        raise TaskError(f"the tag {tag} is not v{version}, the version of pyproject.toml")
    check_changelog(version)
    status = process.run_loud([python, "-m", "twine", "check", "--strict", wheel, source])
    if not status:
        status = bill(python, wheel, DIST / f"vkmnn-{version}.cdx.json")
    if not status:
        say(f"ready to be released: {', '.join(sorted(path.name for path in DIST.iterdir()))}")
    return status


def check_wheel(wheel: Path) -> str:
    """Return the version of a wheel that is complete.

    Raises:
        TaskError: it lacks something, is too large, or its description has relative links.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        message = Parser().parsestr(archive.read(metadata).decode())
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise TaskError(f"the wheel lacks {', '.join(missing)}")
    if wheel.stat().st_size > _LARGEST_WHEEL:
        raise TaskError(f"the wheel has {wheel.stat().st_size >> 20} MB")
    body = message.get_payload()
    relative = re.findall(r"\]\((?!https?://|#)[^)]*\)", body if isinstance(body, str) else "")
    if relative:
        raise TaskError(f"links of the description are relative: {', '.join(relative[:3])}")
    return str(message["Version"])


def check_source(source: Path) -> None:
    """Check that a source distribution builds without the repository.

    Raises:
        TaskError: it lacks something.
    """
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("pyproject.toml", "setup.py", "LICENSE", "vkmnn/shaders/glsl/macro.json")
    missing = [name for name in needed if name not in names]
    if missing:
        raise TaskError(f"the source distribution lacks {', '.join(missing)}")


def check_changelog(version: str) -> None:
    """Check that the changelog has a section for a version.

    Raises:
        TaskError: it has none.
    """
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"^## \[?{re.escape(version)}\b", text, re.MULTILINE):
        raise TaskError(f"CHANGELOG.md has no section for {version}")


def bill(python: Path, wheel: Path, path: Path) -> int:
    """Write the bill of materials of a wheel with what it brings, in CycloneDX's format."""
    place = ROOT / "build" / "released"
    shutil.rmtree(place, ignore_errors=True)
    with step("installing the wheel by itself"):
        process.run_quiet([python, "-m", "venv", place], "no environment could be made")
        inside = place / environment.venv_python().relative_to(environment.VENV)
        process.run_quiet([inside, "-m", "pip", "install", "-q", wheel], "pip refused the wheel")
        process.run_quiet([inside, "-m", "vkmnn", "--version"], "the wheel does not start")
    command = [python, "-m", "cyclonedx_py", "environment", inside, "--output-reproducible"]
    return process.run_loud([*command, "--of", "JSON", "-o", path])
