"""Mutants of the built-in kernels that no test can tell from the original, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Changes that make no difference.

    Args:
        file: the template or include.
        after: pattern of a part of the changed line; of the original one when it was removed.
        reason: why nothing differs.
        variants: pattern of the variants of which that is true.
    """

    file: str
    after: str
    reason: str
    variants: str = "*"

    def fits(self, variant: str, file: str, before: str, after: str) -> bool:
        """Return whether a change of a line of a variant is one of these."""
        return (
            file == self.file
            and fnmatch(variant, self.variants)
            and re.search(self.after, before if after == ";" else after) is not None
        )


_CLAMP = "the clamp keeps an address inside; what is read there is not used"
_LAST = "a pixel too many is the last one again: the same value goes to the same place"
_CHECKED = "indices outside are refused; the clamp keeps the read inside where it must be"
_AXIS = "an axis that a tensor does not have has size 1"

_ZERO = "lanes past the last channel are zero in the input, so that their mean and maximum are, too"
_UNREAD = "an operand that is not there is bound to another one, and no step reads it"

EQUIVALENTS: tuple[Equivalent, ...] = (
    Equivalent("elementwise.comp.j2", r"if \(OPERANDS (> [012]u|>= [1-3]u)\)", _UNREAD),
    Equivalent("pool_strip.comp.j2", r"clamp\(x [+-] 0, 0", "plus or minus nothing"),
    Equivalent("pool_whole.comp.j2", r"uint valid =|lessThan\(uvec4", _ZERO),
    Equivalent("unary.comp.j2", r"is_inf\(x\) && \(x (>= 0|> 1)\.0", "infinity is beyond both"),
    Equivalent("binary.comp.j2", r"AXES >= [1-5]u|AXES > [01]u", _AXIS),
    Equivalent("binary.comp.j2", r"floatBitsToInt\(b\)\) <= 0", "a rest is never its divisor"),
    Equivalent("include/convolution.glsl.j2", r"\? index : [1-9]", _CLAMP),
    Equivalent("binary.comp.j2", r"left >= 0 && rest", "the rest is below the divisor already"),
    Equivalent("binary.comp.j2", r"exponent - 1 & 3[02]", "subnormal rests may be flushed"),
    Equivalent("select.comp.j2", r"AXES >= [1-5]u|AXES > 0u", _AXIS),
    Equivalent("include/erf.glsl.j2", r"a > 11\.1|a >= 10\.1", "e * p has vanished before"),
    Equivalent(
        "include/activation.glsl.j2",
        r"y >= high|x <= low|x <= 0\.0 \?|x >= 0\.0 \|",
        "both sides meet",
    ),
    Equivalent(
        "cast.comp.j2", r"magnitude <= 0x38800000u|magnitude < 947912705u", "both forms fit"
    ),
    Equivalent("cast.comp.j2", r"0x7f800000u\) *$|magnitude >= 213909503[89]u", "infinity stays"),
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
    Equivalent("conv_depthwise.comp.j2", r"min\(m\d+, pixels (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("conv_gather.comp.j2", r"min\(m, pc.pixels (\+ 1u|- 0u)\)", _CLAMP),
    *(
        Equivalent(f"{name}.comp.j2", r"(m\d+|\+ from\d+) <= pixels", _LAST)
        for name in ("conv_tile", "conv_rotate", "conv_depthwise")
    ),
    Equivalent("conv_strip.comp.j2", r"min\(row, rows (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent(
        "conv_strip.comp.j2", r"clamp\(origin\.[yz] \+ \d+, (1|0), in_\w+ [-+] [012]\)", _CLAMP
    ),
    Equivalent(
        "winograd_in.comp.j2",
        r"clamp\((top|left) \+ \d, (0|1), (height|width) [-+] [012]\)",
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
    Equivalent("matmul_rotate.comp.j2", r"min\(n4, last4\) ", _CLAMP),
    Equivalent("matmul_tile.comp.j2", r"min\(m \+ \d+u, pc.rows (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent("matmul_tile.comp.j2", r"min\(n4 \+ 1u, columns4 (\+ 1u|- 0u)\)", _CLAMP),
    Equivalent(
        "matmul_tile.comp.j2", r"pc.columns \+ 4u\) >> 2|n4 > columns4", "`put` checks again"
    ),
    Equivalent("matmul_tile.comp.j2", r"n4 & 6u", "n4 is even"),
    Equivalent(
        "include/matmul.glsl.j2", r"residual_load\(", "a residual past the row is not stored"
    ),
    Equivalent(
        "matmul_pack.comp.j2",
        r"there && column \+ \du <= |there && column \+ \du < |there \|\| column",
        "products with columns past the last one are not stored",
    ),
    Equivalent("pool.comp.j2", r"from\.z : 1\)", "what is read outside of the window is not used"),
    Equivalent(
        "pool_index.comp.j2", r"from\.z : 1\)", "what is read outside of the window is not used"
    ),
    Equivalent("pool_index.comp.j2", r"found = -[02];|best = ", "the first element always counts"),
    Equivalent("grid_sample.comp.j2", r"lessThanEqual\(d, vec4\(2\.0\)", "the cubic is zero at 2"),
    Equivalent(
        "grid_sample.comp.j2", r"c = reflected\(c, low, high\);", "each tap is reflected by itself"
    ),
    Equivalent("grid_sample.comp.j2", r"is_nan\(position\) \? 1\.0", "nothing is defined for NaN"),
    Equivalent("interp.comp.j2", r"COLUMN_PAIRS >= 0u", "rows with weights come with columns"),
    Equivalent("gather.comp.j2", r"clamp\(at", _CHECKED),
    Equivalent("gather_elements.comp.j2", r"clamp\(at", _CHECKED),
    Equivalent("gather_nd.comp.j2", r"clamp\(at, (0|1), pc.size\[k\] [-+] [012]\)", _CHECKED),
    Equivalent("scatter_nd.comp.j2", r"clamp\(at, (0|1), pc.size\[k\] [-+] [012]\)", _CHECKED),
    Equivalent("scatter_elements.comp.j2", r"clamp\(at, 0, axis [-+] [012]\)", _CHECKED),
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
)
