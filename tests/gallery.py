"""The gallery: runs its networks, draws its pictures and measures its figures.

python -m tests.gallery             # renews the pictures of docs/images/gallery
python -m tests.gallery figures     # renews the table of figures, by measurement
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from PIL import Image
from rich.console import Console

from tests import gallery_networks as made
from tests.model import networks as models
from tests.model.yolov5s import yolov5s
from tests.networks.page import WRITTEN
from tests.pipelines.networks import Array
from tests.tutorials import ROOT, command, working_in

PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "images" / "gallery"
QUALITY = 80
_DIGITS = ROOT / "examples" / "digits"
_BEGIN, _END = "<!-- figures: python -m tests.gallery figures -->\n", "<!-- end of figures -->\n"


@dataclass(frozen=True)
class Shown:
    """A network with a picture: what it is, the network, the picture, and further options."""

    what: str
    make: Callable[[Path], Path]
    picture: Callable[[], Image.Image]
    options: str = ""

    def line(self, name: str) -> str:
        """Return the command."""
        more = f" {self.options}" if self.options else ""
        return f"vkmnn run {name}.onnx -i {name}.png -o {name}-out.png{more}"


def _digits(path: Path) -> Path:
    return Path(shutil.copy(_DIGITS / "digits.onnx", path))


def _digit() -> Image.Image:
    """Enlarge a held-out digit; the network gets it in its 8×8 pixels again."""
    pixels = np.load(_DIGITS / "digits_test.npz")["images"][7].astype(np.float32) / 16 * 255
    small = Image.fromarray(np.rint(pixels).astype(np.uint8))
    return small.resize((192, 192), Image.Resampling.NEAREST)


def _enlarged() -> Image.Image:
    return made.scene().crop((20, 30, 148, 110))


SHOWN: Mapping[str, Shown] = {
    "balls": Shown("detector", made.detector, made.balls),
    "scene": Shown("segmentation", made.segmenter, made.scene),
    "studio": Shown("matting", made.matte, made.studio),
    "dancer": Shown("pose", made.pose, made.dancer),
    "haze": Shown("depth", made.haze, made.mountains),
    "lines": Shown("detector of text lines", made.liner, made.note, "--task ocr"),
    "double": Shown("super-resolution", made.upscaler, _enlarged),
    "edges": Shown("image filter", made.outliner, made.scene),
    "digits": Shown("classifier", _digits, _digit, "--mean 0 --std 1"),
}
"""Networks with a picture, by name."""


def prepare(name: str, folder: Path) -> None:
    """Put a network and its picture into a folder, where its files describe it."""
    made_in = folder / "made"
    path = made_in / f"{name}.onnx"
    made_in.mkdir(exist_ok=True)
    SHOWN[name].make(path)
    for file in made_in.iterdir():
        file.replace(folder / file.name)
    SHOWN[name].picture().save(folder / f"{name}.png")


def run(name: str, folder: Path) -> tuple[Console, Image.Image]:
    """Run a network's command; return what it printed, and both pictures side by side."""
    prepare(name, folder)
    with working_in(folder):
        printed = command(SHOWN[name].line(name))
        before, after = (Image.open(f"{name}{end}.png") for end in ("", "-out"))
        after.load()
    if after.mode == "RGBA":
        board = Image.fromarray(_checks(after.size[::-1]))
        board.paste(after, mask=after)
        after = board
    if after.width == 2 * before.width:  # enlarged: both at the larger size
        before = before.resize(after.size, Image.Resampling.NEAREST)
    pair = Image.new(
        "RGBA", (before.width + after.width + 8, before.height)
    )  # a gap to see through
    pair.paste(before.convert("RGB"), (0, 0))
    pair.paste(after.convert("RGB"), (before.width + 8, 0))
    return printed, pair


