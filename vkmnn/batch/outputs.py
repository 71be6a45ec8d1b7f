"""Outputs of `vkmnn map` by suffix: Parquet, JSON lines, and folders of .npz files."""

from __future__ import annotations

import json
import math
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from vkmnn.base.extras import need
from vkmnn.base.records import dataclass
from vkmnn.base.whole_files import replacing
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.ir import Array

_RESERVED = ("input", "result")
_WIDER = {"float16": np.float32, "bfloat16": np.float32}
"""Element types that Parquet files have only in newer versions, and what they are written as."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The result of one item.

    Attributes:
        name: the item's.
        key: unique in the job.
        arrays: the outputs by name, or what a result of a task has as arrays.
        result: the result of a task as JSON; None for bare networks.
    """

    name: str
    key: str
    arrays: Mapping[str, Array]
    result: str | None = None

    @property
    def nbytes(self) -> int:
        """The memory that it takes, about."""
        held = sum(int(array.nbytes) for array in self.arrays.values())
        return held + len(self.name) + len(self.result or "") + 200


class Output(ABC):
    """A format: rows are written in parts, which are joined at the end."""

    suffix: ClassVar[str]

    def __init__(self, target: Path) -> None:
        self.target = target

    @abstractmethod
    def write(self, part: Path, rows: Sequence[Row]) -> None:
        """Write rows to a file that replaces `part` as a whole."""

    @abstractmethod
    def join(self, parts: Sequence[Path]) -> None:
        """Write the target from its parts, as a whole."""


class JsonLines(Output):
    """One JSON object per line; numbers that JSON does not have are null."""

    suffix = ".jsonl"

    def write(self, part: Path, rows: Sequence[Row]) -> None:
        """Write lines."""
        with replacing(part) as file:
            for row in rows:
                file.write((_line(row) + "\n").encode())

    def join(self, parts: Sequence[Path]) -> None:
        """Put the files one behind the other."""
        with replacing(self.target) as file:
            for part in parts:
                with part.open("rb") as stream:
                    shutil.copyfileobj(stream, file)


def _line(row: Row) -> str:
    name = json.dumps(row.name, ensure_ascii=False)
    if row.result is not None:
        return f'{{"input": {name}, "result": {row.result}}}'
    outputs = {one: finite(array.tolist()) for one, array in row.arrays.items()}
    text = json.dumps(outputs, ensure_ascii=False, allow_nan=False, default=str)
    return f'{{"input": {name}, "outputs": {text}}}'


def finite(value: Any) -> Any:
    """Return a value for JSON: numbers that are not finite become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value


class Parquet(Output):
    """Columns `input` and `result` (JSON); per array, lists of its elements and of its sizes."""

    suffix = ".parquet"

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self._arrow = need("pyarrow", "writing Parquet", "map")
        self._parquet = need("pyarrow.parquet", "writing Parquet", "map")

    def write(self, part: Path, rows: Sequence[Row]) -> None:
        """Write a file of one row group."""
        arrow = self._arrow
        columns: dict[str, Any] = {"input": arrow.array([row.name for row in rows], arrow.string())}
        if any(row.result is not None for row in rows):
            columns["result"] = arrow.array([row.result for row in rows], arrow.string())
        for name in dict.fromkeys(name for row in rows for name in row.arrays):
            arrays = [row.arrays.get(name) for row in rows]
            sizes = [None if one is None else list(one.shape) for one in arrays]
            title = f"output.{name}" if name in _RESERVED else name
            columns[title] = self._lists(arrays)
            columns[f"{title}.shape"] = arrow.array(sizes, arrow.list_(arrow.int64()))
        with replacing(part) as file:
            self._parquet.write_table(arrow.table(columns), file)

    def _lists(self, arrays: Sequence[Array | None]) -> Any:
        """Return a column of lists, without a detour through Python's numbers."""
        arrow = self._arrow
        held = [_flat(one) for one in arrays if one is not None]
        flat = [one for one in held if one.size] or held
        kind = arrow.string() if flat[0].dtype.kind in "OUS" else None
        values = arrow.array(np.concatenate(flat), kind)
        ends = np.cumsum([0, *(0 if one is None else one.size for one in arrays)])
        absent = np.array([*(one is None for one in arrays), False])
        offsets = arrow.array(ends, arrow.int64(), mask=absent)
        return arrow.LargeListArray.from_arrays(offsets, values)

    def join(self, parts: Sequence[Path]) -> None:
        """Write the parts as row groups; a column that a part lacks is null there."""
        arrow, parquet = self._arrow, self._parquet
        schemas = [parquet.read_schema(part) for part in parts]
        empty = arrow.schema([("input", arrow.string())])
        try:
            schema = arrow.unify_schemas(schemas) if schemas else empty
        except (ValueError, TypeError) as error:
            raise InvalidInputError(
                f"the results do not fit one table: {error}",
                hint=f"their parts are tables of their own: {parts[0].parent}",
            ) from error
        with replacing(self.target) as file, parquet.ParquetWriter(file, schema) as writer:
            for part in parts:
                table = parquet.read_table(part)
                for one in schema:
                    if one.name not in table.column_names:
                        nothing = arrow.nulls(table.num_rows, one.type)
                        table = table.append_column(one, nothing)
                writer.write_table(table.select(schema.names))


def _flat(array: Array) -> Array:
    wider = _WIDER.get(array.dtype.name)
    return (array if wider is None else array.astype(wider)).reshape(-1)


class Folder(Output):
    """One .npz file per item, named like it, under a folder."""

    suffix = ""

    def write(self, part: Path, rows: Sequence[Row]) -> None:
        """Write the files of rows; the part itself only lists them."""
        for row in rows:
            path = self.target / _inside(row.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays = dict(row.arrays)
            if row.result is not None:
                arrays["result"] = np.array(row.result)
            with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        with replacing(part) as file:
            file.write("".join(f"{row.key}\n" for row in rows).encode())

    def join(self, parts: Sequence[Path]) -> None:
        """Do nothing: the files are in place."""
        self.target.mkdir(parents=True, exist_ok=True)


def _inside(key: str) -> PurePosixPath:
    """Return the file for an item, inside of the folder whatever its name is."""
    words = [word for word in key.replace("\\", "/").replace(":", "/").split("/") if word != "."]
    safe = ["_up" if word == ".." else word for word in words if word]
    return PurePosixPath(*safe[:-1], f"{(safe or ['item'])[-1]}.npz")


OUTPUTS: Mapping[str, type[Output]] = {
    one.suffix: one for one in (Parquet, JsonLines, Folder)
}  # fmt: skip
"""The formats by the suffix of the output; folders have none."""


def output_of(target: Path) -> Output:
    """Return the format of an output.

    Raises:
        InvalidInputError: no format has that suffix, or its folder does not exist.
        MissingExtraError: pyarrow is not installed.
    """
    suffix = "" if target.is_dir() else target.suffix.lower()
    if suffix not in OUTPUTS:
        known = [one for one in OUTPUTS if one]
        raise InvalidInputError(
            f"results are not written as '{target.suffix}'",
            hint=f"{nearest(suffix, known, 'suffixes')}; or name a folder",
        )
    if not target.absolute().parent.is_dir():
        raise InvalidInputError(f"the folder of '{target}' does not exist", hint="create it first")
    return OUTPUTS[suffix](target)
