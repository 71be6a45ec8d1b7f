"""`python -m benchmarks` (`python3 tasks.py bench`): see docs/benchmarks.md."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import (
    ceilings,
    decoding,
    drivers,
    families,
    gemm,
    kernels,
    llm,
    mapping,
    networks,
    overhead,
    plots,
    results,
    scaling,
    serving,
    start,
    weightless,
)
from benchmarks.gpu import command as gpu_page
from benchmarks.gpu import step as gpu_steps
from benchmarks.networks import Network
from benchmarks.results import Results
from benchmarks.storm import Storm
from vkmnn.bench.compare import Place, engines, place
from vkmnn.bench.document import networks as network_data
from vkmnn.cli.app import KvCacheDtype
from vkmnn.cli.bench import networks_table, progress, show_bars, show_failures
from vkmnn.cli.console import bytes_text, err, heading, note, show, table
from vkmnn.errors import VkmnnError
from vkmnn.runtime.device import open_device
from vkmnn.runtime.device_info import DeviceType

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure vkmnn. Results go to build/bench, or where --output says.",
)

ModelsArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[MODEL]...", help="ONNX files instead of the known networks."),
]
DeviceOption = Annotated[str, typer.Option("--device", "-d", help="Index, name or UUID.")]
RoundsOption = Annotated[int, typer.Option("--rounds", "-n", min=1, help="Rounds per engine.")]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", help="A part of a network's name (repeatable).")
]
LightOption = Annotated[
    bool, typer.Option("--light", help="The networks of the onnx package: no PyTorch is needed.")
]
Fp16Option = Annotated[
    bool | None, typer.Option("--fp16/--no-fp16", help="float16 too. Default: on GPUs.")
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option("--engine", "-e", help="A part of the name of an engine (repeatable)."),
]
ThreadsOption = Annotated[
    int, typer.Option("--threads", min=0, help="Of engines on the CPU; 0: one a core.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="Seconds that an engine may take for one answer.")
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Folder for results.")]
RecordOption = Annotated[
    bool, typer.Option("--record", help="Also add to benchmarks/history.jsonl, to be committed.")
]


LargestOption = Annotated[
    int, typer.Option("--largest", help="Matrix products up to this M, N and K only.")
]


@dataclass(frozen=True, slots=True)
class Setting:
    """The device and models of a command, and where its results go."""

    where: Place
    fp16: bool
    models: list[Network]
    results: Results

    @property
    def title(self) -> str:
        """Device and driver."""
        return f"{self.where.device_name} ({self.where.driver})"

    def drawing(self, name: str) -> Path | None:
        """Return where a plot goes; None, reported once per run, if none can be drawn."""
        return self.results.folder / f"{name}.png" if plots.available() else None


def _setting(
    models: list[Path] | None,
    only: list[str] | None,
    light: bool,
    fp16: bool | None,
    where: Place,
    output: Path,
    record: bool,
) -> Setting:
    if models:
        found = [networks.from_file(path) for path in models]
    else:
        try:
            with progress() as report:
                report("exporting networks")
                found = networks.networks(only or [], light=light)
        except ImportError as error:
            note(f"{error}: taking the onnx package's networks; pip install 'vkmnn[networks]'")
            found = networks.networks(only or [], light=True)
    if not plots.available():
        note(plots.HINT)
    halves = _on_gpus(fp16, where)
    return Setting(where, halves, found, Results(output, where, record))


def _on_gpus(wanted: bool | None, where: Place) -> bool:
    if wanted is not None:
        return wanted
    return open_device(where.device).info.type is not DeviceType.CPU


def _networks(setting: Setting, names: list[str]) -> None:
    measured = []
    for network in setting.models:
        specs = networks.specs_for(network, setting.fp16, names)
        with progress() as report:
            measured.append(networks.measure(network, specs, setting.where, report))
        # Results so far are kept: a later network may take hours, or crash the machine.
        setting.results.save("networks", network_data(measured))
    heading(f"Networks on {setting.title}, {setting.where.threads} threads on the CPU")
    show(networks_table(measured))
    show_bars(measured)
    show_failures(measured)
    drawing = setting.drawing("networks")
    if drawing and measured:
        plots.draw_networks(measured, setting.title, drawing)


def _overhead(setting: Setting, rounds: int) -> None:
    figures = overhead.measure(open_device(setting.where.device), rounds)
    setting.results.save("overhead_us", figures)
    heading(f"Overhead on {setting.title}")
    show(overhead.figures_table(figures))


def _kernels(setting: Setting, runs: int) -> None:
    with progress() as report:
        report("measuring the ceilings")
        limits = ceilings.measure(open_device(setting.where.device))
        rates = {}
        for network in setting.models:
            report(f"{network.name}: profile")
            rates[network.name] = kernels.measure(network, setting.where.device, runs, limits)
    setting.results.save("kernels", results.kernels_data(limits, rates))
    heading(f"Ceilings of {setting.title}")
    show(kernels.ceilings_table(limits))
    for name, rows in rates.items():
        heading(name)
        show(kernels.rates_table(rows))
    drawing = setting.drawing("roofline")
    if drawing:
        plots.draw_roofline(rates, limits, setting.title, drawing)


def _gemm(setting: Setting, runs: int, largest: int) -> None:
    rows = []
    with progress() as report:
        for precision in gemm.STORED if setting.fp16 else ("high",):
            for size in gemm.SIZES:
                if max(size) <= largest:
                    report(f"product {'×'.join(map(str, size))}, precision {precision}")
                    row = gemm.measure(size, precision, setting.where.device, runs)
                    rows += [row] if row else []
    setting.results.save("gemm", [asdict(row) for row in rows])
    heading(f"Matrix products on {setting.title}")
    show(gemm.gemm_table(rows))


def _families(setting: Setting, runs: int, largest: int) -> None:
    device = open_device(setting.where.device)
    halves = setting.fp16 and "storage16" in device.info.features
    rows: list[families.FamilyResult] = []
    with progress() as report:
        for half in (False, True) if halves else (False,):
            for size in families.SIZES:
                if max(size) <= largest:
                    report(f"kernels of a product {'×'.join(map(str, size))}")
                    rows += families.measure(size, half, device, runs)
    setting.results.save("families", [asdict(row) for row in rows])
    heading(f"Kernels of matrix products on {setting.title}, {families.CHAIN} in a chain")
    show(families.families_table(rows))


def _scaling(setting: Setting, only: list[str], names: list[str], budget_s: float) -> None:
    specs = engines(False, names or ["vkmnn", "onnxruntime"])
    measured = []
    for series in scaling.SERIES:
        title = f"{series.network} {series.axis}".lower()
        if only and not any(part.lower() in title for part in only):
            continue
        with progress() as report:
            points = scaling.run_series(series, specs, setting.where, budget_s, report)
        measured.append((series, points))
        setting.results.save("scaling", results.scaling_data(measured))
        heading(f"{series.network} by {series.axis}")
        show(scaling.series_table(series, points))
        show_failures([point.comparison for point in points])
        drawing = setting.drawing(f"scaling-{title.replace('/', '-').replace(' ', '-')}")
        if drawing:
            plots.draw_scaling(series, points, drawing)


def _start(setting: Setting) -> None:
    rows = []
    with progress() as report:
        for network in setting.models:
            report(f"{network.name}: start")
            rows.append(start.measure(network, setting.where))
    setting.results.save("start", results.start_data(rows))
    heading(f"Time to the first result on {setting.title}")
    show(start.start_table(rows))
    heading("Opening the file, caches full, beside onnxruntime")
    show(start.openings_table(rows))


@app.command("networks")
def networks_command(
    models: ModelsArgument = None,
    device: DeviceOption = "auto",
    rounds: RoundsOption = 9,
    only: OnlyOption = None,
    light: LightOption = False,
    engine: EngineOption = None,
    fp16: Fp16Option = None,
    threads: ThreadsOption = 0,
    timeout: TimeoutOption = 900,
    output: OutputOption = results.DEFAULT,
    record: RecordOption = False,
) -> None:
    """Latency of networks, compared with onnxruntime, ncnn and PyTorch."""
    where = place(device, threads, rounds, timeout)
    _networks(_setting(models, only, light, fp16, where, output, record), engine or [])


@app.command("overhead")
def overhead_command(
    device: DeviceOption = "auto",
    rounds: RoundsOption = 30,
    output: OutputOption = results.DEFAULT,
    record: RecordOption = False,
) -> None:
    """The cost of Python: a run, recording, planning a new shape."""
    where = place(device, 0, rounds, 0)
    _overhead(Setting(where, False, [], Results(output, where, record)), rounds)


@app.command("llm")
def llm_command(
    device: DeviceOption = "auto",
    prompt: Annotated[int, typer.Option("--prompt", min=1, help="Tokens of the prompt.")] = 64,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Tokens of the text.")] = 64,
    shape: Annotated[str, typer.Option("--shape", help=f"{', '.join(llm.SHAPES)}.")] = "125m",
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Of the model. Default: the shape's.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", "-n", min=1, help="Texts per engine.")] = 3,
    bits: Annotated[int, typer.Option("--bits", help="Of weights: 4, 8, or 32 for floats.")] = 4,
    texts: Annotated[int, typer.Option("--texts", min=1, help="Texts at once.")] = 1,
    precision: Annotated[
        list[str] | None,
        typer.Option("--precision", help=f"{', '.join(llm.PRECISIONS)} (repeatable)."),
    ] = None,
    kv_cache_dtype: Annotated[
        KvCacheDtype, typer.Option("--kv-cache-dtype", help="Storage of keys and values.")
    ] = KvCacheDtype.F32,
    output: OutputOption = results.DEFAULT,
) -> None:
    """Tokens per second of a LLaMA-like model, compared with onnxruntime and llama.cpp."""
    if shape not in llm.SHAPES:
        raise typer.BadParameter(f"there are {', '.join(llm.SHAPES)}", param_hint="--shape")
    if bits not in (4, 8, 32):
        raise typer.BadParameter(f"{bits} bits", param_hint="--bits")
    sizes = replace(llm.SHAPES[shape], bits=bits)
    if layers is not None:
        sizes = replace(sizes, layers=layers)
    wanted = [name for name in llm.PRECISIONS if name in (precision or ["high"])]
    if unknown := {*(precision or [])} - {*wanted}:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}", param_hint="--precision")
    load = llm.Load(prompt, tokens, texts, kv_cache_dtype.value)
    found, name = llm.measure(output / "llm", sizes, device, load, rounds, wanted)
    data = {"shape": shape, "layers": sizes.layers, "bits": bits, **asdict(load)}
    where = place(device, 0, rounds, 0)
    Results(output, where, False).save("llm", data | {"rates": [asdict(rate) for rate in found]})
    texts_text = f"{tokens} more" if texts == 1 else f"{tokens} more, {texts} texts at once"
    heading(f"{name}, weights of {bits} bits, a prompt of {prompt} tokens and {texts_text}")
    columns = ("prompt, tokens/s", "text, tokens/s", "dispatches a run", "host, ms a token")
    rows = table("engine", "precision", *columns, right=columns)
    for rates in found:
        commands = "" if rates.commands is None else f"{rates.commands:.1f}"
        host = "" if rates.host_ms is None else f"{rates.host_ms:.3f}"
        speeds = f"{rates.prefill:.1f}", f"{rates.decode:.1f}"
        rows.add_row(rates.engine, rates.precision, *speeds, commands, host)
    show(rows)


@app.command("decode")
def decode_command(
    device: DeviceOption = "auto",
    layers: Annotated[int, typer.Option("--layers", min=1, help="Of the decoder.")] = 4,
    width: Annotated[int, typer.Option("--width", min=32, help="A multiple of 32.")] = 128,
    tokens: Annotated[int, typer.Option("--tokens", min=8, help="Of the text.")] = decoding.TOKENS,
) -> None:
    """A token with growing caches, compared with the same network at a fixed length."""
    sizes = decoding.Decoder(layers, width, heads=width // 32)
    times = decoding.measure(sizes, device, tokens)
    heading(f"a token, {layers} layers of width {width}, caches on the device")
    rows = table("caches", "ms", right=("ms",))
    rows.add_row("growing", f"{times.growing * 1e3:.2f}")
    rows.add_row(f"{decoding.FIXED} rows, from the host", f"{times.fixed * 1e3:.2f}")
    show(rows)
    note(f"{times.growing / times.fixed:.2f} times the network at one length")


@app.command("serve")
def serve_command(
    device: DeviceOption = "auto",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Of each loop.")] = 10,
    text: Annotated[
        Path | None, typer.Option("--text", help="A GGUF file: also texts, and llama.cpp's server.")
    ] = None,
    storm: Annotated[
        float | None,
        typer.Option("--storm", min=1, help="Seconds with 200 clients, instead of loops."),
    ] = None,
    output: OutputOption = results.DEFAULT,
    record: RecordOption = False,
) -> None:
    """Requests per second and response times of servers, with and without batching."""
    where = place(device, 0, 1, 0)
    if storm is not None:
        _storm(where, serving.measure_storm(device, storm, text), output, record)
        return
    with progress() as report:
        found = serving.measure(device, seconds, text, report)
    Results(output, where, record).save("serving", [asdict(one) for one in found])
    heading(f"Servers on {where.device_name} ({where.driver})")
    columns = ("requests/s", "tokens/s", "p50, ms", "p99, ms", "failed", "peak")
    rows = table("server", "loop", *columns, right=columns)
    for one in found:
        for load in one.loads:
            unit = "clients" if load.kind == "closed" else "a second"
            tokens = f"{load.rate * one.tokens:.1f}" if one.tokens else ""
            peak = "" if one.peak_bytes is None else bytes_text(one.peak_bytes)
            rows.add_row(
                one.engine, f"{load.level:g} {unit}", f"{load.rate:.0f}", tokens,
                f"{load.p50_ms:.1f}", f"{load.p99_ms:.1f}", str(load.failed), peak,
            )  # fmt: skip
    show(rows)
    for one in found:
        if one.error:
            note(f"{one.engine}: {one.error}")


def _storm(where: Place, found: Storm, output: Path, record: bool) -> None:
    told = found.summary()
    Results(output, where, record).save("storm", told)
    heading(f"{found.clients} clients for {found.seconds:g} s on {where.device_name}")
    rows = table("short prompts", "answers", "p50, ms", "p99, ms", right=("answers", "p50, ms"))
    for name, kind in (("without long ones", "quiet_ms"), ("beside long ones", "long_ms")):
        times = (f"{told[f'{part}_{kind}']:.0f}" for part in ("p50", "p99"))
        rows.add_row(name, str(len(getattr(found, kind))), *times)
    show(rows)
    if found.ratio:
        note(f"p99 beside long prompts is {found.ratio:.2f} times that without")
    else:
        note("answers take longer than a round: give --storm more seconds")
    note(", ".join(f"{name} {count}" for name, count in sorted(found.counts.items())))
    if len(found.rest) == 2:
        before, after = found.rest
        note(f"memory {bytes_text(before.memory)}, then {bytes_text(after.memory)}, of which the "
             f"second half added {found.growth / (1 << 20):.1f} MiB; files {before.files}, then "
             f"{after.files}; threads {before.threads}, then {after.threads}")  # fmt: skip
    for fault in found.faults:
        note(f"fault: {fault}")
    if found.faults or found.stuck:
        note(f"{len(found.faults)} faults, {found.stuck:g} jobs that do not end")
        raise typer.Exit(1)


@app.command("map")
def map_command(
    devices: Annotated[
        list[str] | None, typer.Option("--devices", help="As of vkmnn map (repeatable).")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Pictures.")] = 20_000,
    rounds: Annotated[int, typer.Option("--rounds", "-n", min=1, help="Runs of each.")] = 3,
    output: OutputOption = results.DEFAULT,
    record: RecordOption = False,
) -> None:
    """Small pictures per second of `vkmnn map`, compared with loops around a run."""
    chosen = devices or ["all"]
    where = place("auto" if chosen[0] == "all" else chosen[0].split(",")[0], 0, rounds, 0)
    with progress() as report:
        found = mapping.measure(count, rounds, chosen, report)
    Results(output, where, record).save("mapping", [asdict(one) for one in found])
    heading(f"{count} pictures on {where.device_name} ({where.driver})")
    columns = ("pictures/s", "processor, µs", "times the loop")
    rows = table("process", *columns, right=columns)
    for one in found:
        if one.error:
            note(f"{one.engine}: {one.error}")
            continue
        times = f"{one.rate / found[0].rate:.2f}" if found[0].rate else ""
        rows.add_row(one.engine, f"{one.rate:.0f}", f"{one.processor_us:.0f}", times)
    show(rows)


@app.command("kernels")
def kernels_command(
    models: ModelsArgument = None,
    device: DeviceOption = "auto",
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="Profiled runs.")] = 10,
    only: OnlyOption = None,
    light: LightOption = False,
    output: OutputOption = results.DEFAULT,
    record: RecordOption = False,
) -> None:
    """FLOP/s and bytes per second of every kernel, against the device's ceilings."""
    where = place(device, 0, 1, 0)
    _kernels(_setting(models, only, light, False, where, output, record), runs)


