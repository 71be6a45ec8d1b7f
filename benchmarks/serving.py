"""Requests a second and times of answers under load: a network, and texts."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import llama_cpp, storm
from benchmarks.load import Load

KINDS = ("vkmnn, batched", "vkmnn, one by one", "onnxruntime, batched", "onnxruntime, one by one")
WIDTHS = (256, 1024, 1024, 10)
CLOSED = (1, 8, 32)
OPEN = (100.0, 400.0)
LLAMA = "llama-server"
STORMY = llama_cpp.Shape(4, 256, 4, 2, 512, 512, 2048)
"""Of the model in a storm, unless a file is given."""

_TOKENS = 16
_START_S = 600.0
_OWN = (sys.executable, "-m", "vkmnn", "serve")


@dataclass(frozen=True, slots=True)
class Served:
    """A server under load.

    Attributes:
        engine: its name.
        loads: the loops.
        peak_bytes: the most memory that its process had; None if that is not known.
        tokens: tokens of each answer; 0 for networks.
        error: why it was not measured.
    """

    engine: str
    loads: list[Load] = field(default_factory=list)
    peak_bytes: int | None = None
    tokens: int = 0
    error: str = ""


def write_network(path: Path, widths: Sequence[int] = WIDTHS) -> None:
    """Write a perceptron with random weights."""
    random = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for number, (rows, columns) in enumerate(itertools.pairwise(widths)):
        matrix = random.standard_normal((rows, columns)) / rows**0.5
        weights.append(numpy_helper.from_array(matrix.astype(np.float32), f"w{number}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{number}"], [f"h{number}"]))
        nodes.append(helper.make_node("Relu", [f"h{number}"], [f"r{number}"]))
        name = f"r{number}"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", size])
            for n, size in (("x", widths[0]), (name, widths[-1])))  # fmt: skip
    graph = helper.make_graph(nodes, "perceptron", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))


def network_request(width: int = WIDTHS[0], name: str = "m") -> bytes:
    """Return a request for one row of the network, as bytes."""
    row = np.random.default_rng(1).standard_normal((1, width)).astype(np.float32)
    about = {"name": "x", "datatype": "FP32", "shape": [1, width],
             "parameters": {"binary_data_size": row.nbytes}}  # fmt: skip
    head = json.dumps({"inputs": [about], "parameters": {"binary_data_output": True}}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return storm.request_of(f"/v2/models/{name}/infer", head + row.tobytes(), length)


def text_request() -> bytes:
    """Return a request for a text of 16 tokens."""
    body = {"model": "m", "prompt": "The quick brown fox", "max_tokens": _TOKENS, "temperature": 0,
            "ignore_eos": True}  # fmt: skip
    return storm.request_of(
        "/v1/completions", json.dumps(body).encode(), "Content-Type: application/json\r\n"
    )


def measure(
    device: str, seconds: float, text: Path | None, report: Callable[[str], None]
) -> list[Served]:
    """Measure a network on each server, and a language model if one is given.

    Args:
        device: of vkmnn.
        seconds: of each loop.
        text: a GGUF file.
        report: called with what is measured next.
    """
    made = []
    with tempfile.TemporaryDirectory(prefix="vkmnn-serving-") as folder:
        path, request = Path(folder, "m.onnx"), Path(folder, "request")
        write_network(path)
        request.write_bytes(network_request())
        for kind in KINDS:
            report(kind)
            try:
                with _network_server(kind, path, device) as (port, peak):
                    made.append(Served(kind, _loads(request, port, seconds, CLOSED, OPEN)))
                made[-1] = Served(kind, made[-1].loads, peak.get("peak_bytes"))
            except (OSError, RuntimeError, ValueError) as error:
                made.append(Served(kind, error=str(error)))
        if text is not None:
            request.write_bytes(text_request())
            for engine, command in _text_servers(text, device).items():
                report(engine)
                try:
                    with _program(command) as (port, process):
                        tokens = _tokens(port)
                        loads = _loads(request, port, seconds, (1, 8), ())
                        made.append(Served(engine, loads, _peak_of(process), tokens))
                except (OSError, RuntimeError, ValueError, LookupError) as error:
                    made.append(Served(engine, error=str(error)))
    return made


def measure_storm(
    device: str, seconds: float, text: Path | None, clients: int = 200, characters: int = 1500
) -> storm.Storm:
    """Let many clients ask vkmnn's server, some of which leave, for texts and a network.

    Args:
        device: of vkmnn.
        seconds: how long.
        text: a GGUF file; None for a small model with random weights.
        clients: how many.
        characters: of a long prompt.

    Raises:
        RuntimeError: the server does not start, or refuses the first requests.
    """
    with tempfile.TemporaryDirectory(prefix="vkmnn-storm-") as folder:
        network, model = Path(folder, "net.onnx"), text or Path(folder, "m.gguf")
        write_network(network)
        if text is None:
            llama_cpp.write_gguf(model, STORMY, texts=True)
        command = [*_OWN, f"m={model}", f"net={network}", "--device", device, "--per-client",
                   str(2 * clients)]  # fmt: skip
        with _program(command) as (port, process):
            request = network_request(name="net")
            return storm.measure(port, process, clients, seconds, request, characters)


def _loads(
    request: Path, port: int, seconds: float, clients: Sequence[int], rates: Sequence[float]
) -> list[Load]:
    _loop(request, port, "closed", max(clients), seconds)  # plans, caches
    return [
        *(_loop(request, port, "closed", count, seconds) for count in clients),
        *(_loop(request, port, "open", rate, seconds) for rate in rates),
    ]


def _loop(request: Path, port: int, kind: str, level: float, seconds: float) -> Load:
    command = [sys.executable, "-m", "benchmarks.load", request, port, kind, level, seconds]
    told = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True
    )
    return Load(**json.loads(told.stdout))


@contextmanager
def _network_server(kind: str, path: Path, device: str) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the port of a server, and a dictionary that has its peak memory at the end."""
    command = [sys.executable, "-m", "benchmarks.served", kind, str(path), device]
    pipe = subprocess.PIPE
    peak: dict[str, int] = {}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _, told = process.communicate()
            raise RuntimeError(told.strip().splitlines()[-1] if told.strip() else "it has ended")
        try:
            _wait_for(int(line), process)
            yield int(line), peak
        finally:
            rest, _ = process.communicate()
            with suppress(ValueError):
                peak |= json.loads(rest)


