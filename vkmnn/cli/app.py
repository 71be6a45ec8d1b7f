"""The commands and their options; each command is implemented in the module of its name."""

from __future__ import annotations

import io
import logging
import os
import platform
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from vkmnn._version import __version__
from vkmnn.cli.console import LogHandler, document, out, show_error
from vkmnn.cli.options import SHORT, App, option
from vkmnn.errors import InvalidInputError, VkmnnError, nearest
from vkmnn.schedule_config import (
    on_overflow_name,
    precision_name,
    unsupported_name,
)

app = App(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": [SHORT["--help"], "--help"]},
    help="Run neural networks on any Vulkan device.",
)

_PATH_HINT = "check the path and its permissions"
_LEVELS = ("debug", "info", "warning", "error")


ROWS = ("step", "type", "kernel")
"""Grouping of the rows of a profile."""


class OnLost(str, Enum):
    """Reaction to a lost device."""

    REBUILD = "rebuild"
    RAISE = "raise"


class KvCacheDtype(str, Enum):
    """Storage of keys and values."""

    F32 = "f32"
    F16 = "f16"
    I8 = "i8"


class LogFormat(str, Enum):
    """Format of the log."""

    TEXT = "text"
    JSON = "json"


class ModelControl(str, Enum):
    """When the models of a repository are loaded."""

    NONE = "none"
    EXPLICIT = "explicit"
    POLL = "poll"


def _local(text: str) -> Path:
    """Return the file of a model; download it if the name refers to the hub or an address."""
    from vkmnn.cli.models import local_file

    return local_file(text)


_NAMED = "a folder or .zip with one; https://…; or owner/name[:file][@revision] of the hub."
ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="A model: .onnx, .vkmnn, .mnn, .tflite, .prototxt, .caffemodel, .pb, .keras or .pt2, "
        f"or the folder of a SavedModel; {_NAMED}",
        show_default=False,
        parser=_local,
    ),
]
ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model; for a task of several networks, a folder of them. "
        f"{_NAMED[0].upper()}{_NAMED[1:]}",
        show_default=False,
    ),
]
DeviceOption = Annotated[
    str,
    option(
        "--device",
        help='"auto", "fastest", an index, part of a name, a UUID, or "cpu" (numpy).',
    ),
]
DriverOption = Annotated[
    str | None, typer.Option("--driver", help="The Vulkan binding; see VKMNN_DRIVER.")
]
PrecisionOption = Annotated[
    str,
    option(
        "--precision",
        help='"high" or "fp32" (float32), "fast" (float32, products by float16 matrices), "normal" '
        'or "fp16" (float16 storage), or "low" (float16 storage and products).',
    ),
]
OnOverflowOption = Annotated[
    str,
    typer.Option(
        "--on-overflow",
        help="What to do when a value that fits float32 overflows float16: warn (default), high "
        "(run that op in float32), raise or ignore.",
    ),
]


def _quiet(wanted: bool) -> bool:
    """Print no tables if the result is a JSON document."""
    out.quiet = wanted
    return wanted


JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print JSON instead of tables.", callback=_quiet, is_eager=True),
]
InputOption = Annotated[
    list[str] | None,
    option(
        "--input",
        help="VALUE is a number (sr=16000), JSON (ids=[1,2,3]), text for inputs of strings, "
        "random, ones or zeros, or a file: .npy, .npz, @values.json, @text.txt (repeatable). NAME= "
        "may be left out if there is one input. Default: random.",
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    option(
        "--shape",
        help="Shape of an input: x=1,3,224,224 (x= may be left out if there is one input). Size "
        "of a symbolic dimension: N=4 (repeatable).",
    ),
]
UnstatedShapeOption = Annotated[
    list[str] | None,
    option(
        "--shape",
        help="Shape of an input that the file does not state, as in TorchScript: x=1,3,224,224 "
        "(repeatable).",
    ),
]
OnnxOption = Annotated[
    Path | None,
    typer.Option(
        "--onnx", help="Write the optimised network for viewers such as Netron; it cannot be run."
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        help="Allowed difference, as a fraction of the range. Default: 1e-4, for float16 1e-2.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed for random inputs and images.")]


def _tell_version() -> None:
    typer.echo(f"vkmnn {__version__} (Python {platform.python_version()})")


def _version(wanted: bool) -> None:
    if wanted:
        _tell_version()
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of errors; same as VKMNN_DEBUG=1."),
    ] = False,
    version: Annotated[
        bool,
        option("--version", callback=_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    if debug:
        os.environ["VKMNN_DEBUG"] = "1"


@app.command("help")
def show_help(
    ctx: typer.Context,
    command: Annotated[
        str | None, typer.Argument(metavar="COMMAND", help="A command.", show_default=False)
    ] = None,
) -> None:
    """Show the commands, or the options of a command."""
    assert ctx.parent is not None
    commands: dict[str, Any] = ctx.parent.command.commands  # type: ignore[attr-defined]
    if command is None:
        typer.echo(ctx.parent.get_help())
        return
    if command not in commands:
        hint = nearest(command, commands, "commands")
        raise InvalidInputError(f"there is no command '{command}'", hint=hint)
    ctx.parent.command.main([command, "--help"], prog_name="vkmnn")


@app.command()
def version(json: JsonOption = False) -> None:
    """Show the versions of vkmnn and Python."""
    if not json:
        _tell_version()
    document("version", {"python": platform.python_version(), "system": platform.system()})


@app.command()
def devices(
    driver: DriverOption = None,
    profiles: Annotated[
        bool,
        typer.Option(
            "--profiles",
            help="List the device profiles for VKMNN_DEVICE_PROFILE instead.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """List this machine's devices.

    The last line names the device that "auto" selects.
    """
    from vkmnn.cli.devices import list_devices, list_profiles

    if profiles:
        list_profiles()
    else:
        list_devices(driver)


@app.command()
def doctor(json: JsonOption = False) -> None:
    """Check this machine and list what is missing."""
    from vkmnn.cli.doctor import examine

    if not examine():
        raise typer.Exit(1)


OutputsOption = Annotated[
    Path | None,
    option(
        "--output",
        help="Save the outputs to a .npz file, or a folder of .npy files. Results of tasks: an "
        "image, a video, .json, .npz or .txt; for several inputs, a folder or .json.",
    ),
]
ValidateOption = Annotated[
    bool, typer.Option("--validate", help="Run under the Khronos validation layer.")
]
CompareOption = Annotated[
    str | None,
    typer.Option(
        "--compare",
        help='Also run on this device ("cpu" for example) or with "onnxruntime", and compare.',
    ),
]
WatchOption = Annotated[
    float | None,
    typer.Option(
        "--watch",
        min=0,
        metavar="SECONDS",
        help="Wait for more files in folders and patterns; end after SECONDS without one.",
    ),
]
UnsupportedOption = Annotated[
    str,
    typer.Option(
        "--unsupported",
        help='Ops without a kernel: "cpu" (default) runs them on the host, "raise" fails.',
    ),
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="For images: classify, detect, segment, pose, depth, upscale, ocr, … For sounds and "
        "text: transcribe, speak, vad, classify-text, translate, paint, … Default: detected.",
    ),
]
LabelsOption = Annotated[
    Path | None, typer.Option("--labels", help="For images: file with one class name per line.")
]
ThresholdOption = Annotated[
    float | None,
    typer.Option("--threshold", help="For images: lowest score to report, from 0 to 1."),
]
SizeOption = Annotated[
    str | None,
    typer.Option(
        "--size",
        help="For images: the network's input size, or the size to paint: 640 or 480x640 (rows "
        "first).",
    ),
]
MeanOption = Annotated[
    str | None,
    typer.Option(
        "--mean",
        help="For images: mean of each channel, for pixels from 0 to 1, or from 0 to 255 if a "
        "number exceeds 1.",
    ),
]
StdOption = Annotated[
    str | None, typer.Option("--std", help="For images: standard deviation of each channel.")
]
ChannelsOption = Annotated[
    str | None, typer.Option("--channels", help="For images: channel order.")
]
HtmlOption = Annotated[Path | None, typer.Option("--html", help="Write a page for a browser.")]
PreprocessOption = Annotated[
    str | None,
    typer.Option("--preprocess", help="Where images are preprocessed."),
]
MoreOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Another option of the task: top=3 (repeatable)."),
]
PromptOption = Annotated[
    str | None,
    typer.Option("--prompt", help="Prompt for an image; -i is then an image to change."),
]
NegativeOption = Annotated[
    str | None, typer.Option("--negative", help="For prompts: what not to paint.")
]
StepsOption = Annotated[int | None, typer.Option("--steps", help="For prompts: number of steps.")]
GuidanceOption = Annotated[
    float | None,
    typer.Option("--guidance", help="For prompts: guidance scale; up to 1: no guidance."),
]
StrengthOption = Annotated[
    float | None,
    typer.Option("--strength", help="For prompts with an image: from 0 to 1, how much to change."),
]
TrimapOption = Annotated[
    Path | None,
    typer.Option(
        "--trimap",
        help="For matting: an image with the background black, the foreground white and the "
        "unknown grey, or a folder of them with the images' names.",
    ),
]


@app.command()
def run(
    model: ModelName,
    inputs: InputOption = None,
    shape: ShapeOption = None,
    output: OutputsOption = None,
    device: DeviceOption = "auto",
    driver: DriverOption = None,
    precision: PrecisionOption = "high",
    on_overflow: OnOverflowOption = "warn",
    repeat: Annotated[int, option("--repeat", min=0, help="Runs to time after the first.")] = 1,
    validate: ValidateOption = False,
    compare: CompareOption = None,
    tolerance: ToleranceOption = None,
    unsupported: UnsupportedOption = "cpu",
    seed: SeedOption = 0,
    json: JsonOption = False,
    task: TaskOption = None,
    labels: LabelsOption = None,
    threshold: ThresholdOption = None,
    size: SizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    channels: ChannelsOption = None,
    preprocess: PreprocessOption = None,
    more: MoreOption = None,
    prompt: PromptOption = None,
    negative: NegativeOption = None,
    steps: StepsOption = None,
    guidance: GuidanceOption = None,
    strength: StrengthOption = None,
    trimap: TrimapOption = None,
) -> None:
    """Run a model one or more times and show its outputs.

    Inputs that are images, videos or folders of images are preprocessed for the model, and the
    results are shown: labels, boxes, masks … The same applies to sounds, and to texts (-i "a text")
    if the model's files or --task name their task: translations, summaries, images (-o out.png) …
    """
    from vkmnn.cli.media_inputs import TaskOptions, is_for_pipeline
    from vkmnn.cli.models import local_file, local_model
    from vkmnn.cli.run import RunOptions, run_model
    from vkmnn.comparison import usual_tolerance

    name = precision_name(precision)
    options = replace(
        RunOptions(device, driver, validate or None, inputs or [], shape or [], seed, repeat, name),
        unsupported=unsupported_name(unsupported),
        on_overflow=on_overflow_name(on_overflow),
    )
    tasks = TaskOptions(
        task, labels, threshold, size, mean, std, channels, preprocess, more or [],
        prompt, negative, steps, guidance, strength, trimap,
    )  # fmt: skip
    if is_for_pipeline(options.inputs, tasks, model):
        from vkmnn.cli.pipeline import run_pipeline

        run_pipeline(local_model(model), options, tasks, output, compare)
        return
    allowed = usual_tolerance(name) if tolerance is None else tolerance
    if not run_model(local_file(model), options, output, compare, allowed):
        raise typer.Exit(1)


@app.command("map")
def map_command(
    model: ModelName,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT…",
            help="Images or arrays (.npy, .npz): files, patterns in quotes, folders, @FILE with "
            "one per line, .tar archives, .parquet or .jsonl.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, option("--output", help="A .parquet or .jsonl file, or a folder of .npz files.")
    ],
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            min=1,
            max=4096,
            help="Items in one run, if the first axis is dynamic. Default: by a trial, up to 32.",
        ),
    ] = None,
    devices: Annotated[
        str, typer.Option("--devices", help='"all", or devices separated by commas.')
    ] = "all",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a job that was interrupted.")
    ] = False,
    order: Annotated[
        bool, typer.Option("--order/--no-order", help="Keep the order of the inputs.")
    ] = True,
    part: Annotated[
        int, typer.Option("--part", min=1, help="Maximum number of items to write at a time.")
    ] = 1000,
    watch: WatchOption = None,
    driver: DriverOption = None,
    precision: PrecisionOption = "high",
    on_overflow: OnOverflowOption = "warn",
    unsupported: UnsupportedOption = "cpu",
    task: TaskOption = None,
    labels: LabelsOption = None,
    threshold: ThresholdOption = None,
    size: SizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    channels: ChannelsOption = None,
    preprocess: PreprocessOption = None,
    more: MoreOption = None,
    json: JsonOption = False,
) -> None:
    """Run a model on many files, on all devices.

    Files are images or arrays; all results are written to one place. Items that cannot be read or
    run are listed in OUTPUT.errors.jsonl, with the reason. After an interruption of any kind,
    --resume continues: nothing is lost, and nothing is written twice.
    """
    from vkmnn.cli.map import MapOptions, map_items
    from vkmnn.cli.media_inputs import TaskOptions

    options = MapOptions(
        devices, driver, precision_name(precision), on_overflow_name(on_overflow),
        unsupported_name(unsupported), batch, part, order, resume, watch,
    )  # fmt: skip
    tasks = TaskOptions(task, labels, threshold, size, mean, std, channels, preprocess, more or [])
    map_items(model, inputs, output, options, tasks)


@app.command()
def compare(
    model: ModelArgument,
    against: Annotated[
        str | None,
        typer.Option(
            "--with",
            help='"onnxruntime" (the default if it is installed), "cpu" (numpy, node by node '
            "without fusion), or a device.",
        ),
    ] = None,
    inputs: InputOption = None,
    shape: ShapeOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "high",
    tolerance: ToleranceOption = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Show every tensor, including those inside fused ops.")
    ] = False,
    html: HtmlOption = None,
    unsupported: Annotated[
        str,
        typer.Option(
            "--unsupported",
            help='Ops without a kernel: "cpu" (default) runs them on the host, "raise" fails.',
        ),
    ] = "cpu",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Find the first tensor that differs from another engine's.

    The exit status is 1 if one differs.
    """
    from vkmnn.cli.compare import compare_models
    from vkmnn.cli.run import RunOptions

    name = precision_name(precision)
    options = RunOptions(device, None, None, inputs or [], shape or [], seed, 0, name)
    options = replace(options, unsupported=unsupported_name(unsupported))
    if not compare_models(model, options, against, tolerance, layers, html):
        raise typer.Exit(1)


@app.command()
def convert(
    model: ModelArgument,
    output: Annotated[
        Path,
        typer.Argument(metavar="OUTPUT", help="The .vkmnn file to write.", show_default=False),
    ],
    precision: Annotated[
        str,
        option("--precision", help='"normal" or "fp16" rounds weights to float16.'),
    ] = "high",
    external_data: Annotated[
        bool, typer.Option("--external-data", help="Write the weights to OUTPUT.data.")
    ] = False,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--static-shapes",
            metavar="NAME=SIZE",
            help="Fix the size of a symbolic dimension: N=1 (repeatable); with N=1,8 it stays "
            "dynamic, and sessions plan for both sizes when they open.",
        ),
    ] = None,
    shape: UnstatedShapeOption = None,
    tuned: Annotated[
        bool,
        typer.Option("--tuned", help="Include the measurements of `vkmnn tune` on this device."),
    ] = False,
    packed: Annotated[
        bool,
        typer.Option(
            "--packed", help="Also store the weights in the layouts that the device's kernels read."
        ),
    ] = False,
    onnx: OnnxOption = None,
    device: DeviceOption = "auto",
    unsupported: Annotated[
        str,
        typer.Option(
            "--unsupported",
            help='Ops without a kernel: "cpu" (default) leaves them to the host, "raise" fails.',
        ),
    ] = "cpu",
    json: JsonOption = False,
) -> None:
    """Write an optimised .vkmnn file.

    It opens faster than the original model.
    """
    from vkmnn.cli.convert import ConvertOptions, convert_model
    from vkmnn.cli.graph import check_targets, export_network
    from vkmnn.opening import load_network

    options = (precision_name(precision), unsupported_name(unsupported))
    check_targets(None, onnx)
    given = (*options, external_data, sizes or [], shape or [], tuned, packed, device)
    convert_model(model, output, ConvertOptions(*given))
    if onnx is not None:
        export_network(load_network(output).graph, onnx, {})


CalibrateOption = Annotated[
    str | None,
    option(
        "--calibrate",
        metavar="DATA",
        help="A folder, pattern or file of pictures, texts (.txt, .jsonl) or arrays (.npz, .npy).",
    ),
]
SymbolSizeOption = Annotated[
    list[str] | None,
    option(
        "--shape",
        "--size",
        help="For the comparison: size of a symbolic dimension, N=4, or shape of an input, "
        "x=1,3,224,224 (repeatable).",
    ),
]


QuantizedArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="OUTPUT",
        help="The .onnx file to write, or the folder for a language model; same as --output.",
        show_default=False,
    ),
]
QuantizedOption = Annotated[
    Path | None, option("--output", help="The .onnx file or the folder to write.")
]
WeightsOption = Annotated[
    str | None, option("--weights", help='"int8" (default) or "int4".', show_default=False)
]
BitsOption = Annotated[
    int | None, typer.Option("--bits", help="4 or 8: the same as --weights int4 or int8.")
]
BlockOption = Annotated[
    int, option("--block", help="Weights that share a scale: 16, 32, 64, 128, 256.")
]
ZeroPointsOption = Annotated[
    bool,
    typer.Option("--zero-points", help="Store a zero point per block: more accurate, but larger."),
]
ActivationsOption = Annotated[
    str | None, option("--activations", help='"int8" or "uint8"; needs --calibrate.')
]
SamplesOption = Annotated[
    int, typer.Option("--samples", help="Maximum number of samples to read, spread over all.")
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="Accuracy to keep on held-out samples: top1>=99%, accuracy>=, drop<=, cosine>=, "
        "psnr>=, rms<=; the most sensitive nodes stay in float (repeatable).",
    ),
]
SensitivityOption = Annotated[
    bool, typer.Option("--sensitivity", help="Rank the nodes by the error that each causes.")
]
MethodOption = Annotated[
    str, typer.Option("--method", help="How to compute ranges: minmax, entropy or percentile.")
]
PerTensorOption = Annotated[
    bool, typer.Option("--per-tensor", help="One scale for all channels (with --activations).")
]
ExcludeOption = Annotated[
    list[str] | None, option("--exclude", help="Leave this node in float (repeatable).")
]
ExternalOption = Annotated[
    bool, typer.Option("--external-data", help="Write the weights to OUTPUT.data.")
]
ComparedOption = Annotated[
    bool, typer.Option("--compare/--no-compare", help="Run both models and compare.")
]


@app.command()
def quantize(
    model: ModelName,
    output: QuantizedArgument = None,
    output_option: QuantizedOption = None,
    weights: WeightsOption = None,
    bits: BitsOption = None,
    block: BlockOption = 32,
    zero_points: ZeroPointsOption = False,
    activations: ActivationsOption = None,
    calibrate: CalibrateOption = None,
    samples: SamplesOption = 200,
    target: TargetOption = None,
    sensitivity: SensitivityOption = False,
    method: MethodOption = "minmax",
    per_tensor: PerTensorOption = False,
    exclude: ExcludeOption = None,
    external_data: ExternalOption = False,
    compare: ComparedOption = True,
    device: DeviceOption = "auto",
    sizes: SymbolSizeOption = None,
    seed: SeedOption = 0,
    task: TaskOption = None,
    labels: LabelsOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    channels: ChannelsOption = None,
    more: MoreOption = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Write a model with weights of 4 or 8 bits.

    Reports the savings and the loss of accuracy. For language models (folders and GGUF files), the
    result is a folder.
    """
    from vkmnn.cli.media_inputs import TaskOptions
    from vkmnn.cli.quantize import Wanted, quantize_model

    wanted = Wanted(model, output, output_option, weights, bits, sizes or [], html)
    options = {
        "block": block, "symmetric": not zero_points, "activations": activations,
        "calibration": calibrate, "samples": samples, "target": target,
        "sensitivity": sensitivity, "method": method, "per_channel": not per_tensor,
        "exclude": exclude or (), "external_data": external_data or None, "compare": compare,
        "device": device, "seed": seed, "task": task,
    }  # fmt: skip
    tasks = TaskOptions(task, labels, None, None, mean, std, channels, None, more or [])
    quantize_model(wanted, options, tasks)


VariantOption = Annotated[
    str | None, typer.Option("--variant", help="q4f16, fp16, q4, fp32 …; `vkmnn info` lists them.")
]


@app.command()
def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="https://…[#sha256=…], or owner/name[:file][@revision] of the hub.",
            show_default=False,
        ),
    ],
    variant: VariantOption = None,
    json: JsonOption = False,
) -> None:
    """Download a model into the cache.

    Later commands find it by the same name, also offline.
    """
    from vkmnn.cli.models import pull_model

    pull_model(model, variant)


@app.command()
def info(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help=f"A model; {_NAMED}", show_default=False)
    ],
    shape: ShapeOption = None,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List the tensors that remain after optimisation.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with the network as a graph, for a browser."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also measure the ops for the page.")
    ] = False,
    onnx: OnnxOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "high",
    json: JsonOption = False,
) -> None:
    """Describe a model, or a folder of models.

    Shows inputs, outputs, operators and sizes; for the folder of a language model, its variants;
    for a repository on the hub, its models, without a download.
    """
    from vkmnn.cli.graph import check_targets, write_page
    from vkmnn.cli.info import describe, describe_folder
    from vkmnn.cli.models import is_repository, list_repository, local_file
    from vkmnn.cli.run import RunOptions

    if is_repository(model):
        list_repository(model)
        return
    path = local_file(model)
    holds_text = path.is_dir() and not (path / "saved_model.pb").is_file()
    if holds_text or (path.suffix.lower() == ".gguf" and path.is_file()):
        describe_folder(path)
        return
    if profile and html is None:
        raise InvalidInputError("--profile measures for a page", hint="add --html page.html")
    check_targets(html, onnx)
    if not describe(path, shape or [], tensors, onnx):
        raise typer.Exit(1)
    if html is not None:
        options = RunOptions(device, None, None, [], shape or [], 0, 0, precision_name(precision))
        write_page(path, options, html, profile)


LanguageModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="The folder of a language model, or owner/name of one on the hub.",
        show_default=False,
    ),
]
CapacityOption = Annotated[
    int | None,
    option("--capacity", min=2, help="Maximum length of a text, prompt included, in tokens."),
]
KvCacheDtypeOption = Annotated[
    KvCacheDtype,
    typer.Option(
        "--kv-cache-dtype",
        help="How keys and values are stored between tokens; f16 and i8 save memory.",
    ),
]
RevisionOption = Annotated[
    str | None, typer.Option("--revision", help="A commit, tag or branch of the model on the hub.")
]
MaxTokensOption = Annotated[
    int | None, option("--max-tokens", min=1, help="Maximum number of new tokens.")
]
TemperatureOption = Annotated[
    float | None,
    option("--temperature", min=0, help="Sampling temperature; 0: always the likeliest token."),
]
TopKOption = Annotated[
    int | None,
    typer.Option("--top-k", min=0, help="Sample from this many likeliest tokens; 0: from all."),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        "--top-p", help="Sample from the likeliest tokens whose probabilities add up to this."
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        help="Sample from tokens at least this many times as probable as the likeliest.",
    ),
]
TextSeedOption = Annotated[int | None, typer.Option("--seed", help="Random seed.")]
PromptArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PROMPT",
        help='The beginning of the text, which the model continues; "-" reads standard input.',
        show_default=False,
    ),
]
StopOption = Annotated[
    list[str] | None, typer.Option("--stop", help="Stop before this text (repeatable).")
]
PenaltyOption = Annotated[
    float | None,
    typer.Option("--repetition-penalty", help="Repetition penalty; values above 1 repeat less."),
]
SpeculateOption = Annotated[
    int,
    typer.Option(
        "--speculate", min=0, max=7, help="Speculative decoding: guess this many tokens ahead."
    ),
]


@app.command()
def generate(
    model: LanguageModelArgument,
    prompt: PromptArgument = None,
    prompt_option: Annotated[
        str | None, typer.Option("--prompt", help="The prompt; same as the argument.")
    ] = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    seed: TextSeedOption = None,
    stop: StopOption = None,
    repetition_penalty: PenaltyOption = 1.0,
    min_p: MinPOption = 0.0,
    speculate: SpeculateOption = 0,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "high",
    on_overflow: OnOverflowOption = "warn",
    capacity: CapacityOption = None,
    kv_cache_dtype: KvCacheDtypeOption = KvCacheDtype.F32,
    variant: VariantOption = None,
    revision: RevisionOption = None,
    json: JsonOption = False,
) -> None:
    """Continue a text with a language model.

    Tokens are printed as they are generated.
    """
    from vkmnn.cli.generate import Where, generate_text

    text = prompt if prompt is not None else prompt_option
    if text is None:
        raise InvalidInputError(
            "there is no prompt",
            hint='write it after the model: vkmnn generate MODEL "Once upon a time"; -p is '
            "--precision, here as in all commands",
        )
    name, action = precision_name(precision), on_overflow_name(on_overflow)
    where = Where(model, device, name, capacity, variant, revision, action, kv_cache_dtype.value)
    generate_text(
        where,
        text,
        max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop or (),
        repetition_penalty=repetition_penalty,
        min_p=min_p,
        speculate=speculate,
    )


@app.command()
def chat(
    model: LanguageModelArgument,
    system: Annotated[str, typer.Option("--system", help="System prompt.")] = "",
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    repetition_penalty: PenaltyOption = None,
    seed: TextSeedOption = None,
    stats: Annotated[
        bool, typer.Option("--stats/--no-stats", help="Show speed and memory after each answer.")
    ] = True,
    history: Annotated[
        bool,
        typer.Option("--history/--no-history", help="Keep typed lines for the next chat."),
    ] = True,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "high",
    on_overflow: OnOverflowOption = "warn",
    capacity: CapacityOption = None,
    kv_cache_dtype: KvCacheDtypeOption = KvCacheDtype.F32,
    variant: VariantOption = None,
    revision: RevisionOption = None,
) -> None:
    """Chat with a language model.

    Sampling options default to those in the model's files. /help lists the commands; Ctrl-C stops
    an answer; Ctrl-D or, in a pipe, an empty line ends the chat.
    """
    from vkmnn.cli.chat import Start, chat_with
    from vkmnn.cli.generate import Where

    name, action = precision_name(precision), on_overflow_name(on_overflow)
    where = Where(model, device, name, capacity, variant, revision, action, kv_cache_dtype.value)
    options = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    chat_with(where, Start(system, options, stats, history))


ApiKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        envvar="VKMNN_API_KEY",
        metavar="KEY",
        help="An API key; requests need one of them (repeatable). Other users see it in the list "
        "of processes: prefer --api-key-file or VKMNN_API_KEY.",
    ),
]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="Another host name of the server (repeatable; * for any).",
    ),
]
AllowOriginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin",
        metavar="ORIGIN",
        help="An origin whose pages may send requests: https://name (repeatable; * for any).",
    ),
]
ProxyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--forwarded-allow-ips",
        metavar="ADDRESS",
        help="A proxy, or a network of proxies, whose X-Forwarded-For is trusted (repeatable).",
    ),
]
QueueOption = Annotated[
    int, typer.Option("--queue", min=1, help="Maximum number of waiting requests.")
]
PerClientOption = Annotated[
    int,
    typer.Option("--per-client", min=1, help="Maximum concurrent requests from one address."),
]
BodyOption = Annotated[
    int, typer.Option("--max-body", min=1, help="Maximum request body, in bytes.")
]
ServedOption = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]MODEL…",
        help="Folders of language models, encoders or pipelines, files of other networks, or "
        "owner/name of models on the hub.",
        show_default=False,
    ),
]
PortOption = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0: a free one.")
]
KeyFileOption = Annotated[
    Path | None, typer.Option("--api-key-file", help="A file of API keys, one per line.")
]
OnLostOption = Annotated[
    OnLost, typer.Option("--on-device-lost", help="Reopen a lost device, or fail its requests.")
]
AskedTokensOption = Annotated[
    int | None,
    typer.Option("--max-tokens", min=1, help="Maximum number of tokens per request."),
]
PerKeyOption = Annotated[
    int | None,
    typer.Option("--per-key", min=1, help="Maximum concurrent requests with one API key."),
]
GrpcPortOption = Annotated[
    int | None,
    typer.Option("--grpc-port", min=0, max=65535, help="Also serve networks by gRPC on this port."),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option("--log-format", help="Lines of text, or a JSON object for every request."),
]
TelemetryOption = Annotated[
    bool, typer.Option("--telemetry", help="Send traces by OpenTelemetry; see OTEL_* variables.")
]
BatchOption = Annotated[
    int,
    typer.Option(
        "--max-batch", min=1, help="Maximum rows of requests that share a run; 1: no sharing."
    ),
]
BatchDelayOption = Annotated[
    float,
    typer.Option(
        "--batch-delay", min=0, max=60000, help="Milliseconds that a request waits for others."
    ),
]
DevicesOption = Annotated[
    list[str] | None,
    typer.Option("--devices", help='Devices for networks: "all", or one (repeatable).'),
]
InstancesOption = Annotated[
    int, typer.Option("--instances", min=1, max=64, help="Sessions per network and device.")
]
RepositoryOption = Annotated[
    Path | None, typer.Option("--repository", help="A folder with one subfolder per model.")
]
ControlOption = Annotated[
    ModelControl,
    typer.Option(
        "--model-control",
        help="Load models at the start (none), also when files change (poll), or on "
        "request (explicit).",
    ),
]
PollOption = Annotated[
    float, typer.Option("--poll-seconds", min=0.1, help="Seconds between checks of the folder.")
]
ModelBytesOption = Annotated[
    int | None,
    typer.Option(
        "--max-model-bytes", min=1, help="Maximum bytes of the repository's loaded models."
    ),
]
DrainDelayOption = Annotated[
    float,
    typer.Option(
        "--drain-delay", min=0, help="Seconds to keep answering while unready, before shutdown."
    ),
]
DrainOption = Annotated[
    int,
    typer.Option("--drain", min=1, help="Seconds for running requests to finish at shutdown."),
]


@app.command()
def serve(
    models: ServedOption = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: PortOption = 8000,
    api_key: ApiKeyOption = None,
    api_key_file: KeyFileOption = None,
    allow_host: AllowHostOption = None,
    allow_origin: AllowOriginOption = None,
    forwarded_allow_ips: ProxyOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "high",
    on_overflow: OnOverflowOption = "warn",
    capacity: CapacityOption = None,
    kv_cache_dtype: KvCacheDtypeOption = KvCacheDtype.F32,
    variant: VariantOption = None,
    on_device_lost: OnLostOption = OnLost.REBUILD,
    max_tokens: AskedTokensOption = None,
    per_key: PerKeyOption = None,
    queue: QueueOption = 128,
    per_client: PerClientOption = 128,
    body_bytes: BodyOption = 16 << 20,
    drain: DrainOption = 30,
    drain_delay: DrainDelayOption = 0,
    max_batch: BatchOption = 32,
    batch_delay: BatchDelayOption = 0,
    devices: DevicesOption = None,
    instances: InstancesOption = 1,
    repository: RepositoryOption = None,
    model_control: ControlOption = ModelControl.NONE,
    poll_seconds: PollOption = 15,
    max_model_bytes: ModelBytesOption = None,
    grpc_port: GrpcPortOption = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    telemetry: TelemetryOption = False,
) -> None:
    """Serve models over HTTP.

    Language models, encoders and pipelines are served by OpenAI's API, other networks by the Open
    Inference Protocol v2.
    """
    from vkmnn.cli.serve import Door, Ending, Networks, Served, Told, serve_models

    limits = {
        "max_tokens": max_tokens,
        "queue": queue,
        "per_client": per_client,
        "body_bytes": body_bytes,
        "per_key": per_key,
    }
    name = precision_name(precision)
    action = on_overflow_name(on_overflow)
    served = Served(
        models or [], device, name, capacity, variant, on_device_lost.value, action,
        kv_cache_dtype.value,
    )  # fmt: skip
    door = Door(
        host, port, api_key or [], api_key_file, allow_host or [], allow_origin or [],
        forwarded_allow_ips or [], grpc_port,
    )  # fmt: skip
    networks = Networks(
        devices or [], instances, max_batch, batch_delay, repository, model_control.value,
        poll_seconds, max_model_bytes,
    )  # fmt: skip
    told = Told(log_format is LogFormat.JSON, telemetry)
    serve_models(served, networks, door, limits, Ending(drain_delay, drain), told)


@app.command()
def ops(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="An operator, or part of a name.", show_default=False),
    ] = None,
    plugins: Annotated[
        bool, typer.Option("--plugins", help="List the plug-ins and their registrations.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="List the operators of a format other than ONNX.",
        ),
    ] = None,
    mnn: Annotated[bool, typer.Option("--mnn", help="The same as --format mnn.")] = False,
    json: JsonOption = False,
) -> None:
    """List the supported operators.

    Those of ONNX or, with --format, of another format.
    """
    from vkmnn.cli.ops import list_format_ops, list_ops, list_plugins

    if plugins:
        list_plugins()
    elif format or mnn:
        list_format_ops(format or "mnn", name)
    else:
        list_ops(name)


@app.command()
def profile(
    model: ModelArgument,
    inputs: InputOption = None,
    shape: ShapeOption = None,
    device: DeviceOption = "auto",
    driver: DriverOption = None,
    precision: PrecisionOption = "high",
    on_overflow: OnOverflowOption = "warn",
    repeat: Annotated[int, option("--repeat", min=1, help="Runs to measure.")] = 10,
    by: Annotated[str, typer.Option("--by", help="How to group the rows.")] = ROWS[0],
    top: Annotated[
        int, typer.Option("--top", min=0, help="Number of rows to show, slowest first; 0: all.")
    ] = 20,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Write a trace for ui.perfetto.dev or chrome://tracing."),
    ] = None,
    html: HtmlOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Measure where the time of a model goes, op by op."""
    from vkmnn.cli.profile import profile_model
    from vkmnn.cli.run import RunOptions

    if by not in ROWS:
        raise InvalidInputError(f"--by {by} is not known", hint=nearest(by, ROWS, "rows"))
    name = precision_name(precision)
    options = RunOptions(device, driver, None, inputs or [], shape or [], seed, repeat, name)
    options = replace(options, on_overflow=on_overflow_name(on_overflow))
    profile_model(model, options, by, top, trace, html)


@app.command()
def plan(
    model: ModelArgument,
    profile: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="PROFILE",
            help="The device profile to plan for; `vkmnn devices --profiles` lists them.",
            show_default=False,
        ),
    ],
    shape: ShapeOption = None,
    precision: PrecisionOption = "high",
    alone: Annotated[
        bool, typer.Option("--alone", help="Leave out the predictions for other profiles.")
    ] = False,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Predict how a model runs on another device.

    Shows the kernels and their expected times; the device is not needed.
    """
    from vkmnn.cli.plan import plan_model

    plan_model(model, profile, precision_name(precision), shape or [], alone, html)


@app.command()
def bench(
    model: ModelArgument,
    inputs: InputOption = None,
    shape: ShapeOption = None,
    device: DeviceOption = "auto",
    rounds: Annotated[int, option("--repeat", "--rounds", min=1, help="Rounds per engine.")] = 7,
    engine: Annotated[
        list[str] | None,
        option("--engine", help="Part of an engine's name (repeatable)."),
    ] = None,
    fp16: Annotated[bool, typer.Option("--fp16", help="Also compare in float16.")] = False,
    threads: Annotated[
        int,
        typer.Option("--threads", min=0, help="Threads of engines on the CPU; 0: one per core."),
    ] = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds an engine may take for one answer.")
    ] = 900,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Compare vkmnn with other engines.

    Engines: onnxruntime, MNN and ncnn (Vulkan), whichever are installed.
    """
    from vkmnn.cli.bench import bench_model
    from vkmnn.cli.run import RunOptions

    options = RunOptions(device, None, None, inputs or [], shape or [], seed, rounds)
    bench_model(model, options, engine or [], fp16, threads, timeout)


