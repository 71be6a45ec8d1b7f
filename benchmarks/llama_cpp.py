"""llama.cpp for comparison: the same sizes as a GGUF file, in its own program `llama-bench`.

It is included if `llama-bench`, built with GGML_VULKAN, is on the PATH and the package `gguf` is
installed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PROGRAM = "llama-bench"
SECONDS = 900


@dataclass(frozen=True)
class Shape:
    """Of a LLaMA-like model."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    positions: int

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the names and sizes of all products, (columns, depth)."""
        kv = self.width // self.heads * self.kv_heads
        layer = {
            "attn_q": (self.width, self.width),
            "attn_k": (kv, self.width),
            "attn_v": (kv, self.width),
            "attn_output": (self.width, self.width),
            "ffn_gate": (self.inner, self.width),
            "ffn_up": (self.inner, self.width),
            "ffn_down": (self.width, self.inner),
        }
        found = {
            f"blk.{number}.{name}.weight": size
            for number in range(self.layers)
            for name, size in layer.items()
        }
        return found | {"output.weight": (self.vocabulary, self.width)}


def byte_names() -> list[str]:
    """Return the names that byte-level vocabularies give to the 256 bytes, in their order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = itertools.count(256)
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def write_gguf(path: Path, shape: Shape, texts: bool = False) -> None:
    """Write a model with random weights: products in Q4_0, four bits in blocks of 32.

    Args:
        path: the file.
        shape: its sizes.
        texts: whether it has a vocabulary: each byte is a token.
    """
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_vocab_size(shape.vocabulary)
    if texts:
        names = [*byte_names(), "th"]  # llama.cpp wants a merge
        others = shape.vocabulary - len(names)
        kinds = [gguf.TokenType.NORMAL] * len(names) + [gguf.TokenType.CONTROL] * others
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([*names, *(f"<|{n}|>" for n in range(others))])
        writer.add_token_merges(["t h"])
        writer.add_token_types(kinds)
        writer.add_bos_token_id(len(names))
        writer.add_eos_token_id(len(names) + 1)
        writer.add_add_bos_token(False)
    else:
        writer.add_tokenizer_model("none")
    rng, kind = np.random.default_rng(0), gguf.GGMLQuantizationType.Q4_0
    table = rng.standard_normal((shape.vocabulary, shape.width), np.float32)
    writer.add_tensor("token_embd.weight", table)
    norms = [f"blk.{n}.{name}" for n in range(shape.layers) for name in ("attn_norm", "ffn_norm")]
    for name in (*norms, "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(shape.width, np.float32))
    for name, size in shape.matrices().items():
        weights = rng.standard_normal(size, np.float32) / np.float32(size[1] ** 0.5)
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def find(
    folder: Path, shape: Shape, device: int
) -> Callable[[int, int], tuple[float, float]] | None:
    """Return a function that measures (prompt, text) in tokens per second; None if it cannot run.

    Args:
        folder: where the model is written.
        shape: the shape of the model.
        device: number of the Vulkan device, as the loader lists them.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    path = folder / "model.gguf"
    try:
        write_gguf(path, shape)
    except ImportError:
        return None

    def run(prompt: int, tokens: int) -> tuple[float, float]:
        command = [program, "-m", str(path), "-ngl", "99", "-r", "1", "-o", "json"]
        # Unless it is named, a software device is passed over for llama.cpp's own CPU backend.
        env = {**os.environ, "GGML_VK_VISIBLE_DEVICES": str(device)}
        done = subprocess.run(
            [*command, "-p", str(prompt), "-n", str(tokens)],
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
            env=env,
        )
        found = json.loads(done.stdout)
        if not all(row["gpu_info"] for row in found):
            raise RuntimeError(f"{PROGRAM} did not use Vulkan device {device}: {done.stderr}")
        rows = {bool(row["n_gen"]): float(row["avg_ts"]) for row in found}
        return rows[False], rows[True]

    return run
