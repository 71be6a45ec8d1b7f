"""Images: rows are uploaded and downloaded, kernels sample and store, misfits are refused."""

from __future__ import annotations

import gc
import struct

import numpy as np
import pytest

from vkmnn.codegen import compile_source
from vkmnn.errors import InvalidInputError
from vkmnn.runtime import BufferRange, Device, Image, MemoryKind, Pipeline, Shader
from vkmnn.shaders import shader_from_entry

FORMATS = {"rgba32f": ("f32", np.float32), "rgba16f": ("f16", np.float16)}
SIZES = [(1, 1), (3, 5), (64, 2), (1, 37), (127, 31)]

TEMPLATE = """{# y = factor * x, texel by texel. #}
{{ local_size(8) }}
{{ tensor_in("x", vec(element, 4), load="image") }}
{{ tensor_out("y", vec(element, 4), load="image") }}
{{ params("count:uint", "factor:float") }}
{% include "include/common.glsl.j2" %}

void main()
{
    uint i = global_index();
    if (i >= pc.count)
        return;
    y_store(i, pc.factor * x_load(i));
}
"""


def _doubling(element: str) -> Shader:
    built = compile_source(TEMPLATE, {"element": element}, name=f"scale_image_{element}")
    return shader_from_entry(built.name, built.entry, lambda: built.spirv)


@pytest.fixture
def images(device: Device) -> Device:
    """A device with images; skips the test on drivers that have none."""
    if "images" not in device.info.features:
        pytest.skip("this driver has no images")
    return device


def _texels(width: int, height: int, dtype: type[np.floating]) -> np.ndarray:
    rng = np.random.default_rng(width * 1000 + height)
    return rng.standard_normal((height, width, 4)).astype(dtype)


def _whole(image: Image) -> BufferRange:
    return BufferRange(image, 0, image.nbytes)


def _read(image: Image, dtype: type[np.floating]) -> np.ndarray:
    return image.read(0, image.nbytes).view(dtype).reshape(image.height, image.width, 4)


@pytest.mark.parametrize("texel_format", FORMATS)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_is_written_is_read(
    images: Device, texel_format: str, width: int, height: int
) -> None:
    _, dtype = FORMATS[texel_format]
    data = _texels(width, height, dtype)
    with images.allocate_image(width, height, texel_format) as image:
        assert (image.width, image.height, image.nbytes) == (width, height, data.nbytes)
        assert image.host is None
        image.write(0, data)
        np.testing.assert_array_equal(_read(image, dtype), data)
        row = image.granule
        image.write((height - 1) * row, data[:1])
        np.testing.assert_array_equal(_read(image, dtype)[-1], data[0])
        np.testing.assert_array_equal(_read(image, dtype)[:-1], data[:-1])
        for offset, size in ((0, row + 4), (4, row), (-row, row), (0, image.nbytes + row)):
            with pytest.raises(InvalidInputError, match=r"whole rows|outside"):
                image.read(offset, size)


def test_more_rows_than_fit_into_a_staging_buffer(images: Device) -> None:
    data = _texels(1021, 1100, np.float32)  # 17.9 MB, in rows that do not divide 16 MiB
    with images.allocate_image(1021, 1100, "rgba32f") as image:
        image.write(0, data)
        np.testing.assert_array_equal(_read(image, np.float32), data)


@pytest.mark.parametrize("texel_format", FORMATS)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_kernels_sample_and_store(
    images: Device, texel_format: str, width: int, height: int
) -> None:
    """Three dispatches to and fro between two images, with copies around them, run twice."""
    element, dtype = FORMATS[texel_format]
    pipeline = images.pipeline(_doubling(element))
    data = _texels(width, height, dtype)
    with (
        images.allocate_image(width, height, texel_format) as a,
        images.allocate_image(width, height, texel_format) as b,
        images.allocate(data.nbytes, MemoryKind.UPLOAD) as given,
        images.allocate(data.nbytes, MemoryKind.READBACK) as made,
    ):
        recorder = images.recorder()
        recorder.copy(BufferRange(given, 0, data.nbytes), _whole(a))
        for source, target in ((a, b), (b, a), (a, b)):
            _scale(recorder, pipeline, source, target, 2.0)
        recorder.copy(_whole(b), BufferRange(made, 0, data.nbytes))
        assert recorder.barrier_count >= 4
        with recorder.finish() as commands:
            for factor in (1, 3):
                given.write(0, (factor * data).astype(dtype))
                commands.run()
                got = made.read(0, data.nbytes).view(dtype).reshape(data.shape)
                np.testing.assert_array_equal(got, 8 * (factor * data).astype(dtype))
    images.wait_idle()  # raises what the validation layer has to say


