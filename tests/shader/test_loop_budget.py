"""No invocation may run more than 65,535 loop iterations, all its loops together.

Mesa's llvmpipe (22.3) ends every loop there, silently: results would be wrong without a message.
The SPIR-V does not tell how often a loop runs, so this is a rule with a table: a template whose
modules contain a loop names what keeps the loop short. Adding a loop requires an entry here.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from vkmnn.shaders.library import BUILTIN

ROOT = Path(__file__).resolve().parents[2]
T = "tests/op/vulkan/test_"
CASES = "vkmnn_suite/cases"
EXECUTIONS = "vkmnn/vulkan/executions"
_OP_LOOP_MERGE = 246

# template -> the test or the cases that go beyond the limit ("file::test"), the constant of the
# execution that refuses or splits such sizes ("file:NAME"), or why the number is small for all
# shapes.
SHORT_BECAUSE = {
    "append_packed": f"{EXECUTIONS}/append.py:MAX_PACKED_DEPTH",
    "arg_reduce": f"{CASES}/along_axis.py::arg_reductions",
    "attention_codes": f"{EXECUTIONS}/attention.py:MAX_CODED_KEYS",
    "attention_coop": f"{T}attention.py::test_more_keys_than_loops_can_count",
    "attention_rotate": f"{T}attention.py::test_more_keys_than_loops_can_count",
    "attention_tile": f"{T}attention.py::test_more_keys_than_loops_can_count",
    "sample_token": f"{EXECUTIONS}/sample_token.py:MOST_PASSES",
    "binary": "one iteration per bit of an exponent",
    "cached_attention": f"{EXECUTIONS}/cached_attention.py:MAX_LOOP_ROUNDS",
    "cached_attention_subgroup": f"{EXECUTIONS}/cached_attention.py:MAX_LOOP_ROUNDS",
    "cached_attention_wide": f"{EXECUTIONS}/cached_attention.py:MAX_LOOP_ROUNDS",
    "conv_codes_coop": "vkmnn/vulkan/gemm/families/codes_coop.py:MAX_K",
    "conv_coop": "vkmnn/vulkan/gemm/families/coop.py:MAX_TAP_PAIRS",
    "conv_depthwise": f"{CASES}/convolution_shapes.py::convolution_long_windows",
    "conv_dot": "vkmnn/vulkan/gemm/families/dot.py:MAX_K",
    "conv_gather": f"{CASES}/convolution_shapes.py::convolution_long_windows",
    "conv_rotate": f"{T}convolution.py::test_split_covers_every_tap_once",
    "conv_row": "vkmnn/vulkan/gemm/families/row.py:MAX_LOOP_ROUNDS",
    "conv_separable": "vkmnn/vulkan/gemm/separable.py:MAX_LOOP_ROUNDS",
    "conv_halo_coop": "vkmnn/vulkan/gemm/families/halo.py:MAX_STEPS",
    "conv_half": "vkmnn/vulkan/gemm/shared_tiles.py:MAX_LOOP_ROUNDS",
    "conv_shared": "vkmnn/vulkan/gemm/shared_tiles.py:MAX_LOOP_ROUNDS",
    "conv_tile": f"{T}convolution.py::test_split_covers_every_tap_once",
    "cum_sum": f"{CASES}/along_axis.py::cumulative_sums",
    "det": f"{EXECUTIONS}/det.py:MAX_LOOP_ROUNDS",
    "dynamic_range": f"{EXECUTIONS}/dynamic_range.py:CHUNK_CPU",
    "elementwise": "one iteration per lane",
    "expert_groups": f"{EXECUTIONS}/experts.py:MAX_LOOP_ROUNDS",
    "expert_mix": "one iteration per chosen expert",
    "gather_nd": "one iteration per axis",
    "grid_sample": "four taps along each of three axes",
    "group_norm": f"{EXECUTIONS}/group_norm.py:MAX_STEPS",
    "image_conv": "vkmnn/vulkan/images/windows.py:MAX_LOOP_ROUNDS",
    "image_interp": f"{CASES}/sampling.py::interp_smooth",
    "image_pool": "vkmnn/vulkan/images/windows.py:MAX_TAPS",
    "interp": f"{CASES}/sampling.py::interp_smooth",
    "linear_attention": f"{EXECUTIONS}/linear_attention.py:MAX_LOOP_ROUNDS",
    "lrn": f"{EXECUTIONS}/lrn.py:MAX_LOOP_ROUNDS",
    "matmul_codes": f"{EXECUTIONS}/packed.py:MAX_DEPTH",
    "matmul_codes_coop": "vkmnn/vulkan/gemm/families/codes_coop.py:MAX_K",
    "matmul_codes_dot": f"{EXECUTIONS}/packed.py:MAX_DEPTH",
    "matmul_codes_row": f"{EXECUTIONS}/packed.py:MAX_DEPTH",
    "matmul_coop": f"{EXECUTIONS}/matmul.py:MAX_K",
    "matmul_dot": "vkmnn/vulkan/gemm/families/dot.py:MAX_K",
    "matmul_experts": f"{EXECUTIONS}/experts.py:MAX_DEPTH",
    "matmul_gemv": f"{EXECUTIONS}/matmul.py:MAX_K",
    "matmul_rotate": f"{EXECUTIONS}/matmul.py:MAX_K",
    "matmul_half": "vkmnn/vulkan/gemm/shared_tiles.py:MAX_LOOP_ROUNDS",
    "matmul_shared": "vkmnn/vulkan/gemm/shared_tiles.py:MAX_LOOP_ROUNDS",
    "matmul_tile": f"{EXECUTIONS}/matmul.py:MAX_K",
    "nms_choose": f"{EXECUTIONS}/non_max_suppression.py:MAX_PARTS",
    "nms_gather": f"{EXECUTIONS}/non_max_suppression.py:MAX_LOOP_ROUNDS",
    "nms_sort": f"{EXECUTIONS}/non_max_suppression.py:MAX_LOOP_ROUNDS",
    "nms_tournament": "vkmnn/vulkan/sorting/tournament.py:MAX_LOOP_ROUNDS",
    "norm_rows": f"{T}layer_norm.py::test_long_rows",
    "pool": f"{CASES}/windows.py::pooling_global",
    "pool_index": f"{CASES}/windows.py::pooling_global",
    "radix_count": "vkmnn/vulkan/sorting/radix.py:PIECE",
    "radix_move": "vkmnn/vulkan/sorting/radix.py:PIECE",
    "reduce_columns": f"{T}reduction.py::test_long_lines",
    "reduce_exact": f"{CASES}/reduction.py::reductions_of_integers",
    "reduce_rows": f"{T}reduction.py::test_long_lines",
    "roi_align": f"{EXECUTIONS}/regions.py:MAX_LOOP_ROUNDS",
    "roi_pool": f"{EXECUTIONS}/regions.py:MAX_LOOP_ROUNDS",
    "scatter_elements": f"{EXECUTIONS}/scattering.py:MAX_LOOP_ROUNDS",
    "scatter_nd": f"{CASES}/gathering.py::scatters",
    "scatter_runs": "vkmnn/vulkan/sorting/scatter.py:BLOCK",
    "softmax_columns": f"{T}softmax.py::test_long_lines",
    "softmax_rows": f"{T}softmax.py::test_long_lines",
    "top_k_blocks": "vkmnn/vulkan/sorting/selection.py:MAX_LOOP_ROUNDS",
    "top_k_merge": "a binary search",
    "pool_whole": f"{EXECUTIONS}/pooling.py:MAX_WHOLE",
    "raster": "vkmnn/vulkan/copies/region_copy.py:MAX_INNER",
    "raster_parts": "vkmnn/vulkan/copies/region_parts.py:MAX_REGIONS",
    "recurrent": "vkmnn/vulkan/recurrence.py:MAX_LOOP_ROUNDS",
    "top_k_select": "vkmnn/vulkan/sorting/selection.py:MAX_LOOP_ROUNDS",
    "top_k_rank": f"{CASES}/along_axis.py::largest_and_smallest",
    "winograd_out": "vkmnn/vulkan/gemm/rewrites/whole_numbers.py:MAX_PARTS",
}


def loops(spirv: bytes) -> int:
    """Count the loops in a module; unrolled ones are gone."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    position, found = 5, 0
    while position < len(words):
        found += words[position] & 0xFFFF == _OP_LOOP_MERGE
        position += words[position] >> 16
    return found


def looping() -> set[str]:
    variants = BUILTIN.variants()
    return {template for name, template, _ in variants if loops(BUILTIN.load(name).spirv())}


def test_every_loop_has_a_reason_to_be_short() -> None:
    unexplained = looping() - SHORT_BECAUSE.keys()
    assert not unexplained, (
        f"say in {Path(__file__).name} what keeps the loops of {sorted(unexplained)} under 65,535 "
        "iterations per invocation, or bound them (constants belong in the execution)"
    )


def test_nothing_is_explained_that_does_not_loop() -> None:
    templates = {template for _, template, _ in BUILTIN.variants()}
    assert not (SHORT_BECAUSE.keys() & templates) - looping()


@pytest.mark.parametrize("template", SHORT_BECAUSE)
def test_what_is_named_is_there(template: str) -> None:
    reason = SHORT_BECAUSE[template]
    file, name = re.fullmatch(r"(\S+\.py)::?(\w+)|.*", reason).groups()  # type: ignore[union-attr]
    if file is None:
        return
    text = (ROOT / file).read_text(encoding="utf-8")
    if "::" in reason:
        assert f"\ndef {name}(" in text
    else:
        assert len(re.findall(rf"\b{name}\b", text)) > 1  # defined or imported, and used
