"""A Debian of another release in a folder: its driver, its Python, its validation layer.

`tasks.py` runs in it as on a machine of its own, on a copy of the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import apt, process
from tools.process import CannotError, step

PACKAGES = (
    *("python3", "python3-venv", "ca-certificates", "git"),
    *("libvulkan1", "mesa-vulkan-drivers", "vulkan-validationlayers"),
)
LEFT_OUT = (".git", ".venv", "build", "dist", "__pycache__", "*.egg-info", ".*_cache")
KEPT = ("PIP_", "SSL_CERT", "REQUESTS_CA", "CURL_CA", "VKMNN_", "LP_")
SETTINGS = tuple(map(Path, ("/etc/pip.conf", "/etc/resolv.conf", "/etc/hosts")))
CERTIFICATES = Path("/etc/ssl/certs")  # what this machine trusts, a proxy among it
PROJECT = "project"

# What is mounted lives in a namespace of this process: it is gone with it, whatever happens.
ENTER = """
set -e
root=$1; shift
mount --bind /proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot "$root" /bin/sh -c 'cd /project && exec "$@"' sh "$@"
"""


def is_made(root: Path) -> bool:
    """Tell whether the folder holds a whole system."""
    return (root / ".made").is_file()


def cannot() -> str | None:
    """Return why no root can be created here, or None."""
    if not hasattr(os, "geteuid") or os.geteuid():
        return "a root of its own needs the user root"
    if shutil.which("debootstrap") is None and apt.prefix() is None:
        return "debootstrap is missing"
    if apt.release().get("ID") != "debian":
        return "made on Debian alone"
    return None


def make(root: Path, suite: str) -> None:
    """Make the root of a suite.

    Raises:
        CannotError: debootstrap is missing.
        TaskError: it failed.
    """
    if not shutil.which("debootstrap") and not apt.install(["debootstrap"]):
        raise CannotError("debootstrap cannot be installed")
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    make_it = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    with step(f"making a root of Debian {suite} in {root} (minutes; 1 GB)"):
        process.run_quiet([*make_it, suite, root, apt.mirror()], f"no root of Debian {suite}")
    (root / ".made").touch()


def copy_checkout(root: Path) -> None:
    """Put a copy of the checkout into the root; its environment from an earlier run stays."""
    target = root / PROJECT
    target.mkdir(exist_ok=True)
    for old in target.iterdir():
        if old.name != ".venv":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    ignore = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(process.ROOT, target, ignore=ignore, dirs_exist_ok=True, symlinks=True)
    # What lies there may be a link to a path that, from outside, is this machine's: removed first.
    if CERTIFICATES.is_dir():
        inside = root / "etc/ssl/certs"
        shutil.rmtree(inside, ignore_errors=True)
        shutil.copytree(CERTIFICATES, inside, ignore_dangling_symlinks=True)
    for setting in filter(Path.is_file, SETTINGS):
        inside = root / setting.relative_to(setting.anchor)
        inside.unlink(missing_ok=True)
        inside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(setting, inside)


def run(root: Path, command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command in the root, in the copy of the checkout; return its exit status."""
    inside = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        **{
            name: value
            for name, value in os.environ.items()
            if name.startswith(KEPT) or name.lower().endswith("_proxy")
        },
        **env,
    }
    for outside in ("VKMNN_CACHE_DIR", "VKMNN_SWIFTSHADER_ICD"):  # paths that are not in there
        inside.pop(outside, None)
    enter = ["unshare", "--mount", "/bin/bash", "-c", ENTER, "bash", str(root), *command]
    return subprocess.run(enter, env=inside, check=False).returncode


def package_version(root: Path, package: str) -> str:
    """Return the version of a package in the root, "" where dpkg knows none."""
    query = ["dpkg-query", f"--admindir={root / 'var/lib/dpkg'}", "-W", "-f", "${Version}", package]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout
