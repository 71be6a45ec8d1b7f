"""Writes networks of tests/model/torch_networks.py as files, with what PyTorch gives for them.

`python make.py`, where PyTorch is installed (2.13 made these). NAME.pt2 is what torch.export saves,
with open sizes, and NAME.pt what torch.jit saves; NAME.npz holds the inputs and outputs of two runs
under `0/in/0`, `0/out/0` and so on.
"""

from __future__ import annotations

import copy
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1] / "model"))

from torch_networks import NETWORKS, made, open_sizes  # noqa: E402

LARGEST = 40_000
"""Bytes of a file that is kept."""


def program_file(module: Any, args: Any, sizes: Any) -> bytes:
    """Return a program without the places in the source that its operators come from."""
    program = torch.export.export(module, args, dynamic_shapes=sizes)
    for node in program.graph.nodes:
        node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


def script_file(module: Any, args: Any) -> bytes:
    """Return a trace without the places in the source that its operators come from."""
    stream, short = io.BytesIO(), io.BytesIO()
    torch.jit.save(torch.jit.trace(module, args), stream)
    with zipfile.ZipFile(stream) as old, zipfile.ZipFile(short, "w") as new:
        for member in old.infolist():
            if not member.filename.endswith(".debug_pkl"):
                new.writestr(zipfile.ZipInfo(member.filename), old.read(member))
    return short.getvalue()


def write(name: str) -> None:
    module, network = made(name)
    args = network.args(3)
    files = {"pt2": program_file(copy.deepcopy(module), args, open_sizes(network))}
    if network.script and name != "choices":  # a trace does not say that it takes integers
        files["pt"] = script_file(module, args)
    if max(map(len, files.values())) > LARGEST:
        return
    for suffix, data in files.items():
        (FOLDER / f"{name}.{suffix}").write_bytes(data)
    stored = {}
    for run, size in enumerate((3, 2)):
        given = network.args(size)
        outputs = module(*given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for kind, values in (("in", given), ("out", outputs)):
            stored |= {f"{run}/{kind}/{at}": one.numpy().copy() for at, one in enumerate(values)}
    np.savez_compressed(FOLDER / f"{name}.npz", **stored)


with torch.no_grad():
    for one in NETWORKS:
        write(one)