@app.command()
def tune(
    model: ModelArgument,
    inputs: InputOption = None,
    shape: ShapeOption = None,
    device: DeviceOption = "auto",
    driver: DriverOption = None,
    precision: PrecisionOption = "high",
    on_overflow: OnOverflowOption = "warn",
    repeat: Annotated[
        int,
        option("--repeat", min=1, help="Runs of each candidate; the fastest counts."),
    ] = 5,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Measure kernels, and store the fastest.

    Later runs of the model on this device use the stored choices.
    """
    from vkmnn.cli.run import RunOptions
    from vkmnn.cli.tune import tune_model

    name = precision_name(precision)
    options = RunOptions(device, driver, None, inputs or [], shape or [], seed, repeat, name)
    options = replace(options, on_overflow=on_overflow_name(on_overflow))
    tune_model(model, options)


def set_up_logging() -> None:
    """Show the library's log on the standard error, from the level `VKMNN_LOG` on.

    Raises:
        InvalidInputError: the variable does not name a level.
    """
    text = os.environ.get("VKMNN_LOG", "").strip().lower() or "warning"
    if text not in _LEVELS:
        raise InvalidInputError(
            f"VKMNN_LOG={text!r} is not a log level", hint=f"set it to {', '.join(_LEVELS)}"
        )
    log = logging.getLogger("vkmnn")
    log.handlers = [LogHandler()]
    log.setLevel(text.upper())


def run_cli(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status; errors of vkmnn show without traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console may lack ✓ or µ
    out.quiet = False
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has closed it
        _discard_output()
        return 1
    except OSError as error:
        if error.filename is not None:  # not the output, which has no name
            return _refused(InvalidInputError(str(error), hint=_PATH_HINT), error)
        _discard_output()
        show_error(InvalidInputError(f"the output cannot be written: {error}"))
        return 1
    return status


def _discard_output() -> None:
    """Discard Python's buffered output at exit: standard output has been closed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str] | None) -> int:
    try:
        set_up_logging()
        app(arguments, prog_name="vkmnn")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except VkmnnError as error:
        return _refused(error, error)
    return 0


def _refused(told: VkmnnError, raised: Exception) -> int:
    """Print an error, or raise its cause if tracebacks are requested."""
    if os.environ.get("VKMNN_DEBUG", "") not in ("", "0"):
        raise raised
    show_error(told)
    return 1
