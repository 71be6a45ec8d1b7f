"""The files of deploy/ fit the server: its options, its routes, its version, its time to drain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from vkmnn._version import __version__
from vkmnn.cli.app import app

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def serve() -> Any:
    return typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]


def commands() -> dict[str, list[str]]:
    """Return how each file starts the server, and the Dockerfile's examples."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    deployment = next(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))
    unit = (DEPLOY / "vkmnn.service").read_text("utf-8")
    docker = (ROOT / "Dockerfile").read_text("utf-8")
    return {
        "compose": compose["services"]["vkmnn"]["command"],
        "kubernetes": deployment["spec"]["template"]["spec"]["containers"][0]["args"],
        "systemd": re.findall(r"^ExecStart=\S+ (.+)$", unit, re.MULTILINE)[0].split(),
        "docker": re.findall(r"vkmnn (serve .+)$", docker, re.MULTILINE)[0].split(),
    }


@pytest.mark.parametrize("name", sorted(commands()))
def test_options_of_the_server(name: str) -> None:
    command, *rest = commands()[name]
    assert command == "serve"
    with serve().make_context("serve", rest) as context:
        assert context.params["models"]


def test_everything_waits_for_running_requests() -> None:
    drain = next(one.default for one in serve().params if one.name == "drain")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    deployment = next(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))
    unit = (DEPLOY / "vkmnn.service").read_text("utf-8")
    waits = (
        compose["services"]["vkmnn"]["stop_grace_period"].removesuffix("s"),
        deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0],
    )
    assert min(map(int, waits)) > drain


def test_images_have_the_version() -> None:
    for path in (DEPLOY / "compose.yaml", DEPLOY / "kubernetes.yaml"):
        assert re.findall(r"image: vkmnn:(\S+)", path.read_text("utf-8")) == [__version__]


def test_probes_are_routes_of_the_server() -> None:
    pytest.importorskip("starlette")
    served = "".join(path.read_text("utf-8") for path in (ROOT / "vkmnn" / "serve").glob("*.py"))
    for path in re.findall(r"path: (/\S+), port", (DEPLOY / "kubernetes.yaml").read_text("utf-8")):
        assert path in served


def test_the_user_of_the_image_owns_its_volume() -> None:
    """A volume on a folder that the image lacks belongs to root: nothing could be cached."""
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    (volume,) = (line for line in lines if line.startswith("VOLUME"))
    folder = volume.partition('"')[2].partition('"')[0]
    home = lines[lines.index("USER vkmnn") + 1].removeprefix("WORKDIR ")
    made = f"RUN mkdir {folder.removeprefix(home + '/')}"
    assert lines.index("USER vkmnn") < lines.index(made) < lines.index(volume)