@app.command("gemm")
def gemm_command(
    device: DeviceOption = "auto",
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="Profiled runs.")] = 10,
    largest: LargestOption = 4096,
    fp16: Fp16Option = None,
    every: Annotated[
        bool | None,
        typer.Option("--families/--no-families", help="Every kernel apart. Default: on GPUs."),
    ] = None,
    output: OutputOption = results.DEFAULT,
    record: RecordOption = False,
) -> None:
    """FLOP/s of matrix products, compared with cuBLAS if there is a CUDA device."""
    where = place(device, 0, 1, 0)
    halves = _on_gpus(fp16, where)
    setting = Setting(where, halves, [], Results(output, where, record))
    _gemm(setting, runs, largest)
    if _on_gpus(every, where):
        _families(setting, runs, largest)


@app.command("gpu")
def gpu_command(
    models: ModelsArgument = None,
    device: DeviceOption = "auto",
    minutes: Annotated[float, typer.Option("--minutes", "-m", min=0.1, help="In all.")] = 30,
    step: Annotated[
        list[str] | None, typer.Option("--step", help="One of the steps (repeatable).")
    ] = None,
    only: OnlyOption = None,
    light: LightOption = False,
    fp16: Fp16Option = None,
    output: OutputOption = results.DEFAULT,
    record: Annotated[
        bool, typer.Option("--record", help="Keep the raw numbers in benchmarks/devices.")
    ] = False,
) -> None:
    """First half hour on a device: correctness, and measured against predicted times."""
    where = place(device, 0, 3, 600)
    setting = _setting(models, only, light, fp16, where, output, record=False)
    opened = open_device(device)
    halves = setting.fp16 and "storage16" in opened.info.features
    with progress() as report:
        steps = gpu_steps.Setting(opened, where, setting.models, halves, say=report)
        head, kept = results.head(where), results.DEVICES if record else None
        right = gpu_page.run(steps, minutes, output, head, step or [], kept)
    if not right:
        raise typer.Exit(1)


