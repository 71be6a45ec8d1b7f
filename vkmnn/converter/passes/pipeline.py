"""The order of the passes, and the loop that runs them until nothing changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from vkmnn.base.budget import Meter, unlimited
from vkmnn.converter.passes.activation import FuseActivation
from vkmnn.converter.passes.affine import FoldAffine
from vkmnn.converter.passes.affine_input import FoldAffineInput
from vkmnn.converter.passes.attention import FuseAttention
from vkmnn.converter.passes.base import IndexedPass, Pass
from vkmnn.converter.passes.causal import DetectCausalMasks
from vkmnn.converter.passes.chain import FuseChains
from vkmnn.converter.passes.clamp import MergeClamps
from vkmnn.converter.passes.code_attention import FuseCodeAttention
from vkmnn.converter.passes.code_offset import FuseCodeOffset
from vkmnn.converter.passes.code_resize import RoundResized, RoundSums
from vkmnn.converter.passes.code_rows import DecodeRows, RoundRows
from vkmnn.converter.passes.code_sum import FuseCodeSum
from vkmnn.converter.passes.code_table import FuseCodeTable
from vkmnn.converter.passes.codes import FuseGate, FuseNorm, MergeCodes
from vkmnn.converter.passes.common_subexpression import MergeCommonSubexpressions
from vkmnn.converter.passes.constant_folding import FoldConstants
from vkmnn.converter.passes.dead_code import RemoveDeadCode
from vkmnn.converter.passes.decode_codes import DecodeCodes, DecodeParts
from vkmnn.converter.passes.dynamic_convolution import FuseDynamicConvolution
from vkmnn.converter.passes.dynamic_product import FuseDynamicProduct, MergeDynamicProducts
from vkmnn.converter.passes.elementwise import FuseElementwise
from vkmnn.converter.passes.group_norm import FuseGroupNorm
from vkmnn.converter.passes.identity import RemoveNoOps
from vkmnn.converter.passes.image_input import FuseImageInput
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.layer_norm import FuseLayerNorm
from vkmnn.converter.passes.matmul_reshape import UnwrapMatMul
from vkmnn.converter.passes.matmul_scale import FoldOperandScale, FoldResultScale
from vkmnn.converter.passes.matmul_transpose import FoldOperandTranspose, FoldSharedTranspose
from vkmnn.converter.passes.merge_code_products import MergeCodeProducts
from vkmnn.converter.passes.merge_matmul import MergeMatMul
from vkmnn.converter.passes.norm_affine import FoldNormAffine, FuseNormResidual
from vkmnn.converter.passes.norm_rows import PickBeforeNorm
from vkmnn.converter.passes.pad import FoldPad
from vkmnn.converter.passes.refine_shapes import RefineShapes
from vkmnn.converter.passes.registered import is_registered, with_registered
from vkmnn.converter.passes.reshape import MergeReshapes, SimplifyReshapes
from vkmnn.converter.passes.residual import FuseExpertResidual, FuseLateResidual, FuseResidual
from vkmnn.converter.passes.rotary import FuseRotary
from vkmnn.converter.passes.rowwise import FuseFloatGate, FuseFloatNorm
from vkmnn.converter.passes.selection import RaiseSelection
from vkmnn.converter.passes.slice_assignment import AssignSlices
from vkmnn.converter.passes.softplus import SimplifySoftplus
from vkmnn.converter.passes.transpose import MergeTransposes
from vkmnn.converter.passes.transpose_matmul import LowerTranspose, RaiseTranspose
from vkmnn.converter.passes.transpose_region import MoveTransposes
from vkmnn.converter.passes.transpose_reshape import MergeTransposesAroundReshape
from vkmnn.errors import InvalidInputError, ModelError, PluginError, VkmnnError, unexpected_error
from vkmnn.ir.graph import Graph
from vkmnn.shape.folding import Evaluator

log = logging.getLogger(__name__)

MAX_ROUNDS = 20


def default_passes(evaluate: Evaluator) -> tuple[Pass, ...]:
    """Return the passes in their order.

    1. Cleaning: dead, constant, redundant and repeated ops. Shapes become known.
    2. Data movement: reshapes and transposes merge and cancel.
    3. Formulas spelled out in the model, before other passes take parts of them away.
    4. Operands' scales and transposes into matrix products; constants into weights and biases.
    5. Attention, which needs its scale folded, and would lose its mask to the residuals; then the
       products that compute its operands become one.
    6. Residuals, then activations, which are last in an op's epilogue.
    7. Selections of rows move before such ops.
    """
    return (
        RemoveDeadCode(),
        RemoveNoOps(),
        FoldSharedTranspose(),
        FoldConstants(evaluate),
        RefineShapes(),
        AssignSlices(),
        MergeCommonSubexpressions(),
        SimplifyReshapes(),
        MergeReshapes(),
        UnwrapMatMul(),
        MergeTransposes(),
        MergeTransposesAroundReshape(),
        RaiseTranspose(),
        LowerTranspose(),
        MoveTransposes(),
        MergeClamps(),
        FuseCodeSum(),
        FuseCodeOffset(),
        FuseCodeTable(evaluate),
        FuseDynamicProduct(),
        FuseDynamicConvolution(),
        FuseElementwise(),
        SimplifySoftplus(),
        FuseLayerNorm(),
        FuseGroupNorm(),
        FuseRotary(),
        FoldOperandScale(),
        FoldResultScale(),
        FoldOperandTranspose(),
        FoldNormAffine(),
        PickBeforeNorm(),
        FoldPad(),
        FoldAffine(),
        FoldAffineInput(),
        FuseAttention(),
        DetectCausalMasks(),
        MergeMatMul(),
        MergeCodes(),
        FuseResidual(),
        FuseExpertResidual(),
        FuseActivation(),
        RaiseSelection(),
    )


def late_passes(evaluate: Evaluator) -> tuple[Pass, ...]:
    """Return the passes that run when the others no longer match, in order.

    They merge the patterns of other passes (formulas, residuals, activations) into other ops.
    """
    return (
        FuseImageInput(),
        FuseLateResidual(),
        FuseNormResidual(),
        RoundRows(),
        DecodeRows(),
        RoundResized(),
        RoundSums(),
        DecodeParts(),
        DecodeCodes(),
        FuseCodeAttention(evaluate),
        MergeCodeProducts(),
        MergeDynamicProducts(),
        FuseChains(),
        FuseGate(),
        FuseNorm(),
        FuseFloatGate(),
        FuseFloatNorm(),
        RemoveDeadCode(),
    )


def optimize(
    graph: Graph,
    evaluate: Evaluator,
    *,
    passes: Sequence[Pass] | None = None,
    meter: Meter | None = None,
    without: Collection[str] = (),
) -> Graph:
    """Return an equivalent graph that computes the same outputs with fewer ops.

    The passes run in order, repeatedly, until none of them matches; then the late passes do.
    Plug-ins' passes run at their registered positions. Results are equal up to the rounding of the
    graph's element types. Names of graph inputs and outputs do not change.

    Args:
        graph: a valid graph; it is not changed (arrays of constants are shared with the result).
        evaluate: computes an op on constant inputs, for constant folding.
        passes: the passes in their order; None = `default_passes(evaluate)`, then `late_passes`,
            with those that plug-ins add.
        meter: counts time and the memory of folded constants; None has no limits.
        without: names of passes that are left out.

    Raises:
        BudgetError: it takes more time than allowed.
        InvalidInputError: `without` names no pass.
        ModelError: the graph is not valid in a way that only a pass noticed.
        PluginError: a plug-in's pass left an invalid graph.
    """
    result = graph.copy()
    before = len(result.ops)
    own = (default_passes(evaluate), late_passes(evaluate))
    tables = with_registered(own) if passes is None else (tuple(passes),)
    for table in _left(tables, without):
        _run(result, table, meter or unlimited())
    log.debug("graph '%s': %d ops before the passes, %d after", graph.name, before, len(result.ops))
    return result


def _left(tables: Sequence[Sequence[Pass]], without: Collection[str]) -> Sequence[Sequence[Pass]]:
    """Return the tables of passes without those of some names."""
    names = [one.name for table in tables for one in table]
    for name in without:
        if name not in names and names:
            near = get_close_matches(name, names, 1)
            raise InvalidInputError(
                f"there is no pass '{name}'",
                hint=f"did you mean '{near[0]}'?" if near else f"passes: {', '.join(names)}",
            )
    return [[one for one in table if one.name not in without] for table in tables]


def fold(graph: Graph, evaluate: Evaluator, meter: Meter) -> Graph:
    """Return the graph with everything computed that follows from constants and known sizes."""
    passes = (RemoveDeadCode(), RemoveNoOps(), FoldConstants(evaluate), RefineShapes())
    return optimize(graph, evaluate, passes=passes, meter=meter)


def _apply(one: IndexedPass, index: GraphIndex) -> int:
    """Apply a pass; its exceptions become errors that name the op in question."""
    try:
        return one.apply(index)
    except Exception as error:
        op = index.current
        raise unexpected_error(
            error,
            f"pass {one.name}",
            op=op.type if op else None,
            node=(op.source or op.name) if op else None,
        ) from error


def _run_one(one: Pass, graph: Graph) -> int:
    """Run a pass without an index; its exceptions become errors that name it."""
    try:
        return one.run(graph)
    except VkmnnError:
        raise
    except Exception as error:
        raise unexpected_error(error, f"pass {one.name}") from error


def _check(one: Pass, graph: Graph) -> None:
    """Reject an invalid graph from a plug-in's pass."""
    try:
        graph.validate()
    except ModelError as error:
        raise PluginError(
            f"pass {one.name} left an invalid graph: {error.message}",
            op=error.op,
            node=error.node,
            hint="VKMNN_PLUGINS=off runs vkmnn without plug-ins",
        ) from error


def _run(graph: Graph, table: Sequence[Pass], meter: Meter) -> None:
    """Run passes in turns until each has run since the last rewrite."""
    if not table:
        return
    unchanged = 0  # passes since the last rewrite
    for number in range(1, MAX_ROUNDS + 1):
        index: GraphIndex | None = None
        for one in table:
            start = time.perf_counter()
            if isinstance(one, IndexedPass):
                index = index or GraphIndex(graph, meter)
                count = _apply(one, index)
                if count:
                    index.commit()
            else:
                count = _run_one(one, graph)
                index = None
            if count and is_registered(one):
                _check(one, graph)
            if count:
                unchanged = 0
                elapsed = (time.perf_counter() - start) * 1e3
                log.debug("round %d, %s: %d rewrites, %.1f ms", number, one.name, count, elapsed)
                continue
            unchanged += 1
            if unchanged == len(table):
                return
    log.warning(
        "graph '%s' still changed after %d rounds of passes; it is correct, but a pass undoes"
        " what another does",
        graph.name,
        MAX_ROUNDS,
    )
