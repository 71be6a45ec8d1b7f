"""Build a network with random weights and export it with either of torch's exporters, once.

The files are kept in the system's folder for temporary files, under the hash of everything they
depend on.
"""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.networks import models
from tests.networks.cases import Case

OPSET = 17  # of the exporter that traces; the newer one decides itself
EXPORTERS = ("trace", "dynamo")


def build(case: Case, seed: int = 0) -> nn.Module:
    """Return the network with random weights that keep the variance of its activations."""
    torch.manual_seed(seed)
    arguments: dict[str, Any] = dict(case.arguments)
    if "attention" in arguments:
        arguments["attention"] = getattr(models, arguments["attention"])
    model: nn.Module = getattr(models, case.model)(**arguments)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter)
        if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
            _calibrate(model, case)
    return model.eval()


def _fill(name: str, parameter: Tensor) -> None:
    if parameter.ndim > 1 and any(part in name for part in ("wte", "wpe", "words", "types")):
        parameter.normal_(0, 0.2)
    elif name in ("cls_token", "pos_embed") or "positions" in name:
        parameter.normal_(0, 0.5)
    elif parameter.ndim > 1:
        transposed = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        transposed = transposed or name.endswith("mlp_proj.weight")
        fan_in = parameter.shape[0] if transposed else parameter[0].numel()
        # A detector's predictions saturate unless its last layer is weak.
        parameter.normal_(0, fan_in**-0.5 * (0.15 if name.startswith("detect.") else 1.0))
    elif name.endswith("weight"):  # of a normalisation
        parameter.uniform_(0.7, 1.3)
    else:
        parameter.normal_(0, 0.1)


def _calibrate(model: nn.Module, case: Case) -> None:
    """Let the normalisations learn mean and variance from one batch."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    model.train()
    sizes = {"N": 8} | dict.fromkeys(("H", "W"), 160)
    model(*arguments_of(case, sizes).values())


def arguments_of(case: Case, sizes: dict[str, int]) -> dict[str, Tensor]:
    """Return the network's arguments as tensors."""
    return {name: torch.from_numpy(np.asarray(a)) for name, a in case.feeds(sizes).items()}


def exported(name: str, case: Case, exporter: str, *, dynamic: bool) -> Path:
    """Return the path of the exported network; export it if the file does not exist yet.

    Args:
        name: the case's name, which becomes part of the file's.
        case: the network to build.
        exporter: "trace" (TorchScript) or "dynamo" (torch.export).
        dynamic: leave the sizes that `case.inputs` names open, else fix them to the first ones.
    """
    folder = Path(tempfile.gettempdir()) / "vkmnn-networks"
    kind = f"{exporter}-{'dynamic' if dynamic else 'static'}"
    path = folder / f"{name}-{kind}-{_fingerprint(case)}.onnx"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        unfinished = path.with_suffix(".part")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tracer, on every branch
            _export(case, exporter, dynamic, unfinished)
        unfinished.rename(path)
    return path


def _fingerprint(case: Case) -> str:
    digest = hashlib.sha256(f"{torch.__version__} {case}".encode())
    for path in (models.__file__, __file__):
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:16]


def _export(case: Case, exporter: str, dynamic: bool, path: Path) -> None:
    model = build(case)
    # torch.export takes an example size of 1 for a constant.
    sizes = {**case.sizes[0], "N": 2} if dynamic else dict(case.sizes[0])
    arguments = arguments_of(case, sizes)
    names = list(arguments)
    if exporter == "trace":
        axes = {
            item.name: {axis: dim for axis, dim in enumerate(item.shape) if isinstance(dim, str)}
            for item in case.inputs
        }
        torch.onnx.export(
            model,
            tuple(arguments.values()),
            path,
            dynamo=False,
            opset_version=OPSET,
            input_names=names,
            dynamic_axes=axes if dynamic else None,
        )
        return
    program = torch.onnx.export(
        model,
        tuple(arguments.values()),
        dynamo=True,
        input_names=names,
        dynamic_shapes=_dynamic_shapes(case) if dynamic else None,
        verbose=False,
    )
    assert program is not None
    program.save(path, external_data=False)


def _dynamic_shapes(case: Case) -> tuple[dict[int, Any], ...]:
    dims: dict[str, Any] = {}
    for item in case.inputs:
        for dim in item.shape:
            if isinstance(dim, str) and dim not in dims:
                factor = case.multiples.get(dim, 1)
                # Names are found anew by the exporter where a factor stands before them.
                made = torch.export.Dim(f"{dim}" if factor == 1 else f"_{dim}", min=1, max=4096)
                dims[dim] = made if factor == 1 else factor * made
    return tuple(
        {axis: dims[dim] for axis, dim in enumerate(item.shape) if isinstance(dim, str)}
        for item in case.inputs
    )
