"""Sizes of tiles stand in one place: templates unroll what kernels are ranked by."""

from __future__ import annotations

import pytest

from vkmnn.codegen.declare import Declarations
from vkmnn.errors import ShaderError
from vkmnn.shader_files.tiles import DotTile, SharedTile, parse_coop
from vkmnn.shaders.library import BUILTIN
from vkmnn.vulkan.gemm.coop_tiles import BYTE_TILES_OF, TILES_OF
from vkmnn.vulkan.gemm.shared_tiles import HALF_NARROW, HALF_TILES, NARROW, TILES

STAGED = ("conv_shared", "conv_half", "matmul_shared", "matmul_half", "matmul_dot")
COOP = ("conv_coop", "conv_codes_coop", "matmul_coop", "matmul_codes_coop")


@pytest.mark.parametrize("template", [*STAGED, *COOP, "conv_dot"])
def test_workgroups_have_as_many_invocations_as_the_tile_says(template: str) -> None:
    seen = 0
    for name, own, axes in BUILTIN.variants():
        if own != template:
            continue
        tile = str(axes["tile"])
        if template in COOP:
            size = parse_coop(tile, int(axes["step"]), 1 if "codes" in template else 2).invocations
        else:
            kind = DotTile if template == "conv_dot" else SharedTile
            size = kind.parse(tile).invocations
        assert BUILTIN.load(name).local_size == (size, 1, 1), name
        seen += 1
    assert seen


def test_names_of_tiles_are_read_back() -> None:
    for tile in (*TILES, *NARROW, *HALF_TILES, *HALF_NARROW):
        assert type(tile).parse(tile.name) == tile
    for tables in (TILES_OF, BYTE_TILES_OF):
        for sizes in tables.values():
            for coop in (one for row in sizes for one in row):
                read = parse_coop(coop.name, coop.step, coop.matrix.element_bytes)
                assert (read.label, read.buffers, read.stage_bytes, read.sum_row) == (
                    *(coop.name, coop.buffers, coop.stage_bytes, coop.sum_row),
                )


@pytest.mark.parametrize("tile", ["wide", "64", "64x64x1x1"])
def test_templates_are_told_of_tiles_that_are_none(tile: str) -> None:
    declared = Declarations(lambda: ("t.comp.j2", 3))
    for helper in (declared.do_shared_tile, lambda text: declared.do_coop_tile(text, 64, 2)):
        with pytest.raises(ShaderError, match=f"'{tile}' names no tile of this kind") as caught:
            helper(tile)
        assert (caught.value.template, caught.value.line) == ("t.comp.j2", 3)
