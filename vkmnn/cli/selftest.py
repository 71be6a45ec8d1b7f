"""Runs a small network on one device and on numpy: `python -m vkmnn.cli.selftest INDEX`.

A separate process, because a driver may crash or hang. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TIMEOUT_S = 120
TOLERANCE = 1e-4


def network() -> Any:
    """Return convolution, pooling, product and softmax over odd sizes, as a graph."""
    import numpy as np

    from vkmnn.ir import Activation, Array, DType, Graph, Op, TensorInfo
    from vkmnn.ir.ops import AxisAttrs, ConvolutionAttrs, MatMulAttrs, PoolingAttrs, SoftmaxAttrs

    rng = np.random.default_rng(1)
    constants: dict[str, Array] = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("w", (7, 3, 3, 3)), ("b", (7,)), ("m", (7 * 5 * 6, 11)), ("c", (11,)))
    }
    relu = Activation("RELU")
    convolution = ConvolutionAttrs((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), activation=relu)
    pooling = PoolingAttrs("MAX", (2, 2), (2, 2), (1, 1), (0, 0, 0, 0))
    steps = (
        ("Convolution", ["x", "w", "b"], convolution),
        ("Pooling", ["Convolution"], pooling),
        ("Flatten", ["Pooling"], AxisAttrs(1)),
        ("MatMul", ["Flatten", "m", "c"], MatMulAttrs(alpha=0.02)),
        ("Softmax", ["MatMul"], SoftmaxAttrs()),
    )
    return Graph(
        "self test",
        [TensorInfo("x", DType.FLOAT32, (1, 3, 11, 13))],
        [TensorInfo("Softmax", DType.FLOAT32, None)],
        [Op(name, name, inputs, [name], attrs) for name, inputs, attrs in steps],
        constants,
    )


def run_here(device: str | int) -> dict[str, Any]:
    """Run the test in this process; "error" in the result describes a failure."""
    import numpy as np

    from vkmnn.errors import VkmnnError
    from vkmnn.opening import load_network, open_session
    from vkmnn.schedule_config import ScheduleConfig

    graph = network()
    x = np.random.default_rng(2).standard_normal(graph.inputs[0].dims).astype(np.float32)
    try:
        net = load_network(graph)
        results = []
        for name in (device, "cpu"):
            start = time.perf_counter()
            session = open_session(net, ScheduleConfig(device=name)).core
            (result,) = session.run({"x": x}).values()
            results.append((result, time.perf_counter() - start, session.placement().off_device))
            session.close()
    except VkmnnError as error:
        return {"error": str(error)}
    (got, seconds, off), (want, _, _) = results
    worst = float(np.abs(np.subtract(got, want, dtype=np.float64)).max() / np.ptp(want))
    if not worst <= TOLERANCE:  # also NaN
        return {"error": f"wrong results: off by {worst:.1e} of the range"}
    if off:
        return {"error": f"{', '.join(op.type for op in off)} did not run on the device"}
    found = [] if device == "cpu" else proofs(device)
    return {"error": None, "seconds": seconds, "difference": worst, "proofs": found}


def proofs(device: str | int) -> list[dict[str, Any]]:
    """Return what a device has to prove and how it did, from earlier or now; see `proof.py`."""
    from vkmnn.opening.proof_trial import PROVER
    from vkmnn.runtime.device import open_device
    from vkmnn.vulkan.proof import CAPABILITIES

    opened = open_device(device)
    found = ((one, PROVER.settle(opened, one)) for one in CAPABILITIES)
    return [
        {"name": one.name, "kept": verdict.kept, "text": verdict.text}
        for one, verdict in found
        if verdict is not None
    ]


def run_apart(index: int, driver: str | None = None) -> dict[str, Any]:
    """Run the test in a child process, and survive a crash of the driver.

    Args:
        index: the index of the device.
        driver: the binding by which to reach it; None for the one that holds here.
    """
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vkmnn.cli.selftest", str(index)],
            env={**os.environ, "PYTHONPATH": paths, **({"VKMNN_DRIVER": driver} if driver else {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {TIMEOUT_S} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        return {"error": f"the process ended with {how}: {last}"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_here(int(sys.argv[1]))) + "\n")