def _checks(size: tuple[int, int]) -> Array:
    y, x = np.indices(size)
    return np.repeat(np.where((x // 10 + y // 10) % 2, 200, 240)[..., None], 3, 2).astype(np.uint8)


# --- figures --------------------------------------------------------------------------------------

Case = tuple[onnx.ModelProto, Mapping[str, Array]]


def _of(model: onnx.ModelProto, *size: int) -> Case:
    return model, models.make_feeds(model, size)


def _written(name: str) -> Case:
    return WRITTEN[name].make(), WRITTEN[name].feeds(np.random.default_rng(0))[0]


MEASURED: Mapping[str, tuple[str, Callable[[], Case]]] = {
    "resnet": ("classifier with residual blocks", lambda: _of(models.resnet(), 1, 64, 64)),
    "mobilenet_v2": ("classifier for phones", lambda: _of(models.mobilenet_v2(), 1, 64, 64)),
    "squeezenet": ("small classifier", lambda: _of(models.squeezenet(), 1, 64, 64)),
    "unet": ("segmentation", lambda: _of(models.unet(), 1, 64, 64)),
    "yolov5s": ("detector", lambda: _of(yolov5s(160), 1, 160, 160)),
    "two_stage": ("two-stage detector", lambda: _written("two_stage")),
    "crnn": ("text recogniser", lambda: _written("crnn")),
    "voice": ("voice activity, with state", lambda: _written("voice")),
    "vit": ("vision transformer, two layers", lambda: _of(models.vit(), 1, 64, 64)),
    "bert": ("text encoder, two layers", lambda: _of(models.bert(), 1, 32)),
    "gpt2": ("language model, two layers", lambda: _of(models.gpt2(), 1, 32)),
}
"""Networks with random weights: what they are, and the model with its inputs."""


def cases() -> dict[str, Callable[[Path], Case]]:
    """Return all networks of the table."""

    def shown(name: str) -> Callable[[Path], Case]:
        def make(folder: Path) -> Case:
            model = onnx.load(SHOWN[name].make(folder / f"{name}.onnx"))
            (one,) = model.graph.input
            shape = [dim.dim_value or 1 for dim in one.type.tensor_type.shape.dim]
            return model, {one.name: np.random.default_rng(0).random(shape).astype(np.float32)}

        return make

    found = {name: shown(name) for name in SHOWN}
    return found | {name: lambda _, make=make: make() for name, (_, make) in MEASURED.items()}


def figures(name: str, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> tuple[str, ...]:
    """Return a network's row: size, nodes, kernels, and processor time by onnxruntime's."""
    import vkmnn
    from tests.onnxruntime_oracle import open_oracle

    data = model.SerializeToString()
    peer = open_oracle(data)
    with vkmnn.InferenceSession(data) as session:
        session.run(None, feeds)
        before = session.counters()["commands"]
        session.trim()
        session.run(None, feeds)
        commands = session.counters()["commands"] - before
        here, there = [], []
        for _ in range(9):
            for spent, one in ((here, session), (there, peer)):
                start, count = time.process_time(), 0
                while time.process_time() - start < 0.05:
                    one.run(None, feeds)
                    count += 1
                spent.append((time.process_time() - start) / count)
    ratio = statistics.median(here) / statistics.median(there)
    what = MEASURED[name][0] if name in MEASURED else SHOWN[name].what
    return f"`{name}`", what, kib(model), str(len(model.graph.node)), str(commands), f"{ratio:.2g}"


def kib(model: onnx.ModelProto) -> str:
    """Return the size of a model's file in KiB."""
    return f"{len(model.SerializeToString()) / 1024:,.1f}"


def measure() -> None:
    """Renew the table of figures."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in cases().items():
            rows.append(figures(name, *make(Path(folder))))
    head, rest = PAGE.read_text("utf-8").split(_BEGIN)
    tail = rest.partition(_END)[2]
    heading = ("network", "what it is", "KiB", "nodes", "kernels", "time")
    lines = [heading, ("---", "---", *["---:"] * 4), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    PAGE.write_text(f"{head}{_BEGIN}\n{table}\n\n{_END}{tail}", "utf-8")


def recorded() -> dict[str, list[str]]:
    """Return the rows of the table of figures, by network."""
    table = PAGE.read_text("utf-8").partition(_BEGIN)[2].partition(_END)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row for row in rows}


def draw(name: str) -> None:
    """Renew the picture of a network."""
    with tempfile.TemporaryDirectory() as folder:
        _, pair = run(name, Path(folder))
    PICTURES.mkdir(exist_ok=True)
    pair.save(PICTURES / f"{name}.webp", quality=QUALITY, method=6)


if __name__ == "__main__":
    if sys.argv[1:] == ["figures"]:
        measure()
    else:
        for chosen in sys.argv[1:] or SHOWN:
            draw(chosen)