@app.command("scaling")
def scaling_command(
    device: DeviceOption = "auto",
    rounds: RoundsOption = 5,
    only: OnlyOption = None,
    engine: EngineOption = None,
    budget: Annotated[float, typer.Option("--budget", help="Seconds for a series.")] = 240,
    threads: ThreadsOption = 0,
    timeout: TimeoutOption = 900,
    output: OutputOption = results.DEFAULT,
    record: RecordOption = False,
) -> None:
    """Latency by batch, image size and sequence length; needs PyTorch."""
    where = place(device, threads, rounds, timeout)
    setting = Setting(where, False, [], Results(output, where, record))
    _scaling(setting, only or [], engine or [], budget)


@app.command("start")
def start_command(
    models: ModelsArgument = None,
    device: DeviceOption = "auto",
    only: OnlyOption = None,
    light: LightOption = False,
    timeout: TimeoutOption = 900,
    output: OutputOption = results.DEFAULT,
    record: RecordOption = False,
) -> None:
    """Time to the first result without caches and with them, compared with onnxruntime; memory."""
    where = place(device, 0, 1, timeout)
    _start(_setting(models, only, light, False, where, output, record))


@app.command("export")
def export_command(folder: Path, only: OnlyOption = None) -> None:
    """Write the known networks without their weights, for machines without PyTorch."""
    folder.mkdir(parents=True, exist_ok=True)
    for network in networks.networks(only or []):
        path = folder / f"{network.name.replace('/', '-')}.onnx"
        weightless.strip(network.path, path)
        note(f"{path}: {bytes_text(path.stat().st_size)}")


