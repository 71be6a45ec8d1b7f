"""The rendered GLSL of some real shaders, one of each large family, stored verbatim.

A change of a template, an include or the renderer shows as a readable diff here. When it is meant:

    python -m tests.codegen.test_golden
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the extra 'codegen' is not installed")

from vkmnn.codegen.places import BUILTIN_FOLDER
from vkmnn.codegen.render import Renderer
from vkmnn.codegen.variants import expand, load_entries

GOLDEN = Path(__file__).parent / "golden" / "shaders"
NAMES = {
    "copy": "copy_buffer",  # the least
    "cast": "cast_f32_f16_buffer",  # packed halves
    "binary": "binary_map_4_f32_texel",  # the largest family; texel buffers, broadcasting
    "unary": "unary_map_f32_buffer",  # the second; functions of our own
    "reduce_rows": "reduce_rows_8_f32",  # subgroups
    "softmax_columns": "softmax_columns_4_f32_buffer",  # the widest loads
    "conv_tile": "conv_tile_pixels_4_1_f32_texel",  # unrolled by Jinja
}


def rendered(name: str, template: str) -> str:
    entries = load_entries(BUILTIN_FOLDER, frozenset([template]))
    (variant,) = (variant for variant in expand(entries) if variant.name == name)
    return Renderer(BUILTIN_FOLDER).render(variant).text


@pytest.mark.parametrize("template", NAMES)
def test_golden(template: str) -> None:
    name = NAMES[template]
    path = GOLDEN / f"{name}.comp"
    kept = path.read_text(encoding="utf-8").splitlines(keepends=True)
    now = rendered(name, template).splitlines(keepends=True)
    diff = "".join(difflib.unified_diff(kept, now, f"golden/{path.name}", "rendered now"))
    assert not diff, f"if it is meant: python -m tests.codegen.test_golden\n{diff}"


def test_nothing_else_is_kept() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(NAMES.values())


def update() -> None:
    """Write the files again."""
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.iterdir():
        path.unlink()
    for template, name in NAMES.items():
        path = GOLDEN / f"{name}.comp"
        path.write_text(rendered(name, template), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    update()
