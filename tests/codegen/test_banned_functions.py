"""Templates avoid functions that GLSL or a driver may compute in several ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vkmnn.codegen.places import BUILTIN_FOLDER

# By function: the replacement (vkmnn/codegen/README.md, "Functions that templates avoid").
BANNED = {
    "pow": "exp32(b * log32(a)), or products",
    "mod": "is_odd(x), or integers",
    "isnan": "is_nan(x)",
    "isinf": "is_inf(x)",
    "inversesqrt": "1.0 / sqrt(x)",
    "sign": "differences of comparisons",
    "round": "round_even(x)",
    "roundEven": "round_even(x), or round_code(x) of a vec4 within bounds",
    "smoothstep": "a polynomial",
    "packHalf2x16": "tensors with storage half",
    "unpackHalf2x16": "tensors with storage half",
    "findMSB": "floatBitsToUint(float(x)) >> 23",
    **{f"{name}2": f"{name}32(x)" for name in ("exp", "log")},
    **{
        name: f"{name}32(x)"
        for name in (
            *("sin", "cos", "tan", "asin", "acos", "atan"),
            *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        )
    },
}
# Good enough where each argument is known to be small, and faster.
ONLY_IN = {"exp": "activation.glsl.j2", "log": "activation.glsl.j2"}
# What was loaded as float16 packs without rounding.
_PAIRS = frozenset({"packHalf2x16", "unpackHalf2x16"})
ALLOWED = {
    # What is rounded there before, too. exp2 is good to 2^-18 for arguments down to -26.
    "attention_coop.comp.j2": _PAIRS | {"exp2"},
    "attention_tile.comp.j2": _PAIRS,
    "code_weights.glsl.j2": {"unpackHalf2x16"},  # weights of experts in float16
    "codes_direct.glsl.j2": {"unpackHalf2x16"},  # likewise
    "codes.glsl.j2": {"unpackHalf2x16"},  # scales and zero points of packed weights
    "codes_rows.glsl.j2": {"unpackHalf2x16"},
    "limbs.glsl.j2": _PAIRS,  # the low limb holds what rounding the high one leaves
    "moments.glsl.j2": _PAIRS,
    "packed_rows.glsl.j2": _PAIRS,  # likewise
    "plain.glsl.j2": _PAIRS,  # what is rounded there before
}
TEMPLATES = sorted(BUILTIN_FOLDER.rglob("*.j2"))
_COMMENT = re.compile(r"\{#.*?#\}|//[^\n]*", re.DOTALL)
_CALL = re.compile(r"\b([A-Za-z_]\w*)\(")
_UNEQUAL_TO_ITSELF = re.compile(r"([\w.\[\]]+) != \1(?![\w.\[])")


def found(text: str, name: str) -> list[str]:
    """Return the expressions that a template must not contain."""
    text = _COMMENT.sub("", text)
    calls = sorted(set(_CALL.findall(text)) - ALLOWED.get(name, set()))
    wrong = [f"{call}(…): write {BANNED[call]}" for call in calls if call in BANNED]
    wrong += [f"{call}(…): write {call}32(x)" for call in calls if ONLY_IN.get(call, name) != name]
    wrong += [f"{m[0]}: write is_nan({m[1]})" for m in _UNEQUAL_TO_ITSELF.finditer(text)]
    return wrong


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_leave_alone_what_is_not_defined(path: Path) -> None:
    assert found(path.read_text(encoding="utf-8"), path.name) == []


@pytest.mark.parametrize(
    "line",
    ["y = pow(a, b);", "y = a * exp(b);", "if (v != v)", "if (x[0] != x[0])", "isnan(x) ? 1 : 0"],
)
def test_what_is_not_defined_is_found(line: str) -> None:
    assert len(found(line, "unary.comp.j2")) == 1


@pytest.mark.parametrize(
    "line", ["exp32(x)", "{# pow(x) #}", "a; // pow(x)", "v != v.x", "x != xs"]
)
def test_what_is_defined_is_not_found(line: str) -> None:
    assert found(line, "unary.comp.j2") == []
