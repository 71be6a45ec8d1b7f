"""Group normalisation as PyTorch exports it: an instance normalisation between two reshapes."""

from __future__ import annotations

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import GroupNormAttrs


@dataclass(frozen=True, slots=True)
class _Match:
    value: str
    attrs: GroupNormAttrs
    ops: tuple[Op, ...]


class FuseGroupNorm(PatternPass[_Match]):
    """Reshape to [N, groups, ...], GroupNorm of each channel, Reshape back: GroupNorm of groups.

    Scaling and shifting of the channels are folded later, see `norm_affine`.
    """

    name = "fuse_group_norm"
    roots = frozenset({"Reshape"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        norm = index.producer_of_type(op.inputs[0], "GroupNorm")
        inner = norm and index.producer_of_type(norm.inputs[0], "Reshape")
        if norm is None or inner is None:
            return NoMatch("no instance normalisation between reshapes")
        attrs = norm.attrs
        if attrs.groups != 0 or attrs.activation.kind != "NONE":
            return NoMatch("not a plain instance normalisation")
        if not _is_plain(norm, index):
            return NoMatch("the groups are scaled or shifted")
        value = inner.inputs[0]
        before, grouped = index.shape(value), index.shape(inner.outputs[0])
        if before is None or grouped is None or len(before) < 2 or len(grouped) < 3:
            return NoMatch("the shapes are not known")
        if not index.same_shape(value, op.outputs[0]):
            return NoMatch("the second reshape does not undo the first, or it is not known to")
        groups, channels = grouped[1], before[1]
        if before[0] is None or before[0] != grouped[0]:
            return NoMatch("the reshape moves the batch")
        if not isinstance(groups, int) or not isinstance(channels, int) or channels % groups:
            return NoMatch("the channels are unknown, or do not divide into the groups")
        if not index.read_only_by(norm.outputs[0], (op,)):
            return NoMatch("a value within the pattern is used elsewhere")
        return _Match(value, GroupNormAttrs(groups, attrs.epsilon), (inner, norm, op))

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        source = merged_source(match.ops)
        outputs = list(op.outputs)
        index.replace(op, Op("GroupNorm", op.name, [match.value], outputs, match.attrs, source))


def _is_plain(norm: Op, index: GraphIndex) -> bool:
    """True when scale and bias are absent, or ones and zeros."""
    for name, neutral in zip(norm.inputs[1:], (1, 0), strict=False):
        array = index.constant(name)
        if name and (array is None or not np.all(array == neutral)):
            return False
    return True
