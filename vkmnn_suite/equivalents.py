"""Mutants of the built-in kernels that no test can distinguish from the original, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Changes that make no difference.

    Args:
        file: the template or include, or a pattern of several.
        after: a pattern of a part of the changed line that is not in the original; with an arrow,
            of "original → changed". A removed statement is ";", and needs the arrow.
        reason: why nothing differs.
        variants: pattern of the variants for which that is true.
    """

    file: str
    after: str
    reason: str
    variants: str = "*"

    def fits(self, variant: str, file: str, before: str, after: str) -> bool:
        """Return whether a change of a line of a variant is one of these."""
        if not (fnmatch(file, self.file) and fnmatch(variant, self.variants)):
            return False
        if "→" in self.after:
            return re.search(self.after, f"{before} → {after}") is not None
        pattern = re.compile(self.after)
        return after != ";" and bool(pattern.search(after)) and not pattern.search(before)


_CLAMP = "the clamp keeps an address inside; what is read there is not used"
_LAST = "a pixel too many is the last one again: the same value goes to the same place"
_CHECKED = "indices outside are refused; the clamp keeps the read inside where it must be"
_AXIS = "an axis that a tensor does not have has size 1"

_ZERO = "lanes past the last channel are zero in the input, so that their mean and maximum are, too"
_SAME = "every invocation of the workgroup holds the same"
_MIRROR = "mirrored at itself, the border stays where it is"
_ORDER = "orders invocations; a CPU device runs those of a workgroup one group after another"
_UNREAD = "an operand that is not there is bound to another one, and no step reads it"

_UNUSED = r"OPERANDS > 1u.* → .*> 0u|OPERANDS > 2u.* → .*> 1u| → .*OPERANDS >= "
_WEAKER = "|".join(f"AXES > {n}u.* → .*AXES > {n - 1}u" for n in range(1, 6)) + "|AXES >= [1-5]u"

_CODED = "sums of codes end in `requantize`, which takes no activation"

_MORE = "|".join(f"VECTORS > {n}u.* → .*VECTORS > {n - 1}u" for n in range(1, 8))

