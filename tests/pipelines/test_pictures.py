"""Pictures of all kinds, as RGB of 8 bits; films and animations frame by frame."""

from __future__ import annotations

import io
import struct
import threading
import warnings
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vkmnn
from tests.pipelines.networks import Array, classifier, stripes
from vkmnn.pipelines import read_picture

PIXELS = stripes(6, 9)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.fromarray(PIXELS), "PNG", exif=exif)


GREY = PIXELS[:, :, 0]
ALPHA = np.dstack([PIXELS, np.full(PIXELS.shape[:2], 90, np.uint8)])
PALETTE = Image.fromarray(PIXELS).quantize(16)
SOURCES: dict[str, tuple[Any, Array]] = {
    "bytes": (encoded(Image.fromarray(PIXELS)), PIXELS),
    "a file": (io.BytesIO(encoded(Image.fromarray(PIXELS))), PIXELS),
    "an image of PIL": (Image.fromarray(PIXELS), PIXELS),
    "an array": (PIXELS, PIXELS),
    "channels first": (PIXELS.transpose(2, 0, 1), PIXELS),
    "floats": (PIXELS / np.float32(255), PIXELS),
    "int64": (PIXELS.astype(np.int64), PIXELS),
    "16 bits": (PIXELS.astype(np.uint16) * 257, PIXELS),
    "grey": (GREY, np.repeat(GREY[..., None], 3, 2)),
    "one channel": (GREY[..., None], np.repeat(GREY[..., None], 3, 2)),
    "alpha": (encoded(Image.fromarray(ALPHA)), PIXELS),
    "an array with alpha": (ALPHA, PIXELS),
    "grey with alpha": (
        encoded(Image.fromarray(np.dstack([GREY, GREY]))), np.repeat(GREY[..., None], 3, 2)
    ),
    "a palette": (encoded(PALETTE), np.asarray(PALETTE.convert("RGB"))),
    "a palette with transparency": (
        encoded(PALETTE, transparency=0), np.asarray(PALETTE.convert("RGB"))
    ),
    "a grey file of 16 bits": (
        encoded(Image.fromarray(GREY.astype(np.uint16) * 257)), np.repeat(GREY[..., None], 3, 2)
    ),
    "black and white": (
        encoded(Image.fromarray(GREY > 99)), np.repeat(np.where(GREY > 99, 255, 0)[..., None], 3, 2)
    ),
    "turned by 180 degrees": (turned(3), PIXELS[::-1, ::-1]),
    "turned by 90 degrees": (turned(6), np.rot90(PIXELS, -1)),
    "mirrored": (turned(2), PIXELS[:, ::-1]),
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_kinds_of_pictures(kind: str) -> None:
    source, want = SOURCES[kind]
    found = read_picture(source).pixels
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, want)


