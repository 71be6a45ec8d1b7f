"""Stores transformers' results for the models in `described.py`: logits and the likeliest tokens.

    python -m tests.llm.make_described [case ...]  # needs torch, transformers, gguf

GGUF files are decoded by the package `gguf`, so that nothing of vkmnn is compared with itself.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.llm.described import (
    FILES,
    FOLDERS,
    MIXTURES,
    PAIRED,
    PROMPT,
    SANDWICHED,
    TOKENS,
    config_of,
    gguf_name,
    rounded,
    weights_of,
    write_file,
)

SEEDS, GAP = 12, 0.006
"""Seeds are tried until the likeliest tokens are ahead of others by this share of the range."""

STORE = Path(__file__).parent / "data" / "described.npz"


def _mixture(name: str, weights: dict[str, Any]) -> Any:
    """Return a mixture, whose experts transformers joins when it reads a folder."""
    from safetensors.numpy import save_file
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "config.json").write_text(json.dumps(config_of(name)), "utf-8")
        save_file(weights, path / "model.safetensors", {"format": "pt"})
        made = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    return made.eval().float()


def _with_experts(weights: dict[str, Any]) -> dict[str, Any]:
    """Return the weights of gpt-oss as transformers has them: gates and others alternating."""
    made = {key: one for key, one in weights.items() if "_exps." not in key}
    for key, gate in weights.items():
        if ".gate_exps." not in key:
            continue
        whole, _, kind = key.rpartition(".gate_exps.")
        up, down = (weights[f"{whole}.{part}_exps.{kind}"] for part in ("up", "down"))
        both = np.stack([gate, up], 2).reshape(gate.shape[0], -1, *gate.shape[2:])
        suffix = "_bias" if kind == "bias" else ""
        for part, one in (("gate_up_proj", both), ("down_proj", down)):
            made[f"{whole}.experts.{part}{suffix}"] = one if suffix else one.swapaxes(1, 2)
    return made


def _model(name: str, weights: dict[str, Any]) -> Any:
    if config_of(name)["model_type"] in MIXTURES:
        return _mixture(name, weights)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = dict(config_of(name))
    kind = config.pop("model_type")
    torch.manual_seed(0)
    made = (
        AutoModelForCausalLM.from_config(
            AutoConfig.for_model(kind, **config), attn_implementation="eager"
        )
        .eval()
        .float()
    )
    if kind == "gpt_oss":
        weights = _with_experts(weights)
    tensors = {key: torch.from_numpy(np.array(one)) for key, one in weights.items()}
    missing, unexpected = made.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    assert all("lm_head" in one or "rotary" in one for one in missing), missing
    made.tie_weights()
    return made


def _oracle(name: str, weights: dict[str, Any]) -> tuple[Any, Any, float]:
    """Return logits of the prompt, the likeliest tokens, the smallest gap between the best two."""
    import torch

    made = _model(name, weights)
    tokens, gap = list(PROMPT), np.inf
    with torch.no_grad():
        prompt = made(torch.tensor([tokens])).logits[0].numpy()
        for _ in range(TOKENS):
            last = made(torch.tensor([tokens])).logits[0, -1].numpy()
            two = np.sort(last)[-2:]
            gap = min(gap, (two[1] - two[0]) / (last.max() - last.min()))
            tokens.append(int(last.argmax()))
    return prompt.astype(np.float32), np.array(tokens[len(PROMPT) :]), float(gap)


def _decoded(path: Path, name: str) -> dict[str, Any]:
    """Return the weights of a GGUF file by transformers' names, decoded by the package `gguf`."""
    import gguf

    reader = gguf.GGUFReader(str(path))
    found = {one.name: gguf.quants.dequantize(one.data, one.tensor_type).astype(np.float32)
             .reshape([int(n) for n in one.shape][::-1]) for one in reader.tensors}  # fmt: skip
    config, kind = config_of(name), config_of(name)["model_type"]
    made = {}
    for key in weights_of(name):
        values = found[gguf_name(key, kind in SANDWICHED)]
        if ".experts." in key:
            values = values[int(key.split(".experts.")[1].split(".")[0])]
        for part, heads in (("q", "attention"), ("k", "key_value")):
            if kind in PAIRED and f"{part}_proj" in key:
                cut = values.reshape(config[f"num_{heads}_heads"], config["head_dim"] // 2, 2, -1)
                values = cut.swapaxes(1, 2).reshape(values.shape)
        made[key] = values - 1 if kind.startswith("gemma") and "norm" in key else values
    return made


def main() -> None:
    """Write the store."""
    made: dict[str, Any] = dict(np.load(STORE)) if STORE.is_file() else {}
    with tempfile.TemporaryDirectory() as temporary:
        cases = [(case, name, None) for case, (name, _, _) in FOLDERS.items()]
        cases += [(case, name, kind) for case, (name, kind) in FILES.items()]
        for case, name, kind in cases:
            if sys.argv[1:] and case not in sys.argv[1:]:
                continue
            for seed in range(SEEDS):
                if kind is None:
                    dtype = FOLDERS[case][1]
                    weights = weights_of(name, seed)
                    weights = {key: rounded(one, dtype) for key, one in weights.items()}
                else:
                    path = write_file(Path(temporary) / f"{case}.gguf", name, kind, seed)
                    weights = _decoded(path, name)
                logits, tokens, gap = _oracle(name, weights)
                if gap > GAP:
                    break
            key = f"{'folder' if kind is None else 'file'}.{case}"
            made |= {f"{key}.logits": logits, f"{key}.tokens": tokens, f"{key}.seed": seed}
    np.savez_compressed(STORE, **made)


if __name__ == "__main__":
    main()
