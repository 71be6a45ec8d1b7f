"""Text to image: the pictures of diffusers for the same networks and noise, and every scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

import vkmnn
from tests.pipelines import painters
from tests.pipelines.oracle_painting import TEXTS
from tests.pipelines.painters import BETAS, CASES, KINDS, SAMPLERS, painter_folder
from vkmnn.base.config_file import Section
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.pipelines.diffusion.noise import SPACINGS
from vkmnn.pipelines.diffusion.schedulers import SCHEDULERS, SHORT
from vkmnn.pipelines.diffusion.tokens import ClipTokenizer

pytest.importorskip("tokenizers")

DATA = Path(__file__).resolve().parents[1] / "data" / "pipelines"
SAMPLED = np.load(DATA / "samplers.npz")
PAINTED = np.load(DATA / "paintings.npz")
STARTS = np.cumsum([0, *SAMPLED["runs"]])


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A pipeline of the kind "sd1"."""
    folder = painter_folder(tmp_path_factory.mktemp("painter") / "f")
    with vkmnn.pipeline("paint", folder, device="cpu") as made:
        yield made


def sampler_of(name: str, options: Any, steps: int, strength: float = 1.0) -> Any:
    return SCHEDULERS[name](Section(Path("scheduler_config.json"), options), steps, strength)


@pytest.mark.parametrize("number", range(len(SAMPLERS)))
def test_samplers_agree_with_diffusers(number: int) -> None:
    name, options, steps = SAMPLERS[number]
    sampler = sampler_of(name, options, steps)
    times = SAMPLED["times"][STARTS[number] : STARTS[number + 1]]
    assert len(times) == len(sampler.timesteps)
    # cutting off 998.99999 is the reference's rounding error
    assert np.abs(times - sampler.timesteps).max() <= (
        1 if {"use_exponential_sigmas", "use_beta_sigmas"} & set(options) else 5e-3
    )
    draws = iter(painters.small_noise(99))
    x = next(draws) * np.float32(sampler.initial)
    for index, step in enumerate(sampler.timesteps):
        with np.errstate(all="ignore"):
            made = painters.predicted(sampler.scaled(x, index).astype(np.float32), step)
            x = sampler.step(made, index, x, lambda: next(draws))
        assert x.dtype == np.float32
    expected = SAMPLED["latents"][number]
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(x, expected, atol=2e-4 * scale)


@pytest.mark.parametrize("name", SPACINGS)
def test_spacings_begin_and_end_with_the_given_levels(name: str) -> None:
    assert SPACINGS[name](9.0, 0.5, 1) == pytest.approx([9.0])
    levels = SPACINGS[name](9.0, 0.5, 5)
    assert levels[[0, -1]] == pytest.approx([9.0, 0.5])
    assert (np.diff(levels) < 0).all()


def test_every_scheduler_has_cases() -> None:
    assert {name for name, _, _ in SAMPLERS} == set(SCHEDULERS) == set(SHORT.values())


def painted(folder: Path, number: int, **options: Any) -> Any:
    kind, what, settings = CASES[number]
    given = dict(settings)
    if kind != "lcm" and what not in ("free", "bare"):
        given["negative"] = painters.NEGATIVE
    if what in ("image", "mask"):
        given["image"], mask = painters.picture_and_mask()
        if what == "mask":
            given["mask"] = mask
    with vkmnn.pipeline(None, folder, tell=[].append, size=painters.SIZE, **options) as pipe:
        return pipe(painters.PROMPT, seed=painters.SEED, **given)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{a}-{b}" for a, b, _ in CASES])
def test_pictures_are_those_of_diffusers(tmp_path: Path, number: int) -> None:
    result = painted(painter_folder(tmp_path / "f", CASES[number][0]), number, device="cpu")
    expected = PAINTED[f"picture/{number}"]
    assert expected.std() > 20
    off = np.abs(result.pixels.astype(int) - expected.astype(int))
    assert off.max() <= 1
    assert off.mean() < 0.05


@pytest.mark.parametrize("kind", ["sd1", "xl", "lcm"])
def test_pictures_on_the_device(tmp_path: Path, kind: str) -> None:
    number = next(n for n, case in enumerate(CASES) if case[0] == kind)
    result = painted(painter_folder(tmp_path / "f", kind), number)
    off = np.abs(result.pixels.astype(int) - PAINTED[f"picture/{number}"].astype(int))
    assert off.max() <= 2


