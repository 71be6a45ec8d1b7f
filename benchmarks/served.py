"""A server to measure, in a process of its own: `python -m benchmarks.served KIND MODEL DEVICE`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from vkmnn.host.sessions import session_options
from vkmnn.inference_session import NodeArg
from vkmnn.serve import Batching, Models, Running, bound, load_models, make_app, server_of
from vkmnn.serve.networks import Network

_DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64"}


class OnnxRuntime:
    """A session of onnxruntime as the server uses sessions."""

    lost = False

    def __init__(self, path: str) -> None:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(
            path, session_options(), providers=["CPUExecutionProvider"]
        )

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs."""
        return [_arg(one) for one in self._session.get_inputs()]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""
        return [_arg(one) for one in self._session.get_outputs()]

    def run(self, output_names: list[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Run the network once."""
        made: list[Any] = self._session.run(output_names, dict(feeds))
        return made

    def close(self) -> None:
        """Release memory."""
        self._session = None


def _arg(one: Any) -> NodeArg:
    dtype = _DTYPES.get(one.type, "float32")
    return NodeArg(one.name, one.type, list(one.shape), np.dtype(dtype).name)


def _models(kind: str, path: str, device: str) -> Models:
    batching = Batching() if kind.endswith("batched") else Batching(most=1)
    if kind.startswith("vkmnn"):
        return load_models([f"m={path}"], device, running=Running(batching=batching))
    models = Models()
    models.add_network(Network("m", "1", [OnnxRuntime(path)], batching))
    return models


def _peak_bytes() -> int | None:
    """Return the most memory that this process has had."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    """Serve a network until the end of the input; print the port, then the peak memory."""
    kind, path, device = sys.argv[1:]
    import threading

    models = _models(kind, path, device)
    sockets = bound("127.0.0.1", 0)
    server = server_of(make_app(models))

    def wait() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=wait, daemon=True).start()
    sys.stdout.write(f"{sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    server.run(sockets)
    models.close()
    sys.stdout.write(json.dumps({"peak_bytes": _peak_bytes()}))


if __name__ == "__main__":
    main()
