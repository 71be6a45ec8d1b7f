"""Mattes: normalised maps, trimaps, and states from frame to frame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import vkmnn
from tests.onnxruntime_oracle import open_oracle
from tests.pipelines.networks import Array, canned, model_of, stripes, trimap
from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.front import PICTURES

DATA = Path(__file__).resolve().parents[1] / "data" / "pipelines"
OPEN = ("batch", "channels", "height", "width")
RAMP = np.linspace(-4, 3, 64 * 64, dtype=np.float32).reshape(1, 1, 64, 64)


def chance(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-values)))


def opened(path: Any, **options: Any) -> Any:
    return vkmnn.pipeline("matte", path, device="cpu", tell=list, **options)


# --- one image in, one map out --------------------------------------------------------------------

LOW = chance(RAMP) / 4 + 0.25
"""Opacities between 0.25 and 0.5."""
SPREAD = (LOW - LOW.min()) / (LOW.max() - LOW.min())

MAPS: Mapping[str, tuple[Mapping[str, Array], int, Mapping[str, Any], Array]] = {
    "MODNet": ({"output": LOW}, 64, {}, LOW),
    "BiRefNet": ({"output_image": RAMP}, 1024, {}, chance(RAMP)),
    "RMBG 2": ({"alphas": LOW}, 1024, {}, LOW),
    "RMBG 1.4": ({"output": LOW}, 64, {"mean": (0.5,) * 3, "std": (1.0,) * 3}, SPREAD),
    "U²-Net": ({str(n): LOW if n == 0 else 1 - LOW for n in range(7)}, 320, {}, SPREAD),
    "IS-Net": (
        {"d1": LOW, **{f"d{n}": 1 - LOW for n in range(2, 7)}, "h1": np.ones((1, 64, 8, 8))},
        1024, {}, SPREAD,
    ),
    "no foreground": ({str(n): np.zeros_like(LOW) for n in range(7)}, 320, {}, 0 * LOW),
    "8 bits": ({"alpha": np.rint(LOW * 255).astype(np.uint8)}, 64, {}, LOW),
    "as it is": ({str(n): LOW for n in range(7)}, 320, {"activation": "none"}, LOW),
    "spread out": ({"output": LOW}, 64, {"activation": "minmax"}, SPREAD),
    "logits": ({"output": LOW}, 64, {"activation": "sigmoid"}, chance(LOW)),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_maps_become_opacities(tmp_path: Path, name: str) -> None:
    outputs, size, options, want = MAPS[name]
    path = canned(tmp_path / "m.onnx", outputs, (1, 3, size, size))
    with opened(path, **options) as pipe:
        found = pipe(stripes(64, 64))
    np.testing.assert_allclose(found.alpha, want[0, 0], atol=3e-3)


def test_activations_have_names(tmp_path: Path) -> None:
    path = canned(tmp_path / "m.onnx", {"alpha": LOW})
    with pytest.raises(InvalidInputError, match="'softmax' is not known"):
        opened(path, activation="softmax")
    with opened(path) as pipe:
        spread = pipe(stripes(64, 64), activation="minmax")
    assert spread.alpha.max() == pytest.approx(1, abs=1e-5)


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FAMILIES: Mapping[str, tuple[str, int, int, tuple[Any, Any]]] = {
    "MODNet": ("output", 1, 512, ((0.5,) * 3, (0.5,) * 3)),
    "U²-Net": ("output", 7, 320, IMAGENET),
    "IS-Net": ("output", 7, 1024, ((0.5,) * 3, (1.0,) * 3)),
    "BiRefNet": ("output_image", 1, 1024, IMAGENET),
    "RMBG 2": ("alphas", 1, 1024, IMAGENET),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_preprocessing_of_families(tmp_path: Path, name: str) -> None:
    first, count, size, (mean, std) = FAMILIES[name]
    outputs = {first if n == 0 else str(n): LOW for n in range(count)}
    path = canned(tmp_path / "m.onnx", outputs, (1, 3, size, size))
    with opened(path) as pipe:
        made = pipe.network.processor
        assert made.fit.size == (size, size)
        assert (made.mean, made.std) == (mean, std)


@pytest.mark.parametrize("ends", [True, False])
def test_a_sigmoid_at_the_end_tells_isnet_from_birefnet(tmp_path: Path, ends: bool) -> None:
    """Both are exported with the same size and names: input_image, output_image."""
    nodes = [
        helper.make_node("Conv", ["input_image", "w"], ["c" if ends else "output_image"]),
        *([helper.make_node("Sigmoid", ["c"], ["output_image"])] if ends else []),
    ]
    shapes = {"input_image": (TensorProto.FLOAT, (1, 3, 1024, 1024))}
    outputs = {"output_image": (TensorProto.FLOAT, (1, 1, 1024, 1024))}
    model = model_of(nodes, shapes, outputs, {"w": np.ones((1, 3, 1, 1), np.float32)})
    with opened(model) as pipe:
        assert pipe.network.processor.std == ((1.0,) * 3 if ends else IMAGENET[1])


def test_dark_images_of_u2net(tmp_path: Path) -> None:
    """The reference divides by the largest value, not by 255."""
    outputs = {str(n): LOW for n in range(7)}
    path = canned(tmp_path / "m.onnx", outputs, (1, 3, 320, 320))
    dark = np.full((320, 320, 3), 40, np.uint8)
    dark[:160] = 10
    with opened(path) as pipe:
        found = pipe.feeds([dark])[PICTURES]
    want = dark / max(dark.max(), 1e-6) * 255
    assert np.abs(found[0] - want).max() <= 0.5
    with pytest.raises(InvalidInputError, match="device"):
        opened(path, preprocess="device")


@pytest.mark.parametrize("said", [True, False])
def test_modnet_keeps_the_proportions(tmp_path: Path, said: bool) -> None:
    """The short side has 512 pixels, both are multiples of 32."""
    path = canned(tmp_path / "m.onnx", {"output": LOW}, OPEN, open_shapes=True)
    if said:
        config = {"feature_extractor_type": "ImageFeatureExtractor", "do_resize": True,
                  "size": {"shortest_edge": 256}, "size_divisibility": 32, "do_normalize": True,
                  "image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # fmt: skip
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    edge = 256 if said else 512
    with opened(path) as pipe:
        assert pipe.feeds([stripes(120, 200)])[PICTURES].shape[1:3] == (
            edge, edge * 200 // 120 // 32 * 32)  # fmt: skip
        assert pipe(stripes(120, 200)).alpha.shape == (120, 200)
    with opened(path, size=96) as pipe:
        if not said:
            assert pipe.feeds([stripes(120, 200)])[PICTURES].shape[1:3] == (96, 96)


def test_pictures_without_transparency_are_on_white(tmp_path: Path) -> None:
    path = canned(tmp_path / "m.onnx", {"alpha": np.zeros((1, 1, 64, 64))})
    with opened(path) as pipe:
        found = pipe(stripes(64, 64))
    assert np.asarray(Image.open(found.save(tmp_path / "cut.jpg"))).min() > 250
    assert np.asarray(Image.open(found.save(tmp_path / "cut.png")))[..., 3].max() == 0


# --- trimaps --------------------------------------------------------------------------------------


def vitmatte(shape: tuple[Any, ...] = OPEN) -> onnx.ModelProto:
    """A convolution of the four channels; the trimap counts most."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.normal(0, 0.1, (1, 4, 3, 3)).astype(np.float32)}
    weights["w"][0, 3, 1, 1] = 4
    nodes = [
        helper.make_node("Conv", ["pixel_values", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Sigmoid", ["c"], ["alphas"]),
    ]
    size = shape[2:] if isinstance(shape[2], int) else ("height", "width")
    return model_of(
        nodes,
        {"pixel_values": (TensorProto.FLOAT, shape)},
        {"alphas": (TensorProto.FLOAT, (shape[0], "Sigmoidalphas_dim_1", *size))},
        weights,
    )


@pytest.mark.parametrize("place", ["auto", "host", "device"])
@pytest.mark.parametrize("channels", ["num_channels", 4])
def test_trimaps_as_in_transformers(tmp_path: Path, channels: Any, place: str) -> None:
    model = vitmatte(("batch", channels, "height", "width"))
    saved = np.load(DATA / "trimaps.npz")["pixel_values"].astype(np.float32)
    want = np.asarray(open_oracle(model).run(None, {"pixel_values": saved})[0])
    with vkmnn.pipeline(None, model, device="cpu", tell=list, preprocess=place) as pipe:
        assert pipe.task == "image-matting"
        found = pipe(stripes(45, 70), trimap=trimap(45, 70))
    assert found.alpha.shape == (45, 70)
    np.testing.assert_allclose(found.alpha, want[0, 0, :45, :70], atol=3e-3)


def test_values_with_a_trimap(tmp_path: Path) -> None:
    saved = np.load(DATA / "trimaps.npz")["pixel_values"].astype(np.float32)
    with opened(vitmatte(), preprocess="host", trimap=trimap(45, 70)) as pipe:
        feeds = pipe.feeds([stripes(45, 70)])
    made = np.concatenate([feeds["vkmnn.image"], feeds["trimap"]], 1)
    np.testing.assert_allclose(made, saved, atol=0.005)


def test_one_trimap_for_each_image(tmp_path: Path) -> None:
    left = trimap(32, 64)
    right = left[:, ::-1].copy()
    with opened(vitmatte()) as pipe:
        images = [stripes(32, 64)] * 2
        first, second = pipe(images, trimap=[left, right])
        np.testing.assert_array_equal(first.alpha, pipe(images[0], trimap=left).alpha)
        np.testing.assert_array_equal(second.alpha, pipe(images[0], trimap=right).alpha)
        assert np.abs(first.alpha - second.alpha).max() > 0.3
        with pytest.raises(InvalidInputError, match="more images than trimaps: 1"):
            pipe(images, trimap=[left])
        with pytest.raises(InvalidInputError, match="takes a trimap"):
            pipe(images[0])
        with pytest.raises(InvalidInputError, match="32×63 pixels, the image 32×64"):
            pipe(images[0], trimap=left[:, :63])


@pytest.mark.parametrize("last", [False, True])
def test_a_trimap_with_an_input_of_its_own(last: bool) -> None:
    """Networks of static size have it stretched like the image."""
    trimaps = (1, 32, 32, 1) if last else (1, 1, 32, 32)
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["grey"], axes=[1]),
        helper.make_node("Reshape", ["trimap", "shape"], ["turned"]),
        helper.make_node("Mul", ["grey", "none"], ["nothing"]),
        helper.make_node("Add", ["nothing", "turned"], ["alpha"]),
    ]
    model = model_of(
        nodes,
        {"image": (TensorProto.FLOAT, (1, 3, 32, 32)), "trimap": (TensorProto.FLOAT, trimaps)},
        {"alpha": (TensorProto.FLOAT, (1, 1, 32, 32))},
        {"none": np.zeros((), np.float32), "shape": np.array([1, 1, 32, 32])},
    )
    given = np.zeros((64, 64), np.uint8)
    given[:, 32:] = 255
    with opened(model, trimap=given) as pipe:
        found = pipe(stripes(64, 64)).alpha
    assert found[:, :31].max() == 0
    assert found[:, 33:].min() == 1