@app.command("all")
def all_command(
    models: ModelsArgument = None,
    device: DeviceOption = "auto",
    rounds: RoundsOption = 9,
    only: OnlyOption = None,
    light: LightOption = False,
    fp16: Fp16Option = None,
    threads: ThreadsOption = 0,
    budget: Annotated[float, typer.Option("--budget", help="Seconds for a series.")] = 240,
    largest: LargestOption = 4096,
    timeout: TimeoutOption = 900,
    output: OutputOption = results.DEFAULT,
    record: RecordOption = False,
) -> None:
    """All benchmarks in turn; failures are reported, and the others continue."""
    where = place(device, threads, rounds, timeout)
    setting = _setting(models, only, light, fp16, where, output, record)
    parts = {
        "overhead": lambda: _overhead(setting, 30),
        "networks": lambda: _networks(setting, []),
        "kernels": lambda: _kernels(setting, rounds),
        "gemm": lambda: _gemm(setting, rounds, largest),
        "start": lambda: _start(setting),
        "scaling": lambda: _scaling(setting, only or [], [], budget),
    }
    failed = []
    for name, run in parts.items():
        if name == "scaling" and (models or light):
            continue  # grows networks that it knows
        try:
            run()
        except (VkmnnError, ImportError, OSError) as error:
            note(f"{name} failed: {error}")
            failed.append(name)
    note(f"results are in {output}")
    if failed:
        raise typer.Exit(1)


app.command("drivers")(drivers.main)


if __name__ == "__main__":
    try:
        app(prog_name="bench")
    except VkmnnError as error:
        err.print(f"error: {error}", markup=False)
        raise SystemExit(1) from error