@pytest.mark.parametrize(("batch", "number"), [(1, 0), (2, 0), (2, 1)])
def test_networks_with_a_static_batch(tmp_path: Path, batch: int, number: int) -> None:
    result = painted(painter_folder(tmp_path / "f", batch=batch), number, device="cpu")
    off = np.abs(result.pixels.astype(int) - PAINTED[f"picture/{number}"].astype(int))
    assert off.max() <= 1


def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    folder = painter_folder(tmp_path / "f") / "tokenizer"
    built = ClipTokenizer(folder)
    for text, expected in zip(TEXTS, PAINTED["tokens"], strict=True):
        assert built.encode(text, truncate=True) == expected.tolist()
    tokenizers = pytest.importorskip("tokenizers")
    whole = folder / "tokenizer.json"
    assert isinstance(built._tokenizer, tokenizers.Tokenizer)
    built._tokenizer.save(str(whole))
    (folder / "vocab.json").unlink()
    assert ClipTokenizer(folder).encode(TEXTS[0], truncate=True) == PAINTED["tokens"][0].tolist()


def test_seeds_counts_and_results(tmp_path: Path) -> None:
    folder = painter_folder(tmp_path / "f")
    seen: list[tuple[int, int]] = []
    with vkmnn.pipeline("text-to-image", folder, device="cpu", steps=3) as pipe:
        two = pipe("a cat", seed=4, count=2, progress=lambda *at: seen.append(at))
        second = pipe("a cat", seed=5)
        listed = pipe(["a cat", "a red dot"], seed=5)
        free = pipe("a cat")
        again = pipe("a cat", seed=free.seeds[0])
        wide = pipe("a cat", size=(8, 16))
    assert two.seeds == [4, 5]
    assert seen == [(done, 8) for done in range(1, 9)]  # PNDM repeats a step
    assert np.array_equal(two.pixels[1], second.pixels[0])
    assert np.array_equal(listed[0].pixels, second.pixels)
    assert not np.array_equal(listed[1].pixels, second.pixels)
    assert not np.array_equal(two.pixels[0], two.pixels[1])
    assert np.array_equal(free.pixels, again.pixels)
    assert wide.images[0].size == (16, 8)
    assert two.to_dict()[0] == {"size": [16, 16], "seed": 4}
    two.save(tmp_path / "two.png")
    assert Image.open(tmp_path / "two.png").size == (32, 16)
    two.save(tmp_path / "two.npz")
    assert np.load(tmp_path / "two.npz")["pixels"].shape == (2, 16, 16, 3)


