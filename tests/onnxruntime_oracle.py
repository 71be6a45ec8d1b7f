"""onnxruntime as an oracle: the only module of the tests that opens its sessions.

If `VKMNN_ORACLE_EMULATOR` is set to a command (`qemu-x86_64-static -cpu Haswell`), sessions run in
a separate process under it, and so on a processor that this machine does not have.
"""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from vkmnn.host.exact_codes import with_exact_codes
from vkmnn.host.genuine import genuine_onnxruntime
from vkmnn.host.sessions import session_options

if TYPE_CHECKING:
    import onnxruntime

ROOT = Path(__file__).parents[1]
EMULATOR = "VKMNN_ORACLE_EMULATOR"

Model = onnx.ModelProto | bytes | str | os.PathLike[str]


def open_oracle(model: Model, *, optimised: bool = True, threads: int = 2) -> Any:
    """Open a model in onnxruntime on the CPU, with sums that are exact on every processor.

    Args:
        model: a model, its bytes, or its path.
        optimised: with all of onnxruntime's graph optimisations, or with none.
        threads: how many compute a node.
    """
    if isinstance(model, bytes):
        model = onnx.load_model_from_string(model)
    if isinstance(model, onnx.ModelProto):
        source: str | bytes = with_exact_codes(model).SerializeToString()
    else:
        source = os.fspath(model)
        bare = onnx.load(source, load_external_data=False)
        exact = with_exact_codes(bare)
        if exact is not bare and not _external(bare):
            source = exact.SerializeToString()
    emulator = os.environ.get(EMULATOR)
    if emulator:
        return _Remote(_server(emulator), source, optimised, threads)
    return _opened(source, optimised, threads)


def _external(model: onnx.ModelProto) -> bool:
    return any(one.data_location == onnx.TensorProto.EXTERNAL for one in model.graph.initializer)


def _opened(source: str | bytes, optimised: bool, threads: int) -> onnxruntime.InferenceSession:
    options = session_options(optimised=optimised, threads=threads)
    return genuine_onnxruntime().InferenceSession(
        source, options, providers=["CPUExecutionProvider"]
    )


class _Argument:
    """The description of an input or an output of a session."""

    def __init__(self, name: str, type_: str, shape: Sequence[Any]) -> None:
        self.name, self.type, self.shape = name, type_, shape


class _Remote:
    """A session in the process of an emulator."""

    def __init__(self, server: _Server, source: str | bytes, optimised: bool, threads: int) -> None:
        self._server = server
        self._number, inputs, outputs = server.ask("open", source, optimised, threads)
        self._inputs = [_Argument(*one) for one in inputs]
        self._outputs = [_Argument(*one) for one in outputs]

    def get_inputs(self) -> list[_Argument]:
        return self._inputs

    def get_outputs(self) -> list[_Argument]:
        return self._outputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        return list(self._server.ask("run", self._number, names, dict(feeds)))


class _Server:
    """The emulator's process, which answers one request after the other."""

    def __init__(self, emulator: str) -> None:
        with Listener() as listener:
            command = [*shlex.split(emulator), sys.executable, "-m", __name__, listener.address]
            self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT)
            atexit.register(self._process.kill)
            self._pipe = listener.accept()

    def ask(self, *request: Any) -> Any:
        self._pipe.send(request)
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


@lru_cache(maxsize=1)
def _server(emulator: str) -> _Server:
    return _Server(emulator)


def _serve(address: str) -> None:
    """Answer requests until there are no more."""
    sessions: list[onnxruntime.InferenceSession] = []

    def opened(*how: Any) -> Any:
        session = _opened(*how)
        sessions.append(session)
        told = [
            [(arg.name, arg.type, arg.shape) for arg in args]
            for args in (session.get_inputs(), session.get_outputs())
        ]
        return len(sessions) - 1, *told

    calls = {"open": opened, "run": lambda number, *how: sessions[number].run(*how)}
    with suppress(EOFError), Client(address) as pipe:
        while True:
            kind, *arguments = pipe.recv()
            try:
                pipe.send(calls[kind](*arguments))
            except Exception as error:  # noqa: BLE001 - the test fails with it
                pipe.send(RuntimeError(str(error)))


if __name__ == "__main__":
    _serve(sys.argv[1])
