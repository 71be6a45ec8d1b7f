"""`vkmnn map`: inputs of all kinds, outputs, items that fail, and a process that is killed."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.cli.conftest import Cli
from tests.faces.conftest import dense_model
from tests.pipelines.networks import classifier, stripes
from tests.pipelines.test_ocr import letters
from tests.pipelines.test_pixels import enlarger
from vkmnn.batch import items as batch_items
from vkmnn.batch.growing import growing
from vkmnn.batch.items import counted, expanded, items_of
from vkmnn.batch.job import error_file, parts_folder
from vkmnn.batch.stacking import Stacking
from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.base import PicturePipeline

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a classifier, a dense network and pictures, two of which are damaged."""
    monkeypatch.chdir(tmp_path)
    classifier(tmp_path / "m.onnx")
    onnx.save(dense_model(), tmp_path / "dense.onnx")
    (tmp_path / "in" / "b").mkdir(parents=True)
    for number in range(12):
        image = Image.fromarray(stripes(34 + number % 3, 40))
        image.save(tmp_path / "in" / ("b" if number > 6 else "") / f"{number:02}.png")
    (tmp_path / "in" / "03.png").write_bytes(b"no picture")
    whole = (tmp_path / "in" / "04.png").read_bytes()
    (tmp_path / "in" / "04.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(stripes(32, 32 + number)).save(file, "png")
    return file.getvalue()


def shard(path: Path, names: list[str]) -> Path:
    """Save a tar archive as WebDataset has them."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for number, name in enumerate(names):
            data = b"{}" if name.endswith(".json") else png(number)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_pictures_in_order(cli: Cli, here: Path) -> None:
    one = cli("run", "m.onnx", "-i", "in/05.png", "-d", "cpu", "--json")
    want = json.loads(one.out)["results"][0]["result"]
    made = cli("map", "m.onnx", "in/**/*.png", "-o", "o.jsonl", "--devices", "cpu", "--batch", 4)
    assert made.status == 0
    assert "saved 10 results in o.jsonl" in made.out
    assert "2 items failed: o.jsonl.errors.jsonl" in made.err
    found = lines(here / "o.jsonl")
    every = sorted(str(path.relative_to(here)) for path in (here / "in").rglob("*.png"))
    assert [row["input"] for row in found] == [
        name for name in every if name not in ("in/03.png", "in/04.png")
    ]
    got = {row["input"]: row["result"] for row in found}["in/05.png"]
    assert [row["label"] for row in got] == [row["label"] for row in want]
    np.testing.assert_allclose([r["score"] for r in got], [r["score"] for r in want], atol=1e-5)
    errors = lines(here / "o.jsonl.errors.jsonl")
    assert [row["input"] for row in errors] == ["in/03.png", "in/04.png"]
    assert all(row["error"] == "InvalidInputError" and row["hint"] for row in errors)
    assert errors[0]["reason"] == "'in/03.png' cannot be read as an image: its format is not known"


def test_pictures_share_runs(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails is repeated picture by picture, which would hide a defect."""
    counts: list[int] = []
    real = PicturePipeline.together
    monkeypatch.setattr(
        PicturePipeline, "together", lambda pipe, some: counts.append(len(some)) or real(pipe, some)
    )
    shard(here / "a.tar", [f"{number:02}.png" for number in range(36)])
    given = ("map", "m.onnx", "a.tar", "-o", "o.jsonl", "--devices", "cpu", "--batch", 16)
    assert cli(*given).status == 0
    assert counts == [16, 16, 4]


def test_the_default_number_of_items_in_a_run(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial finds it: an eighth of a short job, one by one where rows depend on each other."""
    counts: list[int] = []
    real = PicturePipeline.together
    monkeypatch.setattr(
        PicturePipeline, "together", lambda pipe, some: counts.append(len(some)) or real(pipe, some)
    )
    shard(here / "a.tar", [f"{number:02}.png" for number in range(36)])
    made = cli("map", "m.onnx", "a.tar", "-o", "o.jsonl", "--devices", "cpu")
    # A run that would otherwise wait for the next pictures takes fewer.
    assert (max(counts), sum(counts)) == (4, 36)
    assert "up to 4 items share a run" in made.err
    assert len(lines(here / "o.jsonl")) == 36
    mixing = onnx.load(here / "m.onnx")
    (last,) = mixing.graph.output
    mixing.graph.node.append(onnx.helper.make_node("Softmax", [last.name], ["mixed"], axis=0))
    last.name = "mixed"
    onnx.save(mixing, here / "mixing.onnx")
    counts.clear()
    made = cli("map", "mixing.onnx", "a.tar", "-o", "p.jsonl", "--devices", "cpu")
    assert counts == [1] * 36
    classifier(here / "fixed.onnx", (3, 3, 32, 32))
    counts.clear()
    assert cli("map", "fixed.onnx", "a.tar", "-o", "q.jsonl", "--devices", "cpu").status == 0
    assert (max(counts), sum(counts)) == (3, 36)  # a fixed batch is filled
    assert "items run one by one: the results of an item depend" in made.err


def test_rows_of_arrays_share_runs_by_default(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "rows.jsonl").write_text('{"x": [1, 2, 3, 4]}\n' * 64)
    sizes: list[int] = []
    real = Stacking.joined
    monkeypatch.setattr(
        Stacking, "joined", lambda one, group: sizes.append(len(group)) or real(one, group)
    )
    assert cli("map", "dense.onnx", "rows.jsonl", "-o", "o.jsonl", "--devices", "cpu").status == 0
    assert sum(sizes) == 64
    assert max(sizes) == 8


def test_on_the_device_to_parquet_and_folders(cli: Cli, here: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    given = ("map", "m.onnx", "in", "--task", "embed", "--batch", 4, "--part", 3)
    assert cli(*given, "-o", "o.parquet", "--no-order").status == 0
    rows = parquet.read_table("o.parquet").to_pylist()
    assert len(rows) == 10
    assert cli(*given, "-o", "out").status == 0
    for row in rows:
        with np.load(here / "out" / f"{row['input']}.npz") as made:
            np.testing.assert_allclose(made["vector"], row["vector"], atol=1e-5)
    again = cli(*given, "-o", "o.parquet", "--resume")
    assert "'o.parquet' is complete" in again.err


def test_tasks_of_several_runs(cli: Cli, here: Path) -> None:
    """Networks that take more than one run per picture."""
    (here / "ocr").mkdir()
    letters(here / "ocr")
    given = ("in/00.png", "in/01.png", "--devices", "cpu", "--batch", 2)
    assert cli("map", "ocr", *given, "-o", "o.jsonl", "--task", "ocr").status == 0
    texts = [[line["text"].strip() for line in row["result"]] for row in lines(here / "o.jsonl")]
    assert texts == [["ab", "ab"]] * 2
    enlarger(here / "large.onnx")
    assert cli("map", "large.onnx", *given, "-o", "out", "--task", "upscale").status == 0
    with np.load(here / "out" / "in" / "00.png.npz") as made:
        assert made["pixels"].shape[0] > 34


def test_arrays(cli: Cli, here: Path) -> None:
    values = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    for number, row in enumerate(values):
        np.save(here / f"{number}.npy", row[None])
    np.save(here / "7.npy", np.zeros((1, 5), np.float32))
    (here / "8.npy").write_bytes(b"\x93NUMPY")
    done = cli("map", "dense.onnx", "?.npy", "-o", "o.jsonl", "--devices", "cpu", "--batch", 4)
    assert done.status == 0
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    got = np.array([row["outputs"]["y"][0] for row in lines(here / "o.jsonl")])
    np.testing.assert_allclose(got, values[:7] @ weights + 1, atol=1e-4)
    assert [row["input"] for row in lines(here / "o.jsonl.errors.jsonl")] == ["7.npy", "8.npy"]


def test_rows_of_json(cli: Cli, here: Path) -> None:
    rows = ['{"x": [1, 2, 3, 4]}', '{"x": [[1, 2, 3, 4]], "id": 7}', "", '{"x": ["a"]}', "{", "[3]",
            '{"a":' * 100_000]  # fmt: skip
    (here / "rows.jsonl").write_text("\n".join(rows))
    done = cli("map", "dense.onnx", "rows.jsonl", "-o", "o.jsonl", "--devices", "cpu")
    assert done.status == 0
    first, second = lines(here / "o.jsonl")
    assert first["outputs"]["y"] == second["outputs"]["y"][0]
    failed = lines(here / "o.jsonl.errors.jsonl")
    assert [row["input"] for row in failed] == ["rows.jsonl:4", "rows.jsonl:5", "rows.jsonl:6",
                                              "rows.jsonl:7"]  # fmt: skip
    assert failed[0]["reason"].startswith("input 'x' is no array")


def test_pictures_in_archives_lists_and_tables(cli: Cli, here: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    shard(here / "a.tar", ["0.png", "0.json", "1.png"])
    shard(here / "b.tar.gz", ["x/0.png"])
    (here / "list.txt").write_text("in/00.png\n\nin/none.png\nin/00.png\n")
    (here / "rows.jsonl").write_text('{"image": "in/01.png"}\n"in/02.png"\n')
    table = arrow.table({"image": [{"bytes": png(1), "path": "x"}, {"bytes": png(2), "path": "y"}]})
    parquet.write_table(table, here / "t.parquet")
    inputs = ["a.tar", "b.tar.gz", "@list.txt", "rows.jsonl", "t.parquet"]
    assert counted(expanded(inputs)) == 10
    assert cli("map", "m.onnx", *inputs, "-o", "o.jsonl", "--devices", "cpu").status == 0
    assert [row["input"] for row in lines(here / "o.jsonl")] == [
        *("a.tar/0.png", "a.tar/1.png", "b.tar.gz/x/0.png", "in/00.png", "in/00.png"),
        *("rows.jsonl:1", "rows.jsonl:2", "t.parquet:1", "t.parquet:2"),
    ]
    (failed,) = lines(here / "o.jsonl.errors.jsonl")
    assert failed["input"] == "in/none.png"
    assert "does not exist" in failed["reason"]


@pytest.mark.parametrize(
    ("name", "cut"),
    [("a.tar", 300), ("a.tar", 600), ("a.tar", 512 + 512 * -(-len(png(0)) // 512)),
     ("a.tar.gz", None), ("t.parquet", None)],
)  # fmt: skip
def test_damaged_archives_end_in_an_item_that_fails(here: Path, name: str, cut: int | None) -> None:
    path = here / name
    if name == "t.parquet":
        pytest.importorskip("pyarrow")
        path.write_bytes(b"PAR1" + b"x" * 100)
    else:
        whole = shard(path, ["0.png", "1.png", "2.png"]).read_bytes()
        path.write_bytes(whole[: cut if cut is not None else len(whole) // 2])
    found = list(items_of([name, "in/00.png"]))
    assert counted([name, "in/00.png"]) >= 2
    assert any(isinstance(one.value, InvalidInputError) for one in found)
    assert found[-1].name == "in/00.png"
    assert len({one.key for one in found}) == len(found)


def test_names_that_are_no_text(cli: Cli, here: Path) -> None:
    name = os.fsdecode(b"in/\xff.png")
    try:
        Path(name).write_bytes(png(0))
    except OSError:
        pytest.skip("the file system refuses the name")
    given = ("map", "m.onnx", name, "in/00.png", "--devices", "cpu", "-o")
    for output in ("o.jsonl", "out"):
        assert cli(*given, output).status == 0
    assert [row["input"] for row in lines(here / "o.jsonl")] == ["in/\\udcff.png", "in/00.png"]


def test_a_job_does_not_read_what_it_writes(cli: Cli, here: Path) -> None:
    (here / "in" / "metadata.jsonl").write_text("{}\n")  # as data sets of the hub have them
    for _ in range(2):
        result = cli("map", "m.onnx", "in", "-o", "in/out", "--devices", "cpu")
        assert "saved 10 results" in result.out
        result = cli("map", "m.onnx", "in/*.png", "in/*.jsonl", "-o", "in/o.jsonl", "--devices",
                     "cpu")  # fmt: skip
        assert "saved 5 results" in result.out  # of seven, two are damaged


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_nothing_in_a_folder_is_left_out_silently(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links to nowhere, pipes and folders without permission become items that fail."""
    folder = here / "odd"
    (folder / "closed").mkdir(parents=True)
    (folder / "link.png").symlink_to(here / "nowhere.png")
    os.mkfifo(folder / "pipe.png")
    os.mkfifo(folder / "pipe.npy")
    os.mkfifo(folder / "pipe.tar")
    (folder / "ok.png").write_bytes(png(0))
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        made = cli("map", "m.onnx", "odd", "-o", "o.jsonl", "--devices", "cpu", "--task", "embed")
    assert made.status == 0
    assert [row["input"] for row in lines(here / "o.jsonl")] == ["odd/ok.png"]
    failed = {row["input"]: row["reason"] for row in lines(error_file(here / "o.jsonl"))}
    assert sorted(failed) == [
        "odd/closed", "odd/link.png", "odd/pipe.npy", "odd/pipe.png", "odd/pipe.tar",
    ]  # fmt: skip
    assert "does not exist" in failed["odd/link.png"]
    assert all("0x" not in reason for reason in failed.values())
    assert expanded(["odd/*.png"]) == ["odd/link.png", "odd/ok.png", "odd/pipe.png"]


def test_an_input_is_not_overwritten(cli: Cli, here: Path) -> None:
    (here / "rows.jsonl").write_text('{"x": [1, 2, 3, 4]}\n')
    made = cli("map", "dense.onnx", "rows.jsonl", "in/00.png", "-o", "./rows.jsonl")
    assert made.status == 1
    assert "'rows.jsonl' is both an input and the output" in made.err
    assert (here / "rows.jsonl").read_text() == '{"x": [1, 2, 3, 4]}\n'


def test_a_disk_that_is_full(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends with an error, keeps what it has written, and continues later."""
    given = ("map", "m.onnx", "in", "--devices", "cpu", "--task", "embed", "--part", 3, "--resume")
    for target in ("o.jsonl", "o.parquet", "o"):
        real, calls = os.fsync, iter(range(100))

        def fsync(handle: int, real: Any = real, calls: Any = calls) -> None:
            if next(calls) > 5:
                raise OSError(28, "No space left on device")
            real(handle)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            full = cli(*given, "-o", target)
        assert full.status == 1
        assert "cannot be written" in full.err
        assert "No space left on device" in full.err
        assert "make room" in full.err
        assert cli(*given, "-o", target).status == 0
        assert len(lines(error_file(here / target))) == 2


def test_done_items_are_not_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard(here / "a.tar", ["0.png", "1.png", "2.png"])
    reads = []
    real = batch_items._read
    monkeypatch.setattr(batch_items, "_read", lambda *given: reads.append(given) or real(*given))
    found = list(items_of(["a.tar", "a.tar"], frozenset({"a.tar/0.png", "a.tar/1.png#2"})))
    assert [one.key for one in found] == [
        "a.tar/1.png", "a.tar/2.png", "a.tar/0.png#2", "a.tar/2.png#2",
    ]  # fmt: skip
    assert len(reads) == 4


@pytest.mark.parametrize(
    ("inputs", "more", "words"),
    [
        (["none"], [], "'none' does not exist"),
        (["*.none"], [], "stands for no file"),
        (["@none.txt"], [], "cannot be read"),
        (["in"], ["-o", "o.csv"], "not written as '.csv'"),
        (["in"], ["-o", "none/o.jsonl"], "the folder of"),
        (["in"], ["--devices", ""], "the list of devices is empty"),
        (["in"], ["--devices", "none"], "no device matches"),
        (["in"], ["--task", "none"], "no task 'none'"),
        (["in"], ["--set", "nope=1"], "no option 'nope'"),
    ],
)
def test_messages(
    cli: Cli,
    here: Path,
    inputs: list[str],
    more: list[str],
    words: str,
) -> None:
    result = cli("map", "m.onnx", *inputs, "-o", "o.jsonl", *more)
    assert result.status == 1
    assert words in result.err.replace("\n", " ")
    assert "hint: " in result.err
    assert not (here / "o.jsonl").exists()


def test_nothing_but_failures_is_a_failure(cli: Cli, here: Path) -> None:
    result = cli("map", "m.onnx", "in/03.png", "-o", "o.jsonl", "--devices", "cpu", "--json")
    assert result.status == 1
    assert json.loads(result.out)["failed"] == 1
    assert error_file(here / "o.jsonl").exists()


SLOW = """
import sys, time
from vkmnn.batch import lanes
from vkmnn.cli.app import run_cli
read = lanes.read_picture
def slowly(value):
    time.sleep(0.003)
    return read(value)
lanes.read_picture = slowly
sys.exit(run_cli(sys.argv[1:]))
"""


def test_kills_at_random(here: Path) -> None:
    """A process is killed several times, and resumed: every item is there once."""
    data = gzip.compress(b"")
    for number in range(120):
        path = here / "in" / f"n{number:03}.png"
        path.write_bytes(data if number % 6 == 5 else png(number % 3))
    given = ["map", "m.onnx", "in", "-o", "o.jsonl", "--devices", "cpu", "--batch", "4",
             "--part", "8", "--resume", "--task", "embed"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    journal = parts_folder(here / "o.jsonl") / "journal.jsonl"
    choose, kills, seen = random.Random(5), 0, 0
    for _ in range(20):
        child = subprocess.Popen(
            [sys.executable, "-c", SLOW, *given], cwd=here, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wanted = seen + choose.randint(3, 6)
        while child.poll() is None and kills < 3:
            with contextlib.suppress(FileNotFoundError):
                seen = len(journal.read_bytes().splitlines())
            if seen >= wanted:
                time.sleep(choose.random() / 50)
                child.kill()
                kills += 1
                break
            time.sleep(0.002)
        if child.wait(60) == 0:
            break
    assert kills >= 2
    names = Counter(row["input"] for row in lines(here / "o.jsonl"))
    failed = Counter(row["input"] for row in lines(error_file(here / "o.jsonl")))
    assert len(failed) == 22
    every = {str(path.relative_to(here)) for path in (here / "in").rglob("*.png")}
    assert names + failed == Counter(dict.fromkeys(every, 1))
    assert not parts_folder(here / "o.jsonl").exists()


def test_a_folder_that_grows(here: Path, cli: Cli) -> None:
    """Files that appear while the job waits."""
    folder = here / "later"
    folder.mkdir()

    def fill() -> None:
        for number in range(3):
            time.sleep(0.3)
            (here / "whole").write_bytes(png(number))
            (here / "whole").rename(folder / f"{number}.png")

    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(fill)
        given = ("map", "m.onnx", "later", "-o", "out.jsonl", "--devices", "cpu")
        assert cli(*given, "--watch", "5").status == 0
        filling.result()
    names = [Path(row["input"]).name for row in lines(here / "out.jsonl")]
    assert sorted(names) == ["0.png", "1.png", "2.png"]
    assert not error_file(here / "out.jsonl").exists()


def test_files_are_read_once_they_have_stopped_to_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, gone = tmp_path / "slow.npy", tmp_path / "gone.npy"
    gone.write_bytes(b"x")
    looks = iter([b"a", b"b", b"", b"", b""])

    def write(_: float) -> None:
        """Happen between two looks: a file grows twice, another vanishes at once."""
        gone.unlink(missing_ok=True)
        with slow.open("ab") as file:
            file.write(next(looks, b""))

    monkeypatch.setattr(time, "sleep", write)
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    rounds = growing(lambda: expanded([str(tmp_path)]), 3)
    assert next(rounds) == [str(slow)]
    assert slow.read_bytes() == b"ab"
    assert list(rounds) == []


def test_a_folder_that_stays_empty_ends_with_an_error(here: Path, cli: Cli) -> None:
    (here / "empty").mkdir()
    made = cli("map", "m.onnx", "empty", "-o", "out.jsonl", "--watch", "0.2")
    assert made.status == 1
    assert "hold no items" in made.err