@pytest.mark.parametrize("name", sorted(SHORT))
def test_schedulers_by_name(tmp_path: Path, name: str) -> None:
    folder = painter_folder(tmp_path / "f")
    steps = 4
    with vkmnn.pipeline("paint", folder, device="cpu", scheduler=name, tell=[].append) as pipe:
        result = pipe("a cat", seed=1, steps=steps)
    assert pipe.scheduler.name == SHORT[name]
    assert result.pixels.std() > 5


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": 2000}, "steps=2000"),
        ({"guidance": -1}, "guidance=-1"),
        ({"size": 15}, "not a multiple of 2"),
        ({"seed": -1}, "seed=-1"),
        ({"mask": np.zeros((4, 4, 3), np.uint8)}, "mask without an image"),
        ({"latents": np.zeros((1, 4, 3, 3))}, "latents of shape"),
        ({"image": np.zeros((8, 8, 3), np.uint8), "strength": 0.01}, "less than one step"),
        ({"stepz": 3}, "no setting 'stepz'"),
        ({"negative": 3}, "not a text"),
        ({"progress": 3}, "cannot be called"),
    ],
)
def test_settings_that_do_not_fit(pipe: Any, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        pipe("a cat", **settings)


def test_prompts_that_do_not_fit(pipe: Any) -> None:
    with pytest.raises(InvalidInputError, match="the model takes 10"):
        pipe("word " * 11, steps=1)
    assert len(pipe("word " * 11, steps=1, truncate=True)) == 1
    with pytest.raises(InvalidInputError, match="a prompt is a str"):
        pipe(3, steps=1)


def scheduler_of(folder: Path, **options: Any) -> None:
    path = folder / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({**BETAS, **KINDS["sd1"][1], **options}))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"_class_name": "NewScheduler"}, "the scheduler 'NewScheduler'"),
        ({"beta_schedule": "wavy"}, "beta_schedule='wavy'"),
        ({"prediction_type": "flow"}, "prediction_type='flow'"),
        ({"timestep_spacing": "odd"}, "timestep_spacing='odd'"),
        ({"use_flow_sigmas": True}, "use_flow_sigmas is not supported"),
        ({"num_train_timesteps": 0}, "num_train_timesteps"),
        ({"beta_end": 4.0}, "not between 0 and 1"),
        ({"trained_betas": "many"}, "trained_betas"),
    ],
)
def test_schedulers_that_do_not_fit(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    folder = painter_folder(tmp_path / "f")
    scheduler_of(folder, **options)
    with (
        pytest.raises((InvalidInputError, ModelFileError), match=match),
        vkmnn.pipeline("paint", folder, device="cpu") as pipe,
    ):
        pipe("a cat", steps=4)


def test_options_that_are_not_known_are_named(tmp_path: Path) -> None:
    folder = painter_folder(tmp_path / "f")
    scheduler_of(folder, clip_sample=False, brand_new=3, lambda_min_clipped=float("-inf"))
    (folder / "safety_checker").mkdir()
    said: list[str] = []
    with vkmnn.pipeline("paint", folder, device="cpu", tell=said.append) as pipe:
        assert pipe.settings["steps"] == 50
    assert [one for one in said if "brand_new" in one and "clip_sample" not in one]
    assert any("safety checker" in one for one in said)


@pytest.mark.parametrize(
    ("gone", "match"),
    [
        ("unet", "no folder 'unet'"),
        ("text_encoder", "no folder 'text_encoder'"),
        ("tokenizer", "neither tokenizer.json nor"),
        ("scheduler", "scheduler_config.json' is missing"),
        ("vae_decoder", "no folder 'vae_decoder'"),
    ],
)
def test_incomplete_folders(tmp_path: Path, gone: str, match: str) -> None:
    folder = painter_folder(tmp_path / "f")
    (folder / gone).rename(tmp_path / gone)
    with pytest.raises(ModelFileError, match=match):
        vkmnn.pipeline("paint", folder, device="cpu")


def test_other_pipelines_and_networks_are_refused(tmp_path: Path) -> None:
    folder = painter_folder(tmp_path / "f")
    with pytest.raises(InvalidInputError, match="a folder with model_index"):
        vkmnn.pipeline("paint", folder / "unet", device="cpu")
    (folder / "vae_encoder").rename(tmp_path / "vae_encoder")
    with vkmnn.pipeline("image-to-image", folder, device="cpu") as pipe:
        assert pipe.task == "text-to-image"
        with pytest.raises(ModelFileError, match="no folder 'vae_encoder'"):
            pipe("a cat", image=np.zeros((8, 8, 3), np.uint8), steps=2)
    path = folder / "unet" / "model.onnx"
    model = onnx.load(path)
    model.graph.input[0].name = "x"
    for node in model.graph.node:
        node.input[:] = ["x" if name == "sample" else name for name in node.input]
    onnx.save(model, path)
    with pytest.raises(InvalidInputError, match="an input 'x'"):
        vkmnn.pipeline("paint", folder, device="cpu")
    (folder / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    with pytest.raises(InvalidInputError, match="FluxPipeline, which is not supported"):
        vkmnn.pipeline("paint", folder, device="cpu")


def test_an_interruption_leaves_the_pipeline_usable(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        assert total == 5
        if done == 2:
            raise KeyboardInterrupt

    with vkmnn.pipeline("paint", painter_folder(tmp_path / "f"), device="cpu", steps=4) as pipe:
        with pytest.raises(KeyboardInterrupt):
            pipe("a cat", progress=stop)
        assert len(pipe("a cat")) == 1


def test_distilled_models_are_told(tmp_path: Path) -> None:
    said: list[str] = []
    folder = painter_folder(tmp_path / "f", "turbo")
    with vkmnn.pipeline(None, folder, device="cpu", tell=said.append) as pipe:
        assert (pipe.settings["steps"], pipe.settings["guidance"]) == (1, 0.0)
    assert "--steps" in said[0]
    folder = painter_folder(tmp_path / "g", "lcm")
    with vkmnn.pipeline(None, folder, device="cpu", tell=said.append) as pipe:
        assert (pipe.settings["steps"], pipe.settings["guidance"]) == (4, 8.5)
    assert len(said) == 1
