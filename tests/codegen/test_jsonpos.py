from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkmnn.codegen.jsonpos import parse
from vkmnn.errors import ShaderError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(VALUES, st.sampled_from([None, 2]))
def test_reads_what_json_writes(value: object, indent: int | None) -> None:
    assert parse(json.dumps(value, indent=indent), "x.json").plain() == value


def test_knows_lines() -> None:
    node = parse('{\n  "a": [\n    1,\n    {"b": true}\n  ]\n}', "x.json")
    assert isinstance(node.value, dict)
    a = node.value["a"]
    assert isinstance(a.value, tuple)
    assert [a.line, *(item.line for item in a.value)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('{\n "a": 1,\n "a": 2\n}', 3, "duplicate key 'a' (first on line 2)"),
        ('{\n "a": 1\n "b": 2}', 3, "expected '}'"),
        ('{\n "a": ,\n}', 2, "expected a value"),
        ("[1, 2", 1, "ends early"),
        ("{}\n\n{}", 3, "text after the end"),
        ('["a\n"]', 1, "Invalid control character"),
        ("[nul]", 1, "expected a value"),
    ],
)
def test_mistakes_have_a_place(text: str, line: int, message: str) -> None:
    with pytest.raises(ShaderError) as caught:
        parse(text, "macro.json")
    assert caught.value.line == line
    assert str(caught.value).startswith(f"macro.json:{line}: ")
    assert message in str(caught.value)
