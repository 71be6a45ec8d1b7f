"""Loads, plans and runs malformed models in a separate process.

`python -m vkmnn_suite.fuzz.tormentor STARTS`: it reads a line of JSON for each model and writes
two, the last of which marks the end. STARTS may be empty. A model may use at most 1 GiB of memory
in addition to that of the process.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

from vkmnn.inference_session import InferenceSession
from vkmnn_suite.fuzz.files import make_damaged
from vkmnn_suite.fuzz.hostile import Start, load_starts, make_hostile
from vkmnn_suite.fuzz.ordeal import Outcome, undergo

MEMORY_BYTES = 1 << 30
FILES = (".vkmnn", ".mnn", ".caffemodel", ".pb")
"""Suffixes of files that are damaged as bytes."""


def limit_memory() -> None:
    """Let the process use 1 GiB more than it does now, if the system supports such limits."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (ImportError, OSError):
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(
        resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
    )


def answer(command: dict[str, Any], starts: Sequence[Start]) -> dict[str, Any]:
    """Execute a command for one model."""
    if command.get("files") or Path(command.get("path", "")).suffix in FILES:
        return _answer_file(command)
    if "path" in command:
        model, done = onnx.load(command["path"], load_external_data=False), [command["path"]]
    else:
        model, done = make_hostile(command["seed"], command["number"], starts, command["without"])
    if "save" in command:
        Path(command["save"]).write_bytes(model.SerializeToString())
        return {**asdict(Outcome("saved")), "steps": done}
    limit_memory()
    outcome = undergo(model, command["devices"])
    return {**asdict(outcome), "steps": done}


def _answer_file(command: dict[str, Any]) -> dict[str, Any]:
    """Execute a command for one file of another format."""
    if "path" in command:
        path = Path(command["path"])
        data, suffix, done = path.read_bytes(), path.suffix, [path.name]
    else:
        starts = [Path(name) for name in command["files"]]
        made = make_damaged(command["seed"], command["number"], starts, command["without"])
        data, suffix, done = made
    if "save" in command:
        Path(command["save"]).with_suffix(suffix).write_bytes(data)
        return {**asdict(Outcome("saved")), "steps": done}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"damaged{suffix}"
        path.write_bytes(data)
        limit_memory()
        outcome = undergo(path, command["devices"])
    return {**asdict(outcome), "steps": done}


def main() -> None:
    """Answer until the input ends."""
    starts = load_starts(Path(sys.argv[1])) if sys.argv[1] else []
    keep: list[InferenceSession] = []
    # A driver's output must not mix with the answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer_to:
        os.dup2(2, 1)
        for line in sys.stdin:
            command = json.loads(line)
            if not keep:
                keep = [_tiny(device) for device in command.get("devices", ())]
            result = answer(command, starts)
            gc.collect(0)
            answer_to.write(json.dumps(result) + "\n" + json.dumps({"done": True}) + "\n")
            answer_to.flush()


def _tiny(device: str) -> InferenceSession:
    """Return a session that keeps the device open, after importing everything."""
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "tiny",
        [info("x", TensorProto.FLOAT, [4])],
        [info("y", TensorProto.FLOAT, [4])],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return InferenceSession(model.SerializeToString(), device, unsupported="raise")


if __name__ == "__main__":
    main()
