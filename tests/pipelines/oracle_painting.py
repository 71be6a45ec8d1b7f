"""Writes what diffusers paints with the tiny networks of `painters.py`, for `test_painting.py`.

Run it where diffusers, transformers and torch are installed, and onnx:
python tests/pipelines/oracle_painting.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.pipelines import painters
from tests.pipelines.networks import Array

DATA = Path(__file__).resolve().parents[1] / "data" / "pipelines"
TEXTS = (painters.PROMPT, "THE cat's hat -- on\tred", "", "at 42")


def _drawing_from(draws: Iterator[Array]) -> None:
    """Let diffusers draw given noise."""
    import torch

    def draw(*given: Any, **named: Any) -> Any:
        del given, named
        return torch.from_numpy(next(draws))

    for name, module in list(sys.modules.items()):
        if name.startswith("diffusers") and "randn_tensor" in vars(module):
            module.randn_tensor = draw  # type: ignore[attr-defined]


def write_samplers() -> None:
    import diffusers
    import torch

    latents, times = [], []
    for name, options, steps in painters.SAMPLERS:
        scheduler = getattr(diffusers, name)(**options)
        scheduler.set_timesteps(steps)
        draws = iter(painters.small_noise(99))
        _drawing_from(draws)
        x = torch.from_numpy(next(draws)) * scheduler.init_noise_sigma
        for step in scheduler.timesteps:
            taken = scheduler.scale_model_input(x, step).float().numpy()
            made = torch.from_numpy(painters.predicted(taken, float(step)))
            x = scheduler.step(made, step, x).prev_sample
        latents.append(x.numpy().astype(np.float32))
        times.append(np.asarray(scheduler.timesteps, np.float32))
    np.savez_compressed(
        DATA / "samplers.npz",
        latents=np.stack(latents), times=np.concatenate(times), runs=[len(one) for one in times],
    )  # fmt: skip


class _Network:
    """A network in the place of a torch module, as optimum's pipelines have it."""

    dtype: Any = None
    device: Any = "cpu"

    def __init__(self, folder: Path, **config: Any) -> None:
        import onnx
        import torch
        from onnx.reference import ReferenceEvaluator

        self._run = ReferenceEvaluator(onnx.load(folder / "model.onnx"))
        said = json.loads((folder / "config.json").read_text())
        self.config = SimpleNamespace(**{**said, **config})
        self.dtype, self.device = torch.float32, torch.device("cpu")

    def run(self, **feeds: Any) -> list[Any]:
        import torch

        given = {name: value.numpy() for name, value in feeds.items()}
        return [torch.from_numpy(np.asarray(one)) for one in self._run.run(None, given)]

    def modules(self) -> list[Any]:
        return []

    def parameters(self) -> Iterator[Any]:
        return iter(())

    def to(self, *given: Any, **named: Any) -> _Network:
        return self


class _TextEncoder(_Network):
    def __call__(self, ids: Any, output_hidden_states: bool = False, **more: Any) -> Any:
        import torch

        made = self.run(input_ids=ids.to(torch.int64))
        if self.config.projection_dim:
            return _Answer(made[:2], hidden_states=made[2:], text_embeds=made[0])
        return _Answer(made[:1], hidden_states=made[1:], last_hidden_state=made[0])


class _Answer(tuple):  # type: ignore[type-arg]
    def __new__(cls, values: list[Any], **named: Any) -> Any:
        made = super().__new__(cls, values)
        made.__dict__.update(named)
        return made


class _Unet(_Network):
    def __call__(self, sample: Any, step: Any, **more: Any) -> Any:
        import torch

        feeds = {"sample": sample, "timestep": step.reshape(1).to(torch.int64),
                 "encoder_hidden_states": more["encoder_hidden_states"],
                 **(more.get("added_cond_kwargs") or {})}  # fmt: skip
        if more.get("timestep_cond") is not None:
            feeds["timestep_cond"] = more["timestep_cond"]
        return tuple(self.run(**feeds))