# --- videos ---------------------------------------------------------------------------------------

STATES = [f"r{n}i" for n in range(1, 5)]


def rvm(kind: int = TensorProto.FLOAT, state: tuple[Any, ...] = OPEN) -> onnx.ModelProto:
    """Average the frames: r = (r + mean of src) / 2; pha is r times the ratio of the coarse pass.

    Open sizes of the states have the names of the image's, as in the authors' export.
    """
    half = np.float16 if kind == TensorProto.FLOAT16 else np.float32
    nodes = [
        helper.make_node("ReduceMean", ["src"], ["grey"], axes=[1]),
        helper.make_node("Cast", ["downsample_ratio"], ["ratio"], to=kind),
        helper.make_node("Sub", ["one", "src"], ["fgr"]),
    ]
    for number in range(1, 5):
        nodes.append(helper.make_node("Add", [f"r{number}i", "grey"], [f"s{number}"]))
        nodes.append(helper.make_node("Mul", [f"s{number}", "half"], [f"r{number}o"]))
    nodes.append(helper.make_node("Mul", ["r1o", "ratio"], ["pha"]))
    outs = ["pha", *(f"r{n}o" for n in range(1, 5))]
    return model_of(
        nodes,
        {
            "src": (kind, ("batch", 3, "height", "width")),
            **dict.fromkeys(STATES, (kind, state)),
            "downsample_ratio": (TensorProto.FLOAT, (1,)),
        },
        {"fgr": (kind, ("batch", 3, "h", "w")), **{name: (kind, [None] * 4) for name in outs}},
        {"one": np.ones((), half), "half": np.array(0.5, half)},
    )