def _text_servers(model: Path, device: str) -> dict[str, list[str]]:
    """Return the commands of the servers of texts that are installed, without the port."""
    found = {"vkmnn": [*_OWN, f"m={model}", "--device", device]}
    if shutil.which(LLAMA):
        found["llama.cpp"] = [LLAMA, "-m", str(model), "-ngl", "99", "-np", "8"]
    return found


@contextmanager
def _program(command: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the port and the process of a server that is started with a command."""
    with socket.create_server(("127.0.0.1", 0)) as plug:
        port: int = plug.getsockname()[1]
    quiet = subprocess.DEVNULL
    with subprocess.Popen([*command, "--port", str(port)], stdout=quiet, stderr=quiet) as process:
        try:
            _wait_for(port, process)
            yield port, process.pid
        finally:
            process.terminate()


def _wait_for(port: int, process: subprocess.Popen[Any]) -> None:
    """Wait until a server is ready: llama.cpp's listens before it has read the model."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"it has ended with status {process.returncode}")
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
            return
        time.sleep(0.1)
    raise RuntimeError(f"nothing is ready on port {port}")


def _tokens(port: int) -> int:
    """Return the tokens of an answer: a model may end its text before the limit."""
    body = text_request().partition(b"\r\n\r\n")[2]
    request = Request(f"http://127.0.0.1:{port}/v1/completions", body)
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=_START_S) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def _peak_of(process: int) -> int | None:
    """Return the most memory that a process has had; None where there is no /proc."""
    with suppress(OSError):
        told = Path(f"/proc/{process}/status").read_text("utf-8")
        if peak := re.search(r"VmHWM:\s+(\d+)", told):
            return int(peak[1]) * 1024
    return None
