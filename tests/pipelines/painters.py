"""Folders of text-to-image pipelines with tiny random networks, laid out as optimum writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.pipelines.networks import Array, model_of, stripes

LENGTH = 12
"""Tokens of a prompt."""
_WIDTH, _WIDTH_2, _POOLED, _CONDITION = 6, 10, 7, 8
_F, _I = TensorProto.FLOAT, TensorProto.INT64
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "sd1": ("StableDiffusionPipeline",
            {"_class_name": "PNDMScheduler", "skip_prk_steps": True, "steps_offset": 1}),
    "sd2": ("StableDiffusionPipeline",
            {"_class_name": "DDIMScheduler", "prediction_type": "v_prediction",
             "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}),
    "xl": ("StableDiffusionXLPipeline",
           {"_class_name": "EulerDiscreteScheduler", "timestep_spacing": "leading",
            "steps_offset": 1}),
    "turbo": ("StableDiffusionXLPipeline",
              {"_class_name": "EulerAncestralDiscreteScheduler", "timestep_spacing": "trailing"}),
    "lcm": ("LatentConsistencyModelPipeline", {"_class_name": "LCMScheduler"}),
    "paint": ("StableDiffusionInpaintPipeline", {"_class_name": "DPMSolverMultistepScheduler"}),
}  # fmt: skip
"""Classes of pipelines, and options of their schedulers besides `BETAS`."""


def tokenizer_files(folder: Path, pad: str = "<|endoftext|>") -> int:
    """Write a vocabulary of characters and a few words; return its size."""
    folder.mkdir(parents=True)
    marks = [chr(code) for code in range(33, 127)]
    words = [*marks, *(f"{mark}</w>" for mark in marks)]
    merges = ["a t</w>", "c at</w>", "h e</w>", "t he</w>", "o n</w>", "r e", "re d</w>"]
    words += [merge.replace(" ", "") for merge in merges]
    words += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    config = {"bos_token": words[-2], "eos_token": words[-1], "unk_token": words[-1],
              "pad_token": pad, "model_max_length": LENGTH,
              "tokenizer_class": "CLIPTokenizer"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(words)


class _Net:
    """A network in the making, with random weights."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        name = f"w{len(self.weights)}"
        fan = float(np.prod(shape[1:])) if len(shape) > 1 else 1.0
        values = self._rng.standard_normal(shape) * scale / fan**0.5
        self.weights[name] = values.astype(np.float32)
        return name

    def node(self, op: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        name = to or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def save(self, folder: Path, inputs: Any, outputs: Any, config: Any = None) -> None:
        folder.mkdir(parents=True)
        onnx.save(model_of(self.nodes, inputs, outputs, self.weights), folder / "model.onnx")
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))


def _text_encoder(folder: Path, words: int, width: int, pooled: int, layers: bool) -> None:
    net = _Net(width)
    table = net.node("Gather", net.weight(words, width, scale=2.0), "input_ids")
    states = [net.node("Add", table, net.weight(LENGTH, width), to="hidden_states.0")]
    for number in (1, 2):
        mixed = net.node("MatMul", states[-1], net.weight(width, width))
        states.append(net.node("Tanh", mixed, to=f"hidden_states.{number}"))
    net.node("Identity", states[-1], to="last_hidden_state")
    outputs = {"last_hidden_state": (_F, ["b", LENGTH, width])}
    if pooled:
        mean = net.node("ReduceMean", states[-1], axes=[1], keepdims=0)
        net.node("MatMul", mean, net.weight(width, pooled), to="text_embeds")
        outputs = {"text_embeds": (_F, ["b", pooled]), **outputs}
    if layers:
        outputs |= {name: (_F, ["b", LENGTH, width]) for name in states}
    net.save(folder, {"input_ids": (_I, ["b", LENGTH])}, outputs, {"hidden_size": width})


def _per_channel(net: _Net, rows: str) -> str:
    """Return rows [b, n] as [b, n, 1, 1]."""
    if "axes" not in net.weights:
        net.weights["axes"] = np.array([2, 3], np.int64)
    return net.node("Unsqueeze", rows, "axes")


