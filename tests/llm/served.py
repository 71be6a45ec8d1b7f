"""A server in a thread, with a small model of each kind."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
from onnx import TensorProto, helper

from tests.llm import tiny
from vkmnn.serve import (
    Access,
    Limits,
    Models,
    Observer,
    Repository,
    bound,
    make_app,
    server_of,
)
from vkmnn.serve.models import load_models


def network(path: Path) -> Path:
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Neg", ["a"], ["less"])]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in ("a", "b")]
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in ("sum", "less")
    ]
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "adder", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


def small_models(folder: Path) -> Models:
    """Load a language model, an encoder and another network, in this order."""
    text = tiny.optimum_folder(folder / "tiny")
    encoder = tiny.embedding_folder(folder / "encoder")
    adder = network(folder / "adder.onnx")
    return load_models([str(text), f"vectors={encoder}", str(adder)], "auto", capacity=200)


TOOL_TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "<tool_call>{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A chat template that describes tools, as those of Qwen and Hermes."""


def tool_folder(folder: Path, template: str | None = TOOL_TEMPLATE) -> Path:
    """Write a language model with a long context, whose texts end with token 0."""
    tiny.optimum_folder(folder, replace(tiny.LLAMA, positions=2048))
    tiny.write_tokenizer(folder, template)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 0}), "utf-8")
    return folder


def until(true: Callable[[], bool]) -> None:
    """Wait for a condition; fails after a minute."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


class Served:
    """A server in a thread of this process."""

    def __init__(
        self,
        models: Models,
        limits: Limits | None,
        access: Access | None,
        proxies: Sequence[str],
        on_lost: Callable[[], None],
        repository: Repository | None = None,
        observer: Observer | None = None,
        grpc: bool = False,
        delay_s: float = 0,
    ) -> None:
        sockets = bound("127.0.0.1", 0)
        place = ("127.0.0.1", 0) if grpc else None
        self.app = make_app(models, limits, access, on_lost, repository, observer, place)
        self.server = server_of(self.app, 20, proxies, delay_s)
        self.thread = threading.Thread(target=self.server.run, args=(sockets,))
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.port = sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def stop(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def raw(self, data: bytes, seconds: float = 20) -> bytes:
        """Send bytes, and return everything received until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as plug:
            plug.sendall(data)
            told = b""
            while part := plug.recv(1 << 16):
                told += part
            return told

    @contextmanager
    def waiting_client(self, path: str, body: Any) -> Iterator[None]:
        """Send a request, and leave without an answer at the end of the block."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as plug:
            plug.sendall(head.encode() + data)
            yield
            plug.setblocking(False)
            with pytest.raises(BlockingIOError):
                plug.recv(1)

    def idle(self) -> bool:
        end = time.monotonic() + 20
        while self.metric("vkmnn_active") + self.metric("vkmnn_waiting"):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True


@contextmanager
def served(
    models: Models,
    limits: Limits | None = None,
    access: Access | None = None,
    proxies: Sequence[str] = (),
    on_lost: Callable[[], None] = lambda: None,
    **more: Any,
) -> Iterator[Served]:
    made = Served(models, limits, access, proxies, on_lost, **more)
    try:
        yield made
    finally:
        made.stop()
