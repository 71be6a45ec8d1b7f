"""Jobs in parts: a kill at any point loses nothing and repeats nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkmnn.batch.flow import Failed
from vkmnn.batch.items import Item
from vkmnn.batch.job import Job, error_file, parts_folder
from vkmnn.batch.outputs import Row
from vkmnn.errors import InvalidInputError, MissingExtraError

ROOT = Path(__file__).resolve().parents[2]
COUNT = 23


def items(count: int = COUNT) -> list[Item]:
    return [Item(f"i{number}", b"", "", f"i{number}") for number in range(count)]


def advance(job: Job, count: int = COUNT) -> None:
    """Add the items that are not done; every fifth fails."""
    for number, item in enumerate(items(count)):
        if item.key in job.done:
            continue
        row = Row(item.name, item.key, {"y": np.full(2, number, np.float32)})
        job.add(item, Failed(item, ValueError("bad")) if number % 5 == 4 else row)


def names(target: Path) -> Counter[str]:
    """Return the inputs of the output and of the error file."""
    if target.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        found = parquet.read_table(target).column("input").to_pylist()
    elif target.suffix:
        found = [json.loads(line)["input"] for line in target.read_text("utf-8").splitlines()]
    else:
        found = [path.stem for path in target.rglob("*.npz")]
    errors = error_file(target).read_text("utf-8").splitlines()
    return Counter([*found, *(json.loads(line)["input"] for line in errors)])


EVERY_ONE = Counter({f"i{number}": 1 for number in range(COUNT)})

KILLED = """
import os, sys
from pathlib import Path
from tests.batch.test_job import advance
from vkmnn.batch.job import Job

real, calls, runs = os.fsync, 0, 0
def fsync(handle):
    global calls
    calls += 1
    if calls == at:
        if torn:  # what was being written is lost in part
            os.truncate(handle, os.fstat(handle).st_size * 2 // 3)
        os._exit(9)
    real(handle)
os.fsync = fsync
for at in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 30, 99]:
    torn = at % 2 and at not in (1, 99)
    pid = os.fork()
    if not pid:
        job = Job(Path(sys.argv[1]), {"model": "m"}, resume=True, part=4)
        advance(job)
        job.commit()
        job.finish()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    runs += 1
    if not status:
        break
