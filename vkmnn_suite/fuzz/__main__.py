"""`python -m vkmnn_suite.fuzz`: random models, compared with onnxruntime."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from vkmnn.errors import VkmnnError
from vkmnn_suite.fuzz.options import DEFAULT_GRAPHS, Options, default_seed

app = typer.Typer(add_completion=False)
_err = Console(stderr=True)


@app.command()
def main(
    seed: Annotated[
        int | None, typer.Option(help="Seed of the models. Default: VKMNN_FUZZ_SEED or 0.")
    ] = None,
    graphs: Annotated[int, typer.Option(help="Number of models; 0 for no limit.")] = -1,
    minutes: Annotated[float, typer.Option(help="Minutes to run; 0 for no limit.")] = 0.0,
    device: Annotated[str, typer.Option(help="Device to run on.")] = "auto",
    driver: Annotated[str | None, typer.Option(help="Vulkan binding.")] = None,
    precision: Annotated[str, typer.Option(help="high, normal, low, or mixed.")] = "high",
    op: Annotated[
        list[str] | None, typer.Option(help="Only models with this operator (repeatable).")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds per model.")] = 60.0,
    folder: Annotated[Path, typer.Option(help="Folder for models that fail.")] = Path(
        "fuzz-failures"
    ),
    large: Annotated[float, typer.Option(help="Share of models with large tensors.")] = 0.03,
    malformed: Annotated[bool, typer.Option(help="Damaged models instead of valid ones.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes for damaged models; 0: all cores.")] = 0,
    start: Annotated[
        list[Path] | None,
        typer.Option(help="With --malformed: .vkmnn, .mnn or .caffemodel files to damage."),
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Run one saved model again.")] = None,
) -> None:
    """Generate random models, run them on vkmnn and compare with onnxruntime."""
    options = Options(
        seed=default_seed() if seed is None else seed,
        graphs=graphs if graphs >= 0 else 0 if minutes else DEFAULT_GRAPHS,
        minutes=minutes,
        device=device,
        driver=driver,
        precision=precision,
        ops=tuple(op or ()),
        timeout_s=timeout,
        folder=folder,
        large=large,
        jobs=jobs,
        starts=tuple(start or ()),
    )
    try:
        raise typer.Exit(_run(options, malformed, replay))
    except VkmnnError as error:
        _err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from error


def _run(options: Options, malformed: bool, replay: Path | None) -> int:
    """Run the requested mode and return the exit status."""
    mode, function = ("campaign", "run_campaign")
    if malformed:
        mode, function = ("malformed", "run_malformed")
    module = import_module(f"vkmnn_suite.fuzz.{mode}")
    if replay is not None:
        status: int = module.replay(options, replay)
    else:
        status = getattr(module, function)(options)
    return status


if __name__ == "__main__":
    app()