class _Vae(_Network):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "vae_decoder", force_upcast=False, shift_factor=None,
                         latents_mean=None, latents_std=None)  # fmt: skip
        self._encoder = _Network(folder / "vae_encoder")

    def decode(self, latents: Any, **more: Any) -> Any:
        return tuple(self.run(latent_sample=latents))

    def encode(self, pixels: Any) -> Any:
        from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

        (made,) = self._encoder.run(sample=pixels)
        return SimpleNamespace(latent_dist=DiagonalGaussianDistribution(made))


def _components(folder: Path, kind: str) -> dict[str, Any]:
    import diffusers
    from transformers import CLIPTokenizer

    large = kind in ("xl", "turbo")
    said = json.loads((folder / "scheduler" / "scheduler_config.json").read_text())
    scheduler = getattr(diffusers, said.pop("_class_name"))(**said)
    made: dict[str, Any] = {
        "vae": _Vae(folder),
        "text_encoder": _TextEncoder(folder / "text_encoder", projection_dim=0,
                                     use_attention_mask=False),
        "tokenizer": CLIPTokenizer.from_pretrained(str(folder / "tokenizer")),
        "unet": _Unet(folder / "unet", addition_time_embed_dim=1),
        "scheduler": scheduler,
    }  # fmt: skip
    made["unet"].add_embedding = SimpleNamespace(linear_1=SimpleNamespace(in_features=6 + 7))
    if not large:
        return {**made, "safety_checker": None, "feature_extractor": None}
    made["text_encoder_2"] = _TextEncoder(folder / "text_encoder_2", projection_dim=7)
    made["tokenizer_2"] = CLIPTokenizer.from_pretrained(str(folder / "tokenizer_2"))
    return made


def write_paintings() -> None:
    import diffusers
    import torch
    from PIL import Image

    torch.set_grad_enabled(False)
    arrays: dict[str, Array] = {}
    for number, (kind, what, settings) in enumerate(painters.CASES):
        with tempfile.TemporaryDirectory() as place:
            folder = painters.painter_folder(Path(place) / "f", kind)
            parts = _components(folder, kind)
            if number == 0:
                arrays["tokens"] = np.array([
                    parts["tokenizer"](text, padding="max_length", max_length=painters.LENGTH,
                                       truncation=True).input_ids for text in TEXTS
                ])  # fmt: skip
            name = painters.KINDS[kind][0]
            if what == "image":
                name = name.replace("Pipeline", "Img2ImgPipeline")
            elif what == "mask":
                name = "StableDiffusionInpaintPipeline"
            pipe = getattr(diffusers, name)(**parts)
        pipe.set_progress_bar_config(disable=True)
        first, second, *rest = painters.noise(40)
        picture, mask = (Image.fromarray(one) for one in painters.picture_and_mask())
        given: dict[str, Any] = {
            "num_inference_steps": settings["steps"], "guidance_scale": settings["guidance"],
            "output_type": "np",
        }  # fmt: skip
        if kind != "lcm" and what not in ("free", "bare"):
            given["negative_prompt"] = painters.NEGATIVE
        if "rescale" in settings:
            given["guidance_rescale"] = settings["rescale"]
        if what in ("image", "mask"):
            given |= {"image": picture, "strength": settings["strength"]}
        if what != "image":
            given |= {"height": painters.SIZE[0], "width": painters.SIZE[1]}
        if what == "mask":
            given["mask_image"] = mask
        order = [first, second, *rest] if what not in ("image", "mask") else [second, first, *rest]
        if kind == "paint":
            order = [first, rest[0]]
        _drawing_from(iter(order))
        made = pipe(painters.PROMPT, **given).images
        arrays[f"picture/{number}"] = (made * 255).round().astype(np.uint8)
    np.savez_compressed(DATA / "paintings.npz", **arrays)


if __name__ == "__main__":
    write_samplers()
    write_paintings()