def averaged(frames: list[Array], ratio: float) -> list[Array]:
    state: Any = 0.0
    made = []
    for frame in frames:
        state = (state + frame.mean(2) / 255) / 2
        made.append(state * ratio)
    return made


FRAMES = [stripes(48, 64), 255 - stripes(48, 64), stripes(48, 64) // 2]


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_states_from_frame_to_frame(kind: int) -> None:
    want = averaged(FRAMES, 1)
    with vkmnn.pipeline(None, rvm(kind), device="cpu", tell=list) as pipe:
        assert pipe.task == "image-matting"
        for found in (pipe(FRAMES), list(pipe.stream(FRAMES)), pipe(FRAMES)):  # each from zeros
            for one, alpha, frame in zip(found, want, FRAMES, strict=True):
                np.testing.assert_allclose(one.alpha, alpha, atol=2e-3)
                assert np.abs(one.foreground.astype(int) - (255 - frame)).max() <= 1
                drawn = np.asarray(one.draw())
                np.testing.assert_array_equal(drawn[..., :3], one.foreground)
        np.testing.assert_allclose(pipe(FRAMES[1]).alpha, averaged(FRAMES[1:2], 1)[0], atol=2e-3)
        assert set(found[0].arrays()) == {"alpha", "foreground"}


def test_frames_of_another_size_begin_anew() -> None:
    with opened(rvm()) as pipe:
        found = pipe([FRAMES[0], stripes(32, 40), FRAMES[1]])
    np.testing.assert_allclose(found[2].alpha, averaged(FRAMES[1:2], 1)[0], atol=1e-3)


def test_states_of_static_shape() -> None:
    with opened(rvm(state=(1, 1, 48, 64))) as pipe:
        found = pipe(FRAMES)
    np.testing.assert_allclose(found[2].alpha, averaged(FRAMES, 1)[2], atol=1e-3)


def test_two_streams_at_once() -> None:
    with opened(rvm()) as pipe:
        for first, second in zip(pipe.stream(FRAMES), pipe.stream(FRAMES), strict=True):
            np.testing.assert_array_equal(first.alpha, second.alpha)


def test_the_ratio_of_the_coarse_pass() -> None:
    """512 / the longest side, at most 1, unless it is given."""
    wide = stripes(32, 1024)
    with opened(rvm()) as pipe:
        np.testing.assert_allclose(pipe(wide).alpha, averaged([wide], 0.5)[0], atol=1e-3)
        found = pipe(wide, downsample_ratio=0.25).alpha
        np.testing.assert_allclose(found, averaged([wide], 0.25)[0], atol=1e-3)
        with pytest.raises(InvalidInputError, match=r"from 0\.01 to 1"):
            pipe(wide, downsample_ratio=2)
