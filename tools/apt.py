"""Debian's packages: installed where that is allowed, or unpacked beside the system."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools import process
from tools.process import CannotError, TaskError, say, step

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MOVING = frozenset({"stable", "testing", "unstable", "sid"})  # names of releases beside codenames


def prefix() -> list[str] | None:
    """Return the prefix for `apt-get install` ([] or sudo), or None if it is not permitted."""
    if os.environ.get("VKMNN_NO_INSTALL") or not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo"):
        asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
        if asked.returncode == 0:
            return ["sudo", "-n"]
    return None


def install(packages: Sequence[str]) -> bool:
    """Install Debian packages where that is allowed; False (with the reason said) where not."""
    before = prefix()
    if before is None:
        return False
    apt = [*before, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    apt += ["-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=2"]
    command = [*apt, "install", "--no-install-recommends", *packages]
    names = " ".join(packages)
    try:
        with step(f"installing {names} with apt-get"):
            try:
                process.run_quiet(command, "")
            except TaskError:  # a fresh image has no package lists, an old one has stale lists
                try:
                    process.run_quiet([*apt, "update"], "apt-get cannot read its package lists")
                except (
                    TaskError
                ) as error:  # as where a mirror is out of date; its lists may still do
                    say(f"{error}\n  going on with the lists at hand")
                process.run_quiet(command, f"apt-get cannot install {names}")
    except TaskError as error:
        say(str(error))
        return False
    return True


def release() -> dict[str, str]:
    """Return the content of /etc/os-release, {} if it is missing."""
    try:
        lines = Path("/etc/os-release").read_text("utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name: value.strip('"') for name, _, value in pairs}


def mirror() -> str:
    """Return the mirror from which this machine fetches Debian's packages.

    Raises:
        CannotError: this is not Debian, or its apt names none.
    """
    system = release()
    if system.get("ID") != "debian" or not shutil.which("apt-get"):
        raise CannotError("Debian's packages are for Debian")
    asked = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    own = {system.get("VERSION_CODENAME", "sid"), *MOVING}
    for line in asked.stdout.splitlines():
        site, _, name = line.partition(" ")
        if name in own:
            return site
    raise CannotError("apt names no mirror of Debian")


def unpack(package: str, suite: str, folder: Path) -> None:
    """Unpack a package of another suite into `folder`; nothing of the system is changed.

    Args:
        package: its name.
        suite: as bookworm-backports.
        folder: where to; lists and the package are kept beside its content.

    Raises:
        CannotError: this is not Debian.
        TaskError: apt cannot fetch it.
    """
    source = f"{mirror()} {suite} main"
    folder.mkdir(parents=True, exist_ok=True)
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    signed = f"[signed-by={KEYRING}] " if KEYRING.is_file() else ""
    (folder / "sources.list").write_text(f"deb {signed}{source}\n", "utf-8")
    apt = ["apt-get", "-q", "-o", f"Dir::Etc::SourceList={folder / 'sources.list'}"]
    apt += ["-o", "Dir::Etc::SourceParts=-", "-o", f"Dir::State::Lists={lists}"]
    apt += ["-o", f"Dir::Cache={folder}", "-o", "APT::Sandbox::User=root"]
    script = 'cd "$1" && shift && "$@" && dpkg-deb -x ./*.deb content && rm -f ./*.deb'
    process.run_quiet([*apt, "update"], f"apt-get cannot read the list of {suite}")
    fetch = ["bash", "-c", script, "bash", folder, *apt, "download", package]
    process.run_quiet(fetch, f"apt-get cannot fetch {package} of {suite}")
    shutil.rmtree(lists, ignore_errors=True)
