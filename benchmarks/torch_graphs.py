"""PyTorch under CUDA graphs, in its own process: see `vkmnn.bench.engine`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.bench.engine import Engine, EngineMissingError, Job
from vkmnn.ir import Array

_WARM_UP = 3
WAYS = ("tf32", "channels_last", "compile")
"""Ways to be faster: products in TF32, images with channels last, `torch.compile`."""


class CudaGraph(Engine):
    """A network of tests/networks, captured once and replayed.

    Options: "case", "sizes", "precision": "high" (float32) or "normal" (float16), and "with", a
    list of `WAYS`: without them float32 is strict, and `torch.compile` is not used.
    """

    def load(self, job: Job) -> None:
        """Build the network and capture a run of it."""
        try:
            import torch
        except ImportError as error:
            raise EngineMissingError("PyTorch is not installed", "pip install torch") from error
        if not torch.cuda.is_available():
            raise EngineMissingError("PyTorch finds no CUDA device")
        from tests.networks.cases import CASES
        from tests.networks.export import build

        ways = job.options.get("with", ())
        torch.backends.cuda.matmul.allow_tf32 = "tf32" in ways
        torch.backends.cudnn.allow_tf32 = "tf32" in ways
        torch.backends.cudnn.benchmark = True
        case = CASES[job.options["case"]]
        model = build(replace(case, sizes=(job.options["sizes"],))).cuda()
        half = job.options.get("precision") == "normal"
        if half:
            model = model.half()
        self._torch = torch
        self._host = [torch.from_numpy(np.asarray(feed)) for feed in job.feeds.values()]
        if half:
            self._host = [t.half() if t.is_floating_point() else t for t in self._host]
        self._inputs = [tensor.cuda() for tensor in self._host]
        if "channels_last" in ways:
            last = torch.channels_last
            model = model.to(memory_format=last)
            self._inputs = [
                t.contiguous(memory_format=last) if t.dim() == 4 else t for t in self._inputs
            ]
        if "compile" in ways:
            model = torch.compile(model)
        with torch.inference_mode():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    model(*self._inputs)
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._outputs = _tensors(model(*self._inputs))

    def run(self) -> list[Array]:
        """Copy the inputs, replay, copy the outputs."""
        for target, source in zip(self._inputs, self._host, strict=True):
            target.copy_(source, non_blocking=True)
        self._graph.replay()
        return [output.cpu().numpy() for output in self._outputs]


def _tensors(output: Any) -> list[Any]:
    """Return the tensors in the output of a network, in the order in which they are exported."""
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return [tensor for item in output for tensor in _tensors(item)]
    return [output]