def _unet(folder: Path, kind: str, batch: Any) -> None:
    large, channels = kind in ("xl", "turbo"), 9 if kind == "paint" else 4
    net, wide = _Net(1), 8
    width = _WIDTH + (_WIDTH_2 if large else 0)
    made = net.node("Conv", "sample", net.weight(wide, channels, 3, 3), pads=[1] * 4)
    net.weights["scale"] = np.linspace(0.001, 0.02, 6, dtype=np.float32)[None]
    net.nodes.append(helper.make_node("Cast", ["timestep"], ["time"], to=_F))
    net.weights["last"] = np.array([1], np.int64)
    waves = net.node("Sin", net.node("Mul", net.node("Unsqueeze", "time", "last"), "scale"))
    rows = [net.node("MatMul", waves, net.weight(6, wide))]
    mean = net.node("ReduceMean", "encoder_hidden_states", axes=[1], keepdims=0)
    rows.append(net.node("MatMul", mean, net.weight(width, wide, scale=3.0)))
    inputs: dict[str, Any] = {
        "sample": (_F, [batch, channels, "h", "w"]), "timestep": (_I, ["steps"]),
        "encoder_hidden_states": (_F, [batch, "n", width]),
    }  # fmt: skip
    if large:
        rows.append(net.node("MatMul", "text_embeds", net.weight(_POOLED, wide)))
        rows.append(net.node("MatMul", "time_ids", net.weight(6, wide, scale=0.05)))
        inputs |= {"text_embeds": (_F, [batch, _POOLED]), "time_ids": (_F, [batch, 6])}
    if kind == "lcm":
        rows.append(net.node("MatMul", "timestep_cond", net.weight(_CONDITION, wide)))
        inputs["timestep_cond"] = (_F, [batch, _CONDITION])
    for row in rows:
        made = net.node("Add", made, _per_channel(net, row))
    made = net.node("Conv", net.node("Tanh", made), net.weight(4, wide, 3, 3), pads=[1] * 4)
    net.node("Add", net.node("Mul", made, net.weight(1, scale=0.3)),
             _first_channels(net) if channels > 4 else "sample", to="out_sample")  # fmt: skip
    config = {"sample_size": 8, "in_channels": channels, "cross_attention_dim": width,
              "time_cond_proj_dim": _CONDITION if kind == "lcm" else None}  # fmt: skip
    net.save(folder, inputs, {"out_sample": (_F, [batch, 4, "h", "w"])}, config)


def _first_channels(net: _Net) -> str:
    for name, value in (("begin", 0), ("end", 4), ("along", 1)):
        net.weights[name] = np.array([value], np.int64)
    return net.node("Slice", "sample", "begin", "end", "along")


def _autoencoder(folder: Path) -> None:
    config = {"latent_channels": 4, "block_out_channels": [8, 8], "scaling_factor": 0.3}
    net = _Net(2)
    net.weights["scales"] = np.array([1, 1, 2, 2], np.float32)
    made = net.node("Conv", "latent_sample", net.weight(8, 4, 3, 3, scale=0.5), pads=[1] * 4)
    made = net.node("Resize", net.node("Tanh", made), "", "scales", mode="nearest",
                    coordinate_transformation_mode="asymmetric",
                    nearest_mode="floor")  # fmt: skip
    made = net.node("Conv", made, net.weight(3, 8, 3, 3, scale=1.5), pads=[1] * 4)
    net.node("Tanh", made, to="sample")
    net.save(folder / "vae_decoder", {"latent_sample": (_F, ["b", 4, "h", "w"])},
             {"sample": (_F, ["b", 3, "h2", "w2"])}, config)  # fmt: skip
    net = _Net(3)
    net.node("Conv", "sample", net.weight(8, 3, 3, 3, scale=2.0), pads=[1] * 4, strides=[2, 2],
             to="latent_parameters")  # fmt: skip
    net.save(folder / "vae_encoder", {"sample": (_F, ["b", 3, "h", "w"])},
             {"latent_parameters": (_F, ["b", 8, "h2", "w2"])}, config)  # fmt: skip


