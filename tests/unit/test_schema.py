"""FlatBuffers by schema: what the schema language refuses, and unions that are written."""

from __future__ import annotations

import pytest

from vkmnn.errors import PluginError
from vkmnn.schema import Buffer, write
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
    ],
)
def test_what_is_not_understood_is_refused(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(PluginError):
        parse_schema(TEXT.replace(old, new))


@pytest.mark.parametrize("name", ["mnn", "vkmnn"])
def test_schemas(name: str) -> None:
    assert load_schema(name).root
