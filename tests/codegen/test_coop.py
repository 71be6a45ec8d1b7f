"""Kernels for cooperative matrices avoid constructs that drivers are known to compile badly."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from vkmnn.shaders.library import BUILTIN
from vkmnn.vulkan.attention.kernels import COOP_KEYS, AttentionCoop
from vkmnn.vulkan.gemm.coop_tiles import (
    BYTE_TILES_OF,
    FRAGMENT_TILES,
    LARGE_TILES,
    LIMB_TILES_OF,
    TILES_OF,
    CoopTile,
    Matrix,
    product_tiles,
)
from vkmnn.vulkan.gemm.families.codes_coop import MAX_ROWS
from vkmnn.vulkan.gemm.families.halo import HALO_TILES

NAMES = [
    name for name, _, _ in BUILTIN.variants() if "cooperative_matrix" in BUILTIN.load(name).requires
]
ALL_TILES = [
    *(tile for matrix in TILES_OF for tile in product_tiles(matrix)),
    *(tile for same in FRAGMENT_TILES.values() for tile in same),
    *(tile for sizes in LIMB_TILES_OF.values() for same in sizes for tile in same),
]
HALO = [tile for same in HALO_TILES.values() for tile in same]
BYTE_TILES = [tile for sizes in BYTE_TILES_OF.values() for same in sizes for tile in same]
_TYPE_INT, _TYPE_FLOAT, _TYPE_VECTOR, _TYPE_ARRAY, _TYPE_RUNTIME_ARRAY = 21, 22, 23, 28, 29
_TYPE_STRUCT, _TYPE_POINTER, _CONSTANT, _VARIABLE = 30, 32, 43, 59
_TYPE_COOPERATIVE_MATRIX = 4456
_WORKGROUP = 4


def instructions(name: str) -> Iterator[tuple[int, list[int]]]:
    """Yield (opcode, operands) of a variant's module."""
    spirv = BUILTIN.load(name).spirv()
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    at = 5
    while at < len(words):
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        yield opcode, list(words[at + 1 : at + count])
        at += count


def test_there_are_kernels() -> None:
    assert {name.split("_")[0] for name in NAMES} == {"matmul", "conv", "attention"}


@pytest.mark.parametrize("name", NAMES)
def test_fragments_are_variables(name: str) -> None:
    """Arrays of them are in memory on NVIDIA: an eighth of the speed."""
    matrices: set[int] = set()
    for opcode, operands in instructions(name):
        if opcode == _TYPE_COOPERATIVE_MATRIX:
            matrices.add(operands[0])
        if opcode in (_TYPE_ARRAY, _TYPE_RUNTIME_ARRAY):
            assert operands[1] not in matrices
        if opcode == _TYPE_STRUCT:
            assert not matrices.intersection(operands[1:])
    assert len(matrices) == 3


def shared_bytes(name: str) -> int:
    """Return a variant's declarations of shared memory."""
    sizes: dict[int, int] = {}
    constants: dict[int, int] = {}
    shared = 0
    for opcode, operands in instructions(name):
        if opcode in (_TYPE_INT, _TYPE_FLOAT):
            sizes[operands[0]] = operands[1] // 8
        if opcode == _CONSTANT:
            constants[operands[1]] = operands[2]
        if opcode == _TYPE_VECTOR and operands[1] in sizes:
            sizes[operands[0]] = sizes[operands[1]] * operands[2]
        if opcode == _TYPE_ARRAY and operands[1] in sizes and operands[2] in constants:
            sizes[operands[0]] = sizes[operands[1]] * constants[operands[2]]
        if opcode == _TYPE_POINTER and operands[1] == _WORKGROUP:
            sizes[operands[0]] = sizes[operands[2]]
        if opcode == _VARIABLE and operands[2] == _WORKGROUP:
            shared += sizes[operands[0]]
    return shared


def is_run(name: str, invocations: int, matrix: Matrix) -> bool:
    """Return whether a variant has workgroups and subgroups of these sizes."""
    variant = BUILTIN.load(name)
    return (variant.local_size, variant.subgroup_size) == ((invocations, 1, 1), matrix.subgroup)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("attention")])
def test_shared_memory_of_products_is_what_the_rules_think(name: str) -> None:
    if name.startswith("conv_halo_coop"):
        _, _, _, tile_name, _ = name.split("_")
        (halo,) = (one for one in HALO if one.name == tile_name)
        shared = shared_bytes(name)
        assert shared <= halo.shared_bytes <= min(shared + 16, halo.max_shared)
        assert is_run(name, halo.invocations, halo.matrix)
        return
    of_bytes = "_codes_" in name
    family, _, tile_name, step, *more = name.replace("_codes_", "_").split("_")
    tiles = BYTE_TILES if of_bytes else ALL_TILES
    (tile,) = (tile for tile in tiles if (tile.name, tile.step) == (tile_name, int(step)))
    normed = family == "matmul" and not of_bytes and more[0] == "0"  # K is not shared
    norms = tile.norm_bytes if normed else 0
    shared = shared_bytes(name)
    assert shared <= tile.shared_bytes + norms <= min(shared + 16, tile.max_shared)
    assert is_run(name, tile.invocations, tile.matrix)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("attention")])
def test_shared_memory_of_attention_is_what_the_rules_think(name: str) -> None:
    _, _, matrix_name, number, _ = name.split("_")
    (matrix,) = (matrix for matrix in TILES_OF if matrix.name == matrix_name)
    (keys,) = (keys for keys in COOP_KEYS if keys == int(number))
    kernel = AttentionCoop(matrix, keys)
    assert shared_bytes(name) == kernel.shared
    assert is_run(name, 128 * kernel.groups, matrix)


def _templates_of(tile: CoopTile) -> tuple[str, ...]:
    products_alone = tile in LARGE_TILES or tile.fragments
    return ("matmul",) if products_alone else ("matmul", "conv")


def test_every_tile_has_kernels() -> None:
    for tile in ALL_TILES:
        for template in _templates_of(tile):
            wanted = f"{template}_coop_{tile.name}_{tile.step}"
            splits = {name.split("_")[4] for name in NAMES if name.startswith(f"{wanted}_")}
            assert splits == ({"0", "1"} if tile.splits else {"0"})
    for tile in HALO:
        splits = {
            name.split("_")[4] for name in NAMES if name.startswith(f"conv_halo_coop_{tile.name}_")
        }
        assert splits == ({"0", "1"} if tile.splits else {"0"})
    for tile in BYTE_TILES:
        assert f"conv_codes_coop_{tile.name}_{tile.step}" in NAMES
        if tile.rows <= MAX_ROWS:
            assert f"matmul_codes_coop_{tile.name}_{tile.step}_4" in NAMES