EQUIVALENTS: tuple[Equivalent, ...] = (
    *(
        Equivalent(template, pattern, "vec4s too many count as zeros, and are not stored")
        for template in ("cached_attention_subgroup.comp.j2", "cached_attention_wide.comp.j2")
        for pattern in (
            r"KEY_VECTORS >=|^ *if \(VALUE_VECTORS >= \d+u\)$",
            rf"^(?!.*VALUE.*\{{)(.*({_MORE}))",
        )
    ),
    Equivalent(
        "cached_attention_wide.comp.j2",
        r"VALUE_VECTORS >=|VALUE_VECTORS > \d+u.* → |vec4 (query|key\d_|value\d_)\d = vec4\(1",
        "what is past the last vec4 meets zeros of the query, or is not stored",
    ),
    Equivalent(
        "cached_attention_wide.comp.j2",
        r"→ .*(top = max\(|lane == 1u|lane <= )",
        "any maximum that does not overflow will do, and any lane that has it",
    ),
    Equivalent(
        "cached_attention_subgroup.comp.j2",
        r"min\(\d+u, depth4 (- 0u|- 2u|\+ 1u)\)",
        "the clamp keeps an address inside; what is read there meets zeros of the query",
    ),
    Equivalent(
        "cached_attention_subgroup.comp.j2",
        r"lane == [1-9]u \?|total == 0\.0 \? 1\.0",
        "any lane will do, and any factor of zero",
    ),
    Equivalent(
        "attention_tile.comp.j2",
        r"pc\.depth \+ 2u|pc\.width \+ 2u",
        "rows are whole vec4s",
        "attention_tile_*_4_*",
    ),
    Equivalent(
        "attention_tile.comp.j2",
        r"min\(first \+ my_query, queries - 0u|>> 2\) - 0u;"
        r"|k_vector\(.* (keys|depth4) (- 0u|\+ 1u)\)",
        _CLAMP,
    ),
    Equivalent(
        "attention_tile.comp.j2",
        r"more = piece \+ 15u",
        "a piece more is fetched than is used",
    ),
    Equivalent("include/residual.glsl.j2", r"HAS_RESIDUAL \|\|", _CODED, "conv_*_c8*"),
    Equivalent("include/residual.glsl.j2", r" → ", _CODED, "matmul_dot_*"),
    Equivalent("include/epilogue.glsl.j2", r"residual = vec4\(1\.0\)", _CODED, "conv_*_c8*"),
    Equivalent(
        "include/requantize.glsl.j2",
        r"sum -= residual",
        "what is summed in two parts is not in bytes",
        "conv_*_c8*",
    ),
    Equivalent("pool.comp.j2", r"log32\(x\).* → ", "codes have no norms", "pool_c8*"),
    Equivalent(
        "include/round_even.glsl.j2",
        r"size <= 8388608\.0|lessThanEqual\(size",
        "from 2^23 on, numbers are whole by either way",
    ),
    Equivalent(
        "dynamic_range.comp.j2",
        r"lessThanEqual|greaterThanEqual",
        "of two equal numbers, either is the extreme one",
    ),
    Equivalent("dynamic_range.comp.j2", r"3u\) << 2", "elements past the last one are masked"),
    Equivalent("elementwise.comp.j2", _UNUSED, _UNREAD),
    Equivalent("elementwise.comp.j2", _WEAKER, _AXIS),
    Equivalent("elementwise.comp.j2", r"STEPS >= ", "nothing reads what a step too many computes"),
    Equivalent(
        "gate_columns.comp.j2", r"vec4\(x\.xy.*1\.0", "the last two of four lanes are not used"
    ),
    Equivalent("unary.comp.j2", r"return \w+\(1\);", "every kind has a formula"),
    Equivalent(
        "include/requantize.glsl.j2",
        r"TABLE (- 0u|\+ 1u)",
        "codes within their bounds have entries",
    ),
    Equivalent(
        "include/requantize.glsl.j2",
        r"sum -= residual",
        "depthwise convolutions are not summed in parts",
        "conv_strip_*",
    ),
    Equivalent(
        "include/codes_product.glsl.j2",
        r"sum\[1\].*there\[0\] \?|sum\[2\].*there\[[01]\] \?|sum\[3\].*there\[[012]\] \?",
        "results past the last column are not stored",
    ),
    Equivalent("pool_strip.comp.j2", r"clamp\([xy] - 0, 0", "plus or minus nothing"),
    Equivalent(
        "pool_strip.comp.j2",
        r"clamp\([xy] \+ \d+, 0, (height|width) (\+ 1|- 0)\)",
        _CLAMP,
    ),
    Equivalent(
        "pool_whole.comp.j2",
        r"valid = pc\.channels (\+ 4u|- 3u) \*|uvec4\(0u, (0u, 2u, 3|1u, 1u, 3|1u, 2u, 2)u\)",
        _ZERO,
    ),
    Equivalent("unary.comp.j2", r"is_inf\(x\) && \(x (>= 0|> 1)\.0", "infinity is beyond both"),
    Equivalent("binary.comp.j2", _WEAKER, _AXIS),
    Equivalent("binary.comp.j2", r"floatBitsToInt\(b\)\) <= 0", "a rest is never its divisor"),
    Equivalent("include/convolution.glsl.j2", r"\? index : [1-9]", _CLAMP),
    Equivalent("binary.comp.j2", r"left >= 0 && rest", "the rest is below the divisor already"),
    Equivalent("binary.comp.j2", r"exponent - 1 (\||& 3[02])", "subnormal rests may be flushed"),
    Equivalent(
        "binary.comp.j2",
        r"b == 0\.5 && a (> 0|>= 1)\.0",
        "exponential and logarithm give a root, too, as exactly as is asked for",
    ),
    Equivalent("select.comp.j2", _WEAKER, _AXIS),
    Equivalent("include/erf.glsl.j2", r"a > 11\.1|a >= 10\.1", "e * p has vanished before"),
    Equivalent(
        "include/activation.glsl.j2",
        r"y >= high|x <= low|x <= 0\.0 \?|x >= 0\.0 \|",
        "both sides meet",
    ),
    Equivalent(
        "cast.comp.j2", r"magnitude <= 0x38800000u|magnitude < 947912705u", "both forms fit"
    ),
    Equivalent(
        "cast.comp.j2",
        r"if \(magnitude (> 0x7f800000u|>= 2139095041u)\)",
        "infinity stays",
        "cast_*_f16_*",
    ),
    Equivalent("cast.comp.j2", r"BITS <= 32", "32 bits are kept either way"),
    Equivalent(
        "include/check.glsl.j2", r"2147483648 - int", "the number of the check still differs"
    ),
    Equivalent("conv_weight.comp.j2", r"source < 0 \? 1\.0", "meets channels that are zero"),
    Equivalent("conv_tile.comp.j2", r"min\(first \+ \du, group_blocks (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("conv_tile.comp.j2", r"min\(m\d+, pixels (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent(
        "conv_tile.comp.j2",
        r"first \+ 0u <= group_blocks|kept \|\| m\d+ < pixels",
        "the first block is always there; " + _LAST,
        "conv_tile_*_1_*",
    ),
    Equivalent("conv_rotate.comp.j2", r"min\(first, pc.group_blocks (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("conv_rotate.comp.j2", r"min\(m\d+, pixels (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("conv_row.comp.j2", r"min\(first, pc.group_blocks (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("conv_row.comp.j2", r"min\(m \+ from0, pixels (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("conv_depthwise.comp.j2", r"min\(m\d+, pixels (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("conv_gather.comp.j2", r"min\(m, pc.pixels (\+ 1u|- 0u)\)", _CLAMP),
    *(
        Equivalent(f"{name}.comp.j2", r"(m\d+|\+ from\d+) <= pixels", _LAST)
        for name in ("conv_tile", "conv_rotate", "conv_row", "conv_depthwise")
    ),
    Equivalent("conv_strip.comp.j2", r"min\(row, rows (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("conv_strip.comp.j2", r"clamp\(origin\.[yz] \+ \d+, 0, in_\w+ (\+ 1|- 0)\)", _CLAMP),
    Equivalent(
        "winograd_in.comp.j2",
        r"clamp\((top|left) \+ \d, 0, (height|width) (\+ 1|- 0)\)",
        _CLAMP,
    ),
    Equivalent("winograd_in.comp.j2", r"t = min\(t, tiles (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("winograd_out.comp.j2", r"t = min\(t, tiles (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent(
        "winograd_out.comp.j2", r"min\((top|left) \+ \du, (height|width) (\+ 1u|- 0u)\)", _CLAMP
    ),
    Equivalent(
        "winograd_out.comp.j2", r"(top|left) \+ 0u <= ", "the first pixel of a tile is always there"
    ),
    Equivalent(
        "winograd_out.comp.j2",
        r"kept (\|\| top \+ 0u|&& top \+ 0u < height \|\| left)",
        "the first pixel of a tile is always there; tiles too many write what the last one writes",
    ),
    Equivalent("matmul_rotate.comp.j2", r"min\(m \+ \d+u \+ lane, pc.rows (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("matmul_pack.comp.j2", r"uvec4\(pc.rows (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent(
        "include/matmul.glsl.j2",
        r"pc\.columns \+ 2u",
        "rows are whole vec4s",
        "matmul_shared_*_4_*",
    ),
    Equivalent(
        "include/staged_norms.glsl.j2",
        r"min\(low|\+ max\(high",
        "any number of a row will do as its pivot; which one keeps most digits, other tests show",
    ),
    Equivalent("include/staged.glsl.j2", r"4u / k4 - 1u", _CLAMP),
    Equivalent("include/staged_conv.glsl.j2", r"min\(block, group_blocks (- 0u|\+ 1u)\)", _CLAMP),
    Equivalent(
        "include/staged_matmul.glsl.j2", r"min\(n4 \+ lane % \d+u, columns4 (- 0u|\+ 1u)\)", _CLAMP
    ),
    Equivalent(
        "include/staged.glsl.j2",
        r"mix\(vec4\(1\.0\), [ab]",
        "what meets it is zero",
    ),
    Equivalent(
        "include/staged_*.glsl.j2",
        r"min\(first \+ pc\.steps, \(k4 \+ (\d+)u\) / \1u\)",
        "where nothing is shared, pc.steps counts them all",
        "*_0_*",
    ),
    Equivalent(
        "include/staged.glsl.j2",
        r"BUFFERS != 1u",
        "one buffer and a barrier more do as well, where there is room for two",
    ),
    Equivalent(
        "include/staged.glsl.j2",
        r"\(group >= \d+u|\(group > 7u.*→.*\(group > 8u|group != 7u \|\| group < 8u|group < 9u",
        "another group than this one stores, and what comes after the last list, nobody reads",
        "*16x16x16_*",
    ),
    Equivalent("include/staged.glsl.j2", r"TAIL \? min\(.*, (4u \* )?k4 (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("matmul_dot.comp.j2", r"TAIL \? min\(.*, k4 (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent(
        "include/staged.glsl.j2",
        r"group > (\du) \?.* → .*group >= \1 \?|"
        r"group > 1u \?.* → .*group > 0u \?|group > 2u \?.* → .*group > 1u \?|"
        r"group > 3u \?.* → .*group > 2u \?",
        "a group leaves nothing to itself",
    ),
    Equivalent("include/staged_conv.glsl.j2", r"tap_of\(min\(.*, k4 (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent(
        "include/staged.glsl.j2",
        r"vec4 b\d = .* → .*[35]u \* k \+ b_line",
        "where nothing is shared, the first step begins at 0",
        "*_0_*",
    ),
    Equivalent(
        "include/staged_*.glsl.j2",
        r"uint end = min\(first - pc\.steps",
        "where nothing is shared, first is 0",
        "*_0_*",
    ),
    Equivalent("matmul_tile.comp.j2", r"min\(m \+ \d+u, pc.rows (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("matmul_tile.comp.j2", r"min\(n4 \+ 1u, columns4 (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent(
        "matmul_tile.comp.j2", r"pc.columns \+ 4u\) >> 2|n4 > columns4", "`put` checks again"
    ),
    Equivalent("matmul_tile.comp.j2", r"n4 & 6u", "n4 is even"),
    Equivalent(
        "include/matmul.glsl.j2",
        r"residual_load\(.* \? index.* : 1u\)",
        "a residual past the row is not stored",
    ),
    Equivalent(
        "matmul_pack.comp.j2",
        r"there && column \+ \du <= ",
        "products with columns past the last one are not stored",
    ),
    Equivalent("pool.comp.j2", r"from\.z : 1\)", "what is read outside of the window is not used"),
    Equivalent(
        "pool_index.comp.j2", r"from\.z : 1\)", "what is read outside of the window is not used"
    ),
    Equivalent(
        "pool_index.comp.j2",
        r" → .*found = -[02];|(int|float) best = .* → .*best = ",
        "the first element always counts",
    ),
    Equivalent("grid_sample.comp.j2", r"lessThanEqual\(d, vec4\(2\.0\)", "the cubic is zero at 2"),
    Equivalent(
        "grid_sample.comp.j2",
        r"c = reflected\(c, low, high\); → ;$",
        "each tap is reflected by itself",
    ),
    Equivalent("grid_sample.comp.j2", r"is_nan\(position\) \? 1\.0", "nothing is defined for NaN"),
    Equivalent("interp.comp.j2", r"COLUMN_PAIRS >= 0u", "rows with weights come with columns"),
    Equivalent(
        "interp.comp.j2",
        r"return value\(at - uint\(pair\.x\)\);$",
        "rows without weights begin at 0",
    ),
    Equivalent("gather.comp.j2", r"at = clamp\(.*\); → (;$|.*pc\.axis (\+ 1|- 0)\))", _CHECKED),
    Equivalent("gather_elements.comp.j2", r"clamp\(at, 0, pc\.axis (\+ 1|- 0)\)", _CHECKED),
    Equivalent("gather_nd.comp.j2", r"clamp\(at, 0, pc\.size\[k\] (\+ 1|- 0)\)", _CHECKED),
    Equivalent("scatter_nd.comp.j2", r"clamp\(at, 0, pc\.size\[k\] (\+ 1|- 0)\)", _CHECKED),
    Equivalent(
        "scatter_place.comp.j2",
        r"clamp\(at, 0, pc\.(size\[\d\]|axis) (\+ 1|- 0)\)",
        _CHECKED,
    ),
    Equivalent(
        "top_k_select.comp.j2", r"same = here.* → ;$", "it would count all digits, to the same end"
    ),
    Equivalent("scatter_elements.comp.j2", r"clamp\(at, 0, axis (\+ 1|- 0)\)", _CHECKED),
    Equivalent(
        "conv_fold.comp.j2", r"clamp\(at\d, 0, size (\+ 1|- 0)\)", "what lies outside is zero"
    ),
    Equivalent("convert_layout.comp.j2", r"min\(5u, pc.channels", "a block has four lanes"),
    Equivalent(
        "group_norm.comp.j2",
        r"base (- b \*|\+ b /) pitch|first - b|--b",
        "channels with statistics of their own are groups of one block",
        "group_norm_*_own_*",
    ),
    Equivalent(
        "reduce_columns.comp.j2",
        r"k - 4u <= length|k \+ 5u <= length",
        "the next loop does the rest",
    ),
    Equivalent(
        "arg_reduce.comp.j2",
        r"min\(begin - pc\.chunk",
        "the first piece then goes through the whole line; the others offer elements of their own",
    ),
    Equivalent(
        "sample_token.comp.j2",
        r"gl_WorkGroupSize\.x, end - 0u|pc\.size \+ 4u\) >> 2",
        "logits past the row are masked one by one",
    ),
    Equivalent("sample_token.comp.j2", r"b < 255u", "the farthest token that counts is in bin 254"),
    Equivalent(
        "sample_token.comp.j2",
        r"word < 256u",
        "the chosen one is in a word before",
    ),
    Equivalent("norm_rows.comp.j2", r"STATISTICS && lane != 0u", _SAME),
    Equivalent(
        "softmax_rows.comp.j2", r"^        if \(HOLD >= 0u\)", "a row that is held takes one"
    ),
    Equivalent(
        "softmax_rows.comp.j2", r"HOLD >= [1-9]", "a vec4 more, past the row: minus infinity"
    ),
    Equivalent(
        "softmax_rows.comp.j2",
        r"row_size \+ 3u\) >> 1",
        "elements past the row are masked one by one",
        "softmax_rows_*_1_*",
    ),
    Equivalent("det.comp.j2", r"column = k \+ 0u", "the column of a pivot is not read again"),
    Equivalent(
        "include/epilogue.glsl.j2",
        r"lanes\.ending\.table = 0u.* → ",
        "only sums of codes read how they end",
    ),
    Equivalent("conv_gather.comp.j2", r"uvec4\(pc\.channels (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent(
        "include/convolution.glsl.j2",
        r"stride\[\d\] - pc\.pad\[(\d)\].* → .*stride\[[012]\] - pc\.pad\[\1\]",
        "steps of one along every axis",
        "conv_strip_*_1_?_*",
    ),
    Equivalent(
        "include/convolution.glsl.j2",
        r"^ *int\(z\) .* → .*(stride|pad)\[[012]\]",
        "nothing reads where a window begins along the axis that is missing",
        "conv_strip_*",
    ),
    Equivalent("grid_sample.comp.j2", r"c > low && c <= high|c >= low && c < high", _MIRROR),
    Equivalent(
        "grid_sample.comp.j2",
        r"clamp\(c, 0\.0, extent \+ 1\.0\)",
        "each tap is moved onto the last element by itself, and their weights add up to one",
    ),
    Equivalent(
        "include/matmul.glsl.j2",
        r"\(batch / pc\.rows \+ m\)|\(batch \* pc\.rows - m\)",
        "there is one row, number zero",
        "matmul_gemv_1_*",
    ),
    Equivalent("matmul_gemv.comp.j2", r"0u / gl_WorkGroupSize", "nothing, times or by anything"),
    Equivalent(
        "matmul_gemv.comp.j2",
        r"= gl_WorkGroupID\.y \* .* → .*[*/] [0-9]+u;",
        "all rows are one workgroup's",
    ),
    Equivalent("matmul_gemv.comp.j2", r"row (>= [2-9]u|> [1-8]u)", "`put` checks again"),
    Equivalent(
        "include/overlap.glsl.j2",
        r"lessThanEqual\(a|greaterThanEqual\(a",
        "both choices are equal",
    ),
    Equivalent(
        "include/overlap.glsl.j2",
        r"bool real = .*>= 0\.0",
        "each of the areas is zero only where another of the conditions fails, or the part is zero",
    ),
    Equivalent("nms_choose.comp.j2", r"min\(i, count (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("nms_choose.comp.j2", r"if \(lane (!= 0|== 1)u\)", _SAME),
    Equivalent("nms_gather.comp.j2", r"row == 0u && lane (!= 0|== 1)u", _SAME),
    Equivalent(
        "nms_sort.comp.j2",
        r"piece = \(\w+ \+ LANES (\+ 1u|- 0u)\)|piece = \(\w+ \+ LANES - 1u\) \*",
        "longer pieces, of which the last ones are shorter or empty",
    ),
    Equivalent(
        "nms_tournament.comp.j2",
        r"int last = -?[1-9]",
        "not read before it is set, or with `after`",
    ),
    Equivalent(
        "nms_tournament.comp.j2", r"more \|\| kept", "a row that is done is gone through in vain"
    ),
    Equivalent(
        "include/order.glsl.j2",
        r"return (2147483646|0x7ffffffe)",
        "above infinity, and so no other score's",
        "nms_*",
    ),
    Equivalent("nms_tournament.comp.j2", r": -2\);", "any negative number says so"),
    Equivalent(
        "nms_tournament.comp.j2",
        r"min\(place, size (\+ WIDTH|\+ 1u|- 0u)\)",
        _CLAMP,
    ),
    Equivalent("nms_tournament.comp.j2", r"stretch <= size", "a turn past the end finds nothing"),
    Equivalent("nms_tournament.comp.j2", r"lane (!= 0|== 1)u\)", _SAME),
    Equivalent("nms_tournament.comp.j2", r"LANES <= limit_rounds", "loops have rounds to spare"),
    Equivalent(
        "one_hot.comp.j2",
        r"index\) <= 1e9|: -(999999999|1000000001);",
        "no axis is a billion long: nothing matches either way",
    ),
    Equivalent(
        "recurrent.comp.j2",
        r"state\[.*\] = 1\.0;|w\d+\.[xyzw], 1\.0\)",
        "padding meets weights that are zero, and the sum of a fourth gate is not read",
    ),
    Equivalent("recurrent.comp.j2", r"LONG = 3[24]u", "any longer array will do"),
    Equivalent("pool_strip.comp.j2", r"uvec4\(pc\.channels \+ 4u \*", _ZERO),
    Equivalent("pool_whole.comp.j2", r"min\(v \+ \du \* width, size (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("pool_whole.comp.j2", r"gl_LocalInvocationID\.x (!= 0|== 1)u", _SAME),
    Equivalent("pool_whole.comp.j2", r"; v <= size;", "what lies past the last texel is masked"),
    Equivalent("recurrent.comp.j2", r"^uint \w+ = 1u;", "`main` sets it before anything reads it"),
    Equivalent("recurrent.comp.j2", r"; j0 <= end;", "a round more, in which no unit is left"),
    Equivalent("raster.comp.j2", _WEAKER, _AXIS),
    Equivalent("raster_parts.comp.j2", _WEAKER, _AXIS),
    Equivalent("raster_parts.comp.j2", r"int next = 0;", "the first region begins at 0"),
    Equivalent("raster_parts.comp.j2", r"dst \+= k / part5\.w", "vec4s lie side by side"),
    Equivalent("raster_parts.comp.j2", r"if \(part1\.x >= 0\)", "no images: a vec4 stays in place"),
    Equivalent("reduce_exact.comp.j2", r"uint quotient = 1u", "64 steps shift it out of the word"),
    Equivalent(
        "roi_align.comp.j2",
        r"line\.start\) \* step\) - 1\.0|\(-2\.0 - line|/ step\) - 2\.0",
        "samples are at most one pixel apart: it begins no later, with samples that are zero",
    ),
    Equivalent(
        "roi_align.comp.j2",
        r"last < 1\.0 \?|last < 0\.0 \? 1\.0",
        "a sample more, which lies outside and is zero",
    ),
    Equivalent("roi_pool.comp.j2", r"(begin|end) >= 0\.0", "zero either way"),
    Equivalent(
        "roi_align.comp.j2", r"is_last \? 1\.0", "both elements are the last one: weights swap"
    ),
    Equivalent(
        "softmax_rows.comp.j2",
        r"\(row_begin \+ 3u\) & ~2u",
        "an element that a vec4 stores is stored once more: the same value",
    ),
)

UNSEEN: tuple[Equivalent, ...] = (
    Equivalent("*", r"^\s*(barrier|memoryBarrier\w*)\(\); → ;$", _ORDER),
    Equivalent("*", r"if \((lane|gl_LocalInvocationID\.x) <= half_size\)", _ORDER),
    Equivalent(
        "recurrent.comp.j2",
        r"return \(BUFFERS [+] 1u\)|return \(BUFFERS - 0u\)",
        "goes beyond shared memory, of which CPU devices have more than was asked for",
    ),
)
"""Changes that matter only on devices that run the invocations of a workgroup in parallel.

They are judged like all others. If no case detects one on a CPU device, it is counted separately
there: it says nothing about the cases.
"""