def _scale(recorder: object, pipeline: Pipeline, source: Image, target: Image, by: float) -> None:
    count = source.width * source.height
    params = struct.pack("=If", count, by)
    ranges = [_whole(source), _whole(target)]
    recorder.dispatch(pipeline, ranges, params, (-(-count // 8), 1, 1))  # type: ignore[attr-defined]


def test_bindings_take_what_they_were_made_for(images: Device, scale: Shader) -> None:
    f32, f16 = images.pipeline(_doubling("f32")), images.pipeline(_doubling("f16"))
    plain = images.pipeline(scale)
    with (
        images.allocate_image(4, 4, "rgba32f") as image,
        images.allocate_image(4, 4, "rgba32f") as other,
        images.allocate(256, MemoryKind.DEVICE) as buffer,
    ):
        recorder = images.recorder()
        params = struct.pack("=If", 16, 1.0)
        span = BufferRange(buffer, 0, 256)
        with pytest.raises(InvalidInputError, match="takes an image, not Buffer"):
            recorder.dispatch(f32, [_whole(image), span], params)
        with pytest.raises(InvalidInputError, match="takes a buffer, not Image"):
            recorder.dispatch(plain, [_whole(image), span], params)
        with pytest.raises(InvalidInputError, match="rgba16f, not of rgba32f"):
            recorder.dispatch(f16, [_whole(image), _whole(other)], params)
        with pytest.raises(InvalidInputError, match="between images"):
            recorder.copy(_whole(image), _whole(other))
        with pytest.raises(InvalidInputError, match="whole rows"):
            recorder.copy(BufferRange(image, 0, 16), BufferRange(buffer, 0, 16))
        with pytest.raises(InvalidInputError, match="not a multiple of 16"):
            recorder.copy(BufferRange(buffer, 4, 64), BufferRange(image, 0, 64))
        with pytest.raises(InvalidInputError, match="cannot be filled"):
            recorder.fill(_whole(image))


def test_sizes_and_formats_are_checked(images: Device) -> None:
    limit = images.info.limits.max_image_dimension
    assert limit >= 4096  # what Vulkan guarantees
    for width, height in ((0, 1), (1, 0), (limit + 1, 1), (1, limit + 1), (-1, 1)):
        with pytest.raises(InvalidInputError, match=f"1 to {limit}"):
            images.allocate_image(width, height, "rgba32f")
    with pytest.raises(InvalidInputError, match="images hold rgba32f, rgba16f, not r32f"):
        images.allocate_image(1, 1, "r32f")
    with images.allocate_image(limit, 1, "rgba16f") as image:
        assert image.nbytes == 8 * limit


def test_images_are_counted_and_freed(images: Device) -> None:
    gc.collect()
    before = images.stats()
    image = images.allocate_image(16, 16, "rgba32f")
    assert images.stats().get("images", 0) == before.get("images", 0) + 1
    image.destroy()
    image.destroy()
    assert images.stats() == before
    kept = images.allocate_image(16, 16, "rgba32f")
    del kept
    gc.collect()
    assert images.stats() == before
    with pytest.raises(InvalidInputError, match="destroyed"):
        image.read(0, image.nbytes)


def test_a_driver_without_images_says_so(device: Device) -> None:
    if "images" in device.info.features:
        pytest.skip("it has images")
    with pytest.raises(InvalidInputError, match="cannot store data in images") as caught:
        device.allocate_image(1, 1, "rgba32f")
    assert "buffers" in (caught.value.hint or "")
