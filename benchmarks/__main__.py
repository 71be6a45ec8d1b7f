"""`python -m benchmarks`: overheads and networks, as tables and as a JSON file.

`python -m benchmarks drivers` compares the drivers instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from benchmarks import drivers, networks, overhead
from vkmnn.runtime.device import open_device


def main(
    device: Annotated[str, typer.Option(help="Vulkan device: auto, index, name, UUID")] = "auto",
    rounds: Annotated[int, typer.Option(help="timed rounds per candidate")] = 15,
    models: Annotated[
        list[Path] | None, typer.Argument(help="ONNX files; default: those of the onnx package")
    ] = None,
    only_overhead: Annotated[bool, typer.Option("--only-overhead")] = False,
    output: Annotated[Path | None, typer.Option(help="write all figures as JSON")] = None,
) -> None:
    """Measure vkmnn on a device; engines take turns, medians of several rounds are shown."""
    console = Console()
    opened = open_device(device)
    console.print(f"[bold]{opened.info.name}[/] ({opened.info.driver_version})")
    figures = overhead.measure(opened)
    console.print(overhead.table(figures))
    results = []
    if not only_overhead:
        paths = models or networks.light_models()
        progress = track(paths, "networks", console=console)
        results.extend(networks.measure(path, device, rounds) for path in progress)
        console.print(networks.table(results))
    if output is not None:
        data = {
            "device": opened.info.name,
            "driver": opened.info.driver_version,
            "overhead_us": figures,
            "networks": networks.as_json(results),
        }
        output.write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["drivers"]:
        del sys.argv[1]
        typer.run(drivers.main)
    else:
        typer.run(main)