def painter_folder(
    folder: Path, kind: str = "sd1", *, batch: Any = "b", scheduler: Mapping[str, Any] | None = None
) -> Path:
    """Write a folder of one of `KINDS`.

    Args:
        folder: it is created.
        kind: its kind.
        batch: latents that the network takes at once, if not any number.
        scheduler: further options of the scheduler.
    """
    pipeline, options = KINDS[kind]
    large = kind in ("xl", "turbo")
    folder.mkdir(parents=True)
    words = tokenizer_files(folder / "tokenizer", "!" if kind == "sd2" else "<|endoftext|>")
    _text_encoder(folder / "text_encoder", words, _WIDTH, 0, large)
    if large:
        tokenizer_files(folder / "tokenizer_2", "!")
        _text_encoder(folder / "text_encoder_2", words, _WIDTH_2, _POOLED, True)
    _unet(folder / "unet", kind, batch)
    _autoencoder(folder)
    (folder / "scheduler").mkdir()
    said = {**BETAS, **options, **(scheduler or {})}
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(said))
    (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
    return folder


PROMPT, NEGATIVE = "the Cat, on 3 red dots", "red"
CASES: Sequence[tuple[str, str, dict[str, Any]]] = (
    ("sd1", "text", {"guidance": 7.5, "steps": 6}),
    ("sd1", "free", {"guidance": 1.0, "steps": 4}),
    ("sd1", "image", {"guidance": 4.0, "steps": 5, "strength": 0.6}),
    ("sd1", "mask", {"guidance": 4.0, "steps": 5, "strength": 1.0}),
    ("sd2", "text", {"guidance": 5.0, "steps": 5, "rescale": 0.7}),
    ("sd2", "mask", {"guidance": 4.0, "steps": 5, "strength": 0.6}),
    ("xl", "text", {"guidance": 5.0, "steps": 5}),
    ("xl", "bare", {"guidance": 5.0, "steps": 5}),
    ("xl", "image", {"guidance": 4.0, "steps": 5, "strength": 0.6}),
    ("turbo", "free", {"guidance": 0.0, "steps": 2}),
    ("lcm", "free", {"guidance": 8.5, "steps": 4}),
    ("lcm", "image", {"guidance": 8.5, "steps": 3, "strength": 0.5}),
    ("paint", "mask", {"guidance": 4.0, "steps": 5, "strength": 1.0}),
)
"""Kinds, inputs and settings that the reference has pictures of."""
SEED = 11
SIZE = (16, 16)


def noise(count: int) -> list[Array]:
    """Return the draws of a generation."""
    rng = np.random.default_rng(SEED)
    return [rng.standard_normal((1, 4, 8, 8), np.float32) for _ in range(count)]


def picture_and_mask() -> tuple[Array, Array]:
    """Return an image to change, and where."""
    mask = np.zeros((*SIZE, 3), np.uint8)
    mask[2:10, 4:14] = 255
    return stripes(*SIZE), mask


# --- samplers -------------------------------------------------------------------------------------

_SPACINGS = ("linspace", "leading", "trailing")
_KARRAS = {"use_karras_sigmas": True}
_EXPONENTIAL = {"use_exponential_sigmas": True}
_BETA = {"use_beta_sigmas": True}
_SNR = {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction",
        "timestep_spacing": "trailing"}  # fmt: skip
_LAST = {"final_sigmas_type": "sigma_min"}
_OTHERS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "DDIMScheduler": (
        {"clip_sample": True}, {"prediction_type": "sample"}, {"set_alpha_to_one": False},
        {**_SNR, "clip_sample": False},
        {"clip_sample": False, "thresholding": True, "sample_max_value": 2.0},
        {"beta_schedule": "squaredcos_cap_v2"}, {"beta_schedule": "linear"},
        {"trained_betas": np.linspace(0.001, 0.02, 500).round(6).tolist(),
         "num_train_timesteps": 500},
    ),
    "DDPMScheduler": (
        {"variance_type": "fixed_large"}, {"beta_schedule": "sigmoid"}, {"clip_sample": False},
    ),
    "PNDMScheduler": (
        {"skip_prk_steps": True, "set_alpha_to_one": True},
        {"skip_prk_steps": True, "prediction_type": "v_prediction"}, {"skip_prk_steps": False},
    ),
    "LMSDiscreteScheduler": (_KARRAS, _EXPONENTIAL, {"prediction_type": "sample"}, _BETA),
    "EulerDiscreteScheduler": (
        _KARRAS, _EXPONENTIAL, _SNR, _LAST, {"interpolation_type": "log_linear"},
        {**_KARRAS, "sigma_min": 0.02, "sigma_max": 12.0}, _BETA,
    ),
    "EulerAncestralDiscreteScheduler": (_SNR,),
    "HeunDiscreteScheduler": (_KARRAS, {"clip_sample": True}, _BETA),
    "DPMSolverMultistepScheduler": (
        _KARRAS, _BETA, _SNR, {"use_lu_lambdas": True}, {"lambda_min_clipped": -2.0},
        {"thresholding": True}, {**_LAST, "euler_at_final": True},
        {**_LAST, "lower_order_final": False, "solver_order": 3},
        *({"algorithm_type": name, "solver_type": kind, "solver_order": order,
           "final_sigmas_type": "zero" if "++" in name else "sigma_min"}
          for name in ("dpmsolver++", "dpmsolver", "sde-dpmsolver++", "sde-dpmsolver")
          for kind in ("midpoint", "heun") for order in (1, 2, 3)
          if "sde" not in name or order < 3),
    ),
    "UniPCMultistepScheduler": (
        _SNR, _LAST, {**_LAST, **_KARRAS}, {**_LAST, **_BETA}, {"disable_corrector": [0, 1]},
        *({"solver_order": order, "solver_type": kind, "predict_x0": image, **_LAST}
          for order in (1, 2, 3) for kind in ("bh1", "bh2") for image in (True, False)),
    ),
    "LCMScheduler": ({"clip_sample": True}, {"original_inference_steps": 100}),
}  # fmt: skip
SAMPLERS: Sequence[tuple[str, Mapping[str, Any], int]] = tuple(
    (name, {**BETAS, **options}, 20 if number == 0 else 7)
    for name, others in _OTHERS.items()
    for number, options in enumerate((
        *({"timestep_spacing": one, "steps_offset": 1} for one in _SPACINGS),
        {"prediction_type": "v_prediction"}, *others,
    ))
)  # fmt: skip
"""Schedulers, options and numbers of steps that the reference has results of."""


def predicted(x: Array, step: float) -> Array:
    """Return what a network might predict."""
    turned = np.roll(x, 1, -1) * np.float32(0.2)
    return np.asarray(np.tanh(x * 0.7 + np.float32(step / 1500)) * 0.9 + turned, np.float32)


def small_noise(count: int) -> list[Array]:
    """Return the draws of a sampler's test."""
    rng = np.random.default_rng(3)
    return [rng.standard_normal((1, 2, 3, 2), np.float32) for _ in range(count)]