def bomb() -> bytes:
    """A file of a few bytes that claims a hundred thousand pixels a side."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b""))


WHOLE = encoded(Image.fromarray(stripes(64, 64)))
BAD: dict[str, tuple[Any, str]] = {
    "text": (b"hello", "cannot be read as an image"),
    "nothing": (b"", "cannot be read as an image"),
    "half a file": (WHOLE[: len(WHOLE) // 2], "cannot be read as an image"),
    "a bomb": (bomb(), "cannot be read as an image"),
    "an animation": (
        encoded(Image.fromarray(PIXELS), "GIF", save_all=True,
                append_images=[Image.fromarray(PIXELS[::-1])]),
        "has 2 frames",
    ),
    "no such file": ("nowhere.png", "does not exist"),
    "a folder": ("/", "is not a file"),
    "an address": ("https://example.org/cat.jpg", "images are not downloaded"),
    "a number": (7, "int is not an image"),
    "a vector": (np.zeros(9, np.uint8), "is not an image"),
    "five channels": (np.zeros((9, 9, 5), np.uint8), "is not an image"),
    "no rows": (np.zeros((0, 4, 3), np.uint8), "is not an image"),
    "floats of 0 to 255": (PIXELS.astype(np.float32), "from 0 to 1"),
    "not a number": (np.full((4, 4, 3), np.nan), "from 0 to 1"),
    "negative": (PIXELS.astype(np.int32) - 300, "from 0 to 255"),
    "complex": (PIXELS.astype(complex), "from 0 to 255"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_picture_gets_a_typed_error(kind: str) -> None:
    source, words = BAD[kind]
    with pytest.raises(vkmnn.InvalidInputError, match=words) as raised:
        read_picture(source)
    assert raised.value.hint


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_get_typed_errors_or_pictures(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")[seed % 6]
    data = bytearray(encoded(Image.fromarray(stripes(20, 20)), kind))
    for place in rng.integers(0, len(data), 8):
        data[place] = rng.integers(256)
    try:
        found = read_picture(bytes(data))
    except vkmnn.InvalidInputError:
        return
    assert found.pixels.ndim == 3


def test_threads_that_read_leave_warnings_on() -> None:
    """`warnings.catch_warnings` of overlapping threads would leave them off for good."""
    begun, ended = threading.Event(), threading.Event()

    class Slow(io.BytesIO):
        def read(self, *sizes: int | None) -> bytes:
            begun.set()
            assert ended.wait(20)
            return super().read(*sizes)

    before = list(warnings.filters)
    with ThreadPoolExecutor(1) as pool:
        later = Slow(encoded(Image.fromarray(PIXELS)))

        class First(io.BytesIO):
            def read(self, *sizes: int | None) -> bytes:
                if not begun.is_set():
                    first.append(pool.submit(read_picture, later))
                    assert begun.wait(20)
                return super().read(*sizes)

        first: list[Future[Any]] = []
        read_picture(First(encoded(Image.fromarray(PIXELS))))
        ended.set()
        first[0].result(20)
    assert list(warnings.filters) == before


def test_animations_are_read_frame_by_frame(tmp_path: Path) -> None:
    frames = [Image.fromarray(stripes(40, 40 + n)).resize((40, 40)) for n in range(5)]
    path = tmp_path / "a.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    with vkmnn.pipeline(
        "classify", classifier(tmp_path / "m.onnx"), device="cpu", tell=list
    ) as pipe:
        found = list(pipe.stream(path))
        assert len(found) == 5
        with Image.open(path) as image:
            for number, one in enumerate(found):
                image.seek(number)
                np.testing.assert_allclose(one.scores, pipe(image.convert("RGB")).scores, atol=1e-6)


def test_films(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as film:
        stream = film.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for n in range(7):
            film.mux(stream.encode(av.VideoFrame.from_ndarray(stripes(48, 64 + n)[:, n:].copy())))
        film.mux(stream.encode())
    with vkmnn.pipeline(
        "classify", classifier(tmp_path / "m.onnx"), device="cpu", tell=list
    ) as pipe:
        found = list(pipe.stream(path))
        assert [one.picture.name for one in found] == [f"a-{n:05d}" for n in range(7)]
        assert [one.picture.pixels.shape for one in found] == [(48, 64, 3)] * 7
        with pytest.raises(vkmnn.InvalidInputError, match="cannot be read as a video"):
            list(pipe.stream(Path(__file__)))
        with pytest.raises(vkmnn.InvalidInputError, match="no such file"):
            list(pipe.stream(tmp_path / "b.mp4"))
        with pytest.raises(vkmnn.InvalidInputError, match="has no frames"):
            list(pipe.stream(1.5))


def test_frames_are_in_flight(tmp_path: Path) -> None:
    """The next frame is read before the result of the one before is asked for."""
    events: list[str] = []

    def frames() -> Any:
        for n in range(5):
            events.append(f"read {n}")
            yield stripes(32, 32)

    with vkmnn.pipeline(
        "classify", classifier(tmp_path / "m.onnx"), device="cpu", tell=list
    ) as pipe:
        for n, _ in enumerate(pipe.stream(frames())):
            events.append(f"result {n}")
    assert events.index("read 2") < events.index("result 0") < events.index("read 3")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(vkmnn.MissingExtraError, match=r"pip install 'vkmnn\[images\]'"):
        read_picture(b"")


def test_nothing_of_it_is_imported_with_vkmnn() -> None:
    import subprocess
    import sys

    code = (
        "import sys, vkmnn; vkmnn.InferenceSession\n"
        "print([n for n in ('PIL', 'av', 'soundfile', 'vkmnn.pipelines') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
