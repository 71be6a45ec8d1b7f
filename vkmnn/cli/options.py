"""Appearance of commands and options: short names, metavars, usage lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

Function = TypeVar("Function", bound=Callable[..., Any])

SHORT: Mapping[str, str] = {
    "--activations": "-a",
    "--block": "-b",
    "--capacity": "-c",
    "--device": "-d",
    "--engine": "-e",
    "--help": "-h",
    "--input": "-i",
    "--max-tokens": "-m",
    "--repeat": "-n",
    "--output": "-o",
    "--precision": "-p",
    "--shape": "-s",
    "--temperature": "-t",
    "--version": "-V",
    "--weights": "-w",
    "--exclude": "-x",
}
"""The short name of an option, which means the same in every command."""

METAVARS: Mapping[str, str] = {
    "--batch": "N",
    "--batch-delay": "MS",
    "--drain-delay": "SECONDS",
    "--format": "mnn|tflite|caffe|tensorflow",
    "--grpc-port": "PORT",
    "--host": "ADDRESS",
    "--instances": "N",
    "--kv-cache-dtype": "f32|f16|i8",
    "--log-format": "text|json",
    "--max-batch": "ROWS",
    "--max-model-bytes": "BYTES",
    "--model-control": "none|poll|explicit",
    "--per-key": "N",
    "--poll-seconds": "SECONDS",
    "--repository": "FOLDER",
    "--revision": "NAME",
    "--unsupported": "cpu|raise",
    "--variant": "NAME",
    "--devices": "all|DEVICES",
    "--part": "N",
    "--by": "step|type|kernel",
    "--channels": "rgb|bgr",
    "--calibrate": "DATA",
    "--capacity": "TOKENS",
    "--compare": "DEVICE",
    "--drain": "SECONDS",
    "--engine": "NAME",
    "--exclude": "NODE",
    "--html": "FILE",
    "--input": "NAME=VALUE",
    "--labels": "FILE",
    "--max-body": "BYTES",
    "--max-tokens": "TOKENS",
    "--mean": "NUMBERS",
    "--method": "NAME",
    "--output": "PATH",
    "--per-client": "N",
    "--port": "PORT",
    "--preprocess": "auto|device|host",
    "--queue": "N",
    "--repeat": "N",
    "--guidance": "NUMBER",
    "--negative": "TEXT",
    "--seed": "N",
    "--steps": "N",
    "--strength": "NUMBER",
    "--set": "NAME=VALUE",
    "--shape": "NAME=DIMS",
    "--size": "N|ROWSxCOLUMNS",
    "--speculate": "N",
    "--std": "NUMBERS",
    "--stop": "TEXT",
    "--prompt": "TEXT",
    "--system": "TEXT",
    "--trimap": "PATH",
    "--task": "NAME",
    "--threads": "N",
    "--threshold": "NUMBER",
    "--timeout": "SECONDS",
    "--tolerance": "NUMBER",
    "--top": "N",
    "--top-k": "N",
    "--top-p": "NUMBER",
    "--temperature": "NUMBER",
    "--repetition-penalty": "NUMBER",
    "--trace": "FILE",
    "--activations": "TYPE",
    "--api-key-file": "FILE",
    "--min-p": "NUMBER",
    "--onnx": "FILE",
    "--on-device-lost": "raise|rebuild",
    "--on-overflow": "warn|high|raise|ignore",
    "--weights": "TYPE",
    "--with": "DEVICE",
    "--block": "N",
    "--bits": "4|8",
    "--samples": "N",
    "--target": "MEASURE>=VALUE",
}
"""Placeholders for option values in help; by default, the option's name in capitals."""


def option(name: str, *others: str, **settings: Any) -> Any:
    """Return an option with the short name that the table has for it.

    Args:
        name: its long name.
        others: further long names.
        settings: as for `typer.Option`.
    """
    short = [SHORT[name]] if name in SHORT else []
    return typer.Option(name, *others, *short, **settings)


class Command(TyperCommand):
    """A command with readable usage: `vkmnn run [OPTIONS] MODEL`."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for param in self.params:
            if param.metavar is None and not getattr(param, "is_flag", False):
                long = param.opts[0]
                param.metavar = METAVARS.get(long, long.lstrip("-").replace("-", "_").upper())

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the part of the usage line after the command's name."""
        pieces = [self.options_metavar or ""]
        for param in self.params:
            if param.param_type_name == "argument":
                name = str(param.metavar)
                pieces.append(name if param.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of arguments and options."""
        arguments, options = [], []
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                arguments.append((str(param.metavar), getattr(param, "help", "") or ""))
            elif (record := param.get_help_record(ctx)) is not None:
                options.append(record)
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class App(typer.Typer):
    """An application whose commands are all of the class above."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Return the decorator of a command, as in `typer.Typer`."""
        return super().command(name, **{"cls": Command, **settings})
