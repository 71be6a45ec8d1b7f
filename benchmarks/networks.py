"""Latency of networks: vkmnn compared with other engines, on the same device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import vkmnn
from vkmnn.bench.compare import Comparison, EngineSpec, Place, compare, engines
from vkmnn.ir import Array

# Name -> case of tests/networks/cases.py, and sizes other than the case's first.
KNOWN: dict[str, tuple[str, dict[str, int]]] = {
    "ResNet-50": ("resnet50", {}),
    "MobileNetV2": ("mobilenet_v2", {}),
    "SqueezeNet 1.1": ("squeezenet1_1", {}),
    "YOLOv5s-320": ("yolov5s", {"H": 320, "W": 320}),
    "U-Net-256": ("unet", {}),
    "ESPCN": ("espcn", {}),
    "DeiT-tiny": ("vit_tiny", {}),
    "ViT-B/16": ("vit_b16", {}),
    "BERT-base 1×128": ("bert_base", {}),
    "GPT-2 1×64": ("gpt2", {}),
}

TORCH = EngineSpec("PyTorch CUDA graph", "benchmarks.torch_graphs:CudaGraph")
"""Runs known networks as cases: each gets "case" and "sizes" as options."""


@dataclass(frozen=True, slots=True)
class Network:
    """A model with inputs; `case` and `sizes` identify it in tests/networks, "" if not there."""

    name: str
    path: Path
    feeds: Mapping[str, Array]
    case: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


def networks(only: Sequence[str] = (), *, light: bool = False) -> list[Network]:
    """Return the networks of the benchmark.

    Args:
        only: parts of the names of the requested networks; none for all.
        light: include those that come with the onnx package, which need no PyTorch.

    Raises:
        ImportError: PyTorch is not installed.
    """
    wanted = [name.lower() for name in only]

    def is_wanted(name: str) -> bool:
        return not wanted or any(part in name.lower() for part in wanted)

    if light:
        return [from_file(path) for path in light_models() if is_wanted(path.stem)]
    return [exported(name) for name in KNOWN if is_wanted(name)]


def exported(
    name: str, sizes: Mapping[str, int] | None = None, *, dynamic: bool = False
) -> Network:
    """Return a known network as PyTorch exports it.

    Args:
        name: one of `KNOWN`.
        sizes: other sizes of its inputs.
        dynamic: leave the sizes open in the file.

    Raises:
        ImportError: PyTorch is not installed.
    """
    from tests.networks.cases import CASES
    from tests.networks.export import exported as export

    key, changed = KNOWN[name]
    case = CASES[key]
    all_sizes = {**case.sizes[0], **changed, **(sizes or {})}
    if not dynamic and all_sizes != case.sizes[0]:
        case = replace(case, sizes=(all_sizes,))
    path = export(key, case, "trace", dynamic=dynamic)
    return Network(name, path, case.feeds(all_sizes), key, all_sizes)


def light_models() -> list[Path]:
    """Return the networks that come with the onnx package."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return sorted(folder.glob("light_*.onnx"))


def from_file(path: Path) -> Network:
    """Return a model of the user's, with random inputs."""
    with vkmnn.InferenceSession(path, "cpu") as session:
        return Network(path.stem, path, feeds_for(session, 1))


def feeds_for(session: vkmnn.InferenceSession, free: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return random inputs; symbolic dimensions become `free`."""
    rng = np.random.default_rng(0)
    feeds: dict[str, npt.NDArray[np.generic]] = {}
    for node in session.get_inputs():
        shape = [dim if isinstance(dim, int) else free for dim in node.shape or ()]
        values = rng.random(shape) if node.dtype.startswith("float") else rng.integers(0, 2, shape)
        feeds[node.name] = values.astype(node.dtype)
    return feeds


def specs_for(network: Network, fp16: bool, names: Sequence[str] = ()) -> list[EngineSpec]:
    """Return the engines, including PyTorch if the network is one of its own.

    Args:
        network: the network to run.
        fp16: include engines that compute in float16.
        names: parts of the names of the requested engines; none for all.
    """
    torch = torch_specs(network, fp16)
    wanted = [name.lower() for name in names]
    fitting = [t for t in torch if not wanted or any(part in t.name.lower() for part in wanted)]
    return [*engines(fp16, names), *fitting]


def torch_specs(network: Network, fp16: bool, ways: Sequence[str] = ()) -> list[EngineSpec]:
    """Return PyTorch's engines for a known network, none for another.

    Args:
        network: the network.
        fp16: in float16 as well.
        ways: ways to be faster, of `torch_graphs.WAYS`.
    """
    if not network.case:
        return []
    options: dict[str, Any] = {"case": network.case, "sizes": dict(network.sizes)}
    if ways:
        options["with"] = list(ways)
    name = " ".join([TORCH.name, *ways])
    specs = [EngineSpec(name, TORCH.target, options)]
    if fp16:
        specs.append(EngineSpec(f"{name} fp16", TORCH.target, {**options, "precision": "normal"}))
    return specs


def measure(
    network: Network,
    specs: Sequence[EngineSpec],
    where: Place,
    progress: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Compare engines on a network."""
    return compare(network.name, network.path, network.feeds, specs, where, progress)