print(runs, status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ""])
def test_kills_at_every_flush(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    call = [sys.executable, "-c", KILLED, str(target)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    runs, status = map(int, done.stdout.split())
    assert status == 0, done.stderr
    assert runs > 6  # it was killed before
    assert names(target) == EVERY_ONE
    assert not parts_folder(target).exists()


def begun(tmp_path: Path) -> Path:
    """Return the output of a job that was left after some parts."""
    target = tmp_path / "out.jsonl"
    job = Job(target, {"model": "m"}, part=4)
    advance(job, 14)
    job.close()
    return target


def resumed(target: Path) -> Counter[str]:
    job = Job(target, {"model": "m"}, resume=True, part=4)
    advance(job)
    job.commit()
    job.finish()
    return names(target)


def test_a_torn_line_is_repaired(tmp_path: Path) -> None:
    folder = parts_folder(begun(tmp_path))
    whole = (folder / "journal.jsonl").read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for number, cut in enumerate([last, last + 1, (last + len(whole)) // 2, len(whole) - 1]):
        other = tmp_path / f"n{number}.jsonl"
        shutil.copytree(folder, parts_folder(other))
        (parts_folder(other) / "journal.jsonl").write_bytes(whole[:cut])
        assert resumed(other) == EVERY_ONE


@pytest.mark.parametrize("damage", ["shorter", "missing", "foreign"])
def test_a_torn_part_is_repaired(tmp_path: Path, damage: str) -> None:
    target = begun(tmp_path)
    part = parts_folder(target) / "part-000001.jsonl"
    if damage == "shorter":
        os.truncate(part, 10)
    elif damage == "missing":
        part.unlink()
    else:
        (part.parent / "part-000003.jsonl").write_text("torn")
        (part.parent / ".part-000003.jsonl.01ab").write_text("torn")
    assert resumed(target) == EVERY_ONE


def test_damage_elsewhere_is_reported(tmp_path: Path) -> None:
    target = begun(tmp_path)
    path = parts_folder(target) / "journal.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"{", *lines[2:]]))
    with pytest.raises(InvalidInputError, match="damaged in line 2"):
        Job(target, {"model": "m"}, resume=True)


def test_jobs_are_not_mixed(tmp_path: Path) -> None:
    target = begun(tmp_path)
    with pytest.raises(InvalidInputError, match="interrupted"):
        Job(target, {"model": "m"})
    with pytest.raises(InvalidInputError, match="its model is 'm', not 'n'"):
        Job(target, {"model": "n"}, resume=True)
    running = Job(target, {"model": "m"}, resume=True)
    for resume in (True, False):
        with pytest.raises(InvalidInputError, match="another process"):
            Job(target, {"model": "m"}, resume=resume)
    running.close()
    assert resumed(target) == EVERY_ONE


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_unknown_outputs(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InvalidInputError, match="not written as"):
        Job(tmp_path / f"out{suffix}", {})
    with pytest.raises(InvalidInputError, match="does not exist"):
        Job(tmp_path / "nowhere" / "out.jsonl", {})


def odd_rows() -> list[Row]:
    return [
        Row("a", "a", {"x": np.array([[1, np.nan]], np.float32), "input": np.array(3)}),
        Row("b", "b", {"x": np.zeros((2, 0), np.float32), "input": np.array(4)}),
        Row("c", "../c", {"x": np.ones((1, 1), np.float16), "s": np.array(["é", "z"])}),
    ]


def write(target: Path) -> None:
    job = Job(target, {}, part=2)
    for row in odd_rows():
        job.add(Item(row.name, b"", "", row.key), row)
    job.commit()
    job.finish()


def test_arrays_in_json(tmp_path: Path) -> None:
    write(tmp_path / "o.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text("utf-8").splitlines()]
    assert [one["outputs"]["x"] for one in lines] == [[[1, None]], [[], []], [[1]]]
    assert lines[2]["outputs"]["s"] == ["é", "z"]


def test_arrays_in_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write(tmp_path / "o.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    assert [one["input"] for one in rows] == ["a", "b", "c"]
    assert [one["x.shape"] for one in rows] == [[1, 2], [2, 0], [1, 1]]
    assert [one["x"][:1] for one in rows] == [[1], [], [1]]
    assert [one["output.input"] for one in rows] == [[3], [4], None]
    assert [one["s"] for one in rows] == [None, None, ["é", "z"]]


def test_arrays_that_fit_no_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    job = Job(tmp_path / "o.parquet", {}, part=1)
    for key, array in (("a", np.zeros(1, np.float32)), ("b", np.array(["text"]))):
        job.add(Item(key, b"", "", key), Row(key, key, {"x": array}))
    with pytest.raises(InvalidInputError, match="do not fit one table"):
        job.finish()
    job.close()
    assert len(list(parts_folder(tmp_path / "o.parquet").glob("part-*.parquet"))) == 2


def test_parquet_takes_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pyarrow") as caught:
        Job(tmp_path / "o.parquet", {})
    assert "vkmnn[map]" in str(caught.value)
    write(tmp_path / "o.jsonl")  # others do without


def test_arrays_in_files(tmp_path: Path) -> None:
    write(tmp_path / "o")
    with np.load(tmp_path / "o" / "_up" / "c.npz") as made:
        assert made["x"].dtype == np.float16
        assert made["s"].tolist() == ["é", "z"]
    assert sorted(path.name for path in (tmp_path / "o").rglob("*.npz")) == [
        "a.npz", "b.npz", "c.npz",
    ]  # fmt: skip
