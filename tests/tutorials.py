"""Runs what the tutorials show, and draws what their commands print.

python -m tests.tutorials [NAME…]    # renews the pictures of docs/images/tutorials
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "tutorials"
PICTURES = ROOT / "docs" / "images" / "tutorials"
NAMES = sorted(page.stem for page in PAGES.glob("*.md") if page.stem != "index")
WIDTH = 110

_FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Rich's picture of a terminal; its fonts would be loaded from another site."""

_BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)


def prepare(name: str, folder: Path) -> None:
    """Put the files that a tutorial names into a folder."""
    shutil.copy(ROOT / "examples" / "digits" / "digits.onnx", folder)
    if name == "quantize":
        _write_digits(folder / "pictures")
        shown = {"do_resize": True, "size": {"height": 8, "width": 8}, "do_normalize": False}
        (folder / "preprocessor_config.json").write_text(json.dumps(shown))
    if name == "detect":
        from PIL import Image

        from tests.pipelines.networks import canned, stripes
        from tests.pipelines.test_detect import ULTRALYTICS, yolov8

        canned(folder / "yolo.onnx", yolov8(), props=ULTRALYTICS)
        Image.fromarray(stripes(240, 400)).save(folder / "street.png")
    if name == "map":
        from PIL import Image

        from tests.pipelines.networks import classifier, stripes

        classifier(folder / "model.onnx", props={"names": "['cat', 'dog', 'cow', 'hen', 'fox']"},
                   classes=5)  # fmt: skip
        (folder / "images").mkdir()
        for number in range(12):
            picture = Image.fromarray(stripes(60 + number, 90))
            picture.save(folder / "images" / f"{number:02d}.png")
        (folder / "images" / "broken.png").write_bytes(b"no image")
    if name == "chat":
        from tests.llm.test_described import _spoken

        _spoken(folder / "model.gguf")


def _write_digits(folder: Path) -> None:
    """Write pictures of digits, in a folder for each."""
    import numpy as np
    from PIL import Image

    data = np.load(ROOT / "examples" / "digits" / "digits_test.npz")
    for number, (pixels, label) in enumerate(zip(data["images"], data["labels"], strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9375).astype(np.uint8)).save(place / f"{number}.png")


def run(name: str, folder: Path) -> list[tuple[str, Console]]:
    """Run a tutorial's Python, and its commands of vkmnn, in a folder; return what these print."""
    prepare(name, folder)
    names: dict[str, object] = {}
    printed: list[tuple[str, Console]] = []
    text = (PAGES / f"{name}.md").read_text("utf-8")
    with working_in(folder):
        for kind, block in _BLOCK.findall(text):
            if kind == "python":
                exec(compile(block, name, "exec"), names)  # noqa: S102 - the page is ours
                continue
            lines = (line.partition("  #")[0] for line in block.splitlines())
            printed += [(line, command(line)) for line in lines if line.startswith("vkmnn ")]
    return printed


def command(line: str) -> Console:
    """Run a line of the shell in this process, and return the console that recorded it.

    Raises:
        AssertionError: its exit status is not 0.
    """
    from vkmnn.cli import console
    from vkmnn.cli.app import run_cli

    nowhere, printed = io.StringIO(), io.StringIO()
    # Their file is the present sys.stdout unless one was set; `file` does not tell which.
    before = [(one, one._file, one._width) for one in (console.out, console.err)]
    for one, _, _ in before:
        one.record, one.file, one.width = True, nowhere, WIDTH
    try:
        with contextlib.redirect_stdout(printed):  # text that streams goes there
            assert run_cli(shlex.split(line)[1:]) == 0, line
    finally:
        texts = [one.export_text(styles=True) for one, _, _ in before]
        for one, one._file, one._width in before:
            one.record = False
    text = "\n".join(part.strip("\n") for part in (printed.getvalue(), *texts) if part.strip())
    recorded = Console(record=True, width=WIDTH, file=nowhere)
    recorded.print(Text.assemble(("$ ", "bold green"), line))
    recorded.print(Text.from_ansi(text))
    return recorded


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Make a folder the working one."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def draw(name: str) -> None:
    """Renew the picture of a tutorial: its last command, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        printed = run(name, Path(folder))
    text = (PAGES / f"{name}.md").read_text("utf-8")
    picture = PICTURES / f"{name}.svg"
    if f"images/tutorials/{picture.name}" not in text:
        return
    before = text.partition(f"images/tutorials/{picture.name}")[0]
    line = [line for line in before.splitlines() if line.startswith("vkmnn ")][-1]
    console = next(console for shown, console in printed if shown == line.partition("  #")[0])
    PICTURES.mkdir(exist_ok=True)
    console.save_svg(str(picture), title="vkmnn", theme=DIMMED_MONOKAI, code_format=_FORMAT)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        draw(chosen)
