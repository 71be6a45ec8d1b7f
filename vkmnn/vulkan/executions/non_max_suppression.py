"""NonMaxSuppression: the best boxes of each class, without those that overlap better ones."""

from __future__ import annotations

from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType
from vkmnn.ir.ops import NonMaxSuppressionAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.recorder import linear_groups
from vkmnn.shaders import kernels
from vkmnn.shape.boxes import boxes_per_class
from vkmnn.vulkan.device_rules import CPU_SUBGROUPS, MAX_LOOP_ROUNDS, cpu_lanes, is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.sorting.tournament import Tournament, tournaments

WIDE = 128
"""Invocations of a workgroup; sorting takes 17 words of shared memory for each."""
SORT_FEW = 128
"""Boxes that nms_sort sorts by comparisons; it sorts more by digits."""
FEW = 16
"""Dispatches that cost less than wide workgroups on CPU devices."""
MAX_PARTS = 1_024
"""Maximum dispatches that choose boxes; each continues where the last one stopped."""


def sort_rounds(size: int, lanes: int) -> int:
    """Return the number of loop iterations of a lane that sorts a row.

    It examines its words of 32 boxes twice for candidates. To sort many, it processes its piece of
    them twice for each of eight digits, and the 16 values of a digit; few are compared.
    """
    words = ceil_div(ceil_div(size, 32), lanes)
    many = 8 * (2 * ceil_div(size, lanes) + 3 * 16 + 20)
    few = (ceil_div(SORT_FEW, lanes) + 1) * (SORT_FEW + 4)
    return 2 * 34 * (words + 1) + max(many, few)


def choice_parts(size: int, most: int, lanes: int) -> int:
    """Return the number of dispatches needed to choose `most` of `size` boxes.

    A group of boxes takes a round for each box chosen before, and one for each of its own.
    """
    groups = ceil_div(size, lanes)
    growing = min(groups, ceil_div(most, lanes))
    rounds = groups * (lanes + 1) + lanes * growing * (growing - 1) // 2 + most * (groups - growing)
    usable = MAX_LOOP_ROUNDS - 2 * (most + 2 * lanes + 2)
    return MAX_PARTS + 1 if usable <= 0 else ceil_div(rounds, usable)


@vulkan_execution("NonMaxSuppression")
class NonMaxSuppressionExecution(VulkanExecution[NonMaxSuppressionAttrs]):
    """Chooses the boxes of each class, sorted or by tournament; writes all classes in a row."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject more boxes than the loops of an invocation allow."""
        images, self._classes, self._size = self.operand(1).shape
        self._rows = images * self._classes
        self._most = boxes_per_class([None, None, self.operand(2).value], self._size)
        if (
            sort_rounds(self._size, WIDE) > MAX_LOOP_ROUNDS
            or choice_parts(self._size, self._most, WIDE) > MAX_PARTS
            or self._rows + 4 * self._most > min(CPU_SUBGROUPS) * MAX_LOOP_ROUNDS
        ):
            chosen = f"{self._most} of {self._size} boxes"
            raise Rejection(f"{chosen} of each of {self._rows} classes are too many")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record choosing and gathering."""
        rows = self._rows if self._most else 0
        y = self.result(0) or encoder.scratch(max(1, 3 * rows * self._most), DType.INT32)
        count = self.result(1) or encoder.scratch(1, DType.INT32)
        chosen, state = count, count
        if rows:
            chosen = encoder.scratch(rows * self._most, DType.INT32)
            state = encoder.scratch(2 * rows, DType.INT32)
            way = self._way(encoder)
            if way is None:
                self._choose(*self._sorted(encoder), chosen, state, encoder)
            else:
                self._hold(way, chosen, state, encoder)
        encoder.dispatch(
            kernels.nms_gather(load=encoder.load),
            [chosen, state, y, count],
            kernels.NmsGatherParams(rows=rows, classes=max(1, self._classes), most=self._most),
            linear_groups(max(rows, 1), 1, encoder.info.limits),
            {"local_size_x": WIDE if is_gpu(encoder.info) else cpu_lanes(encoder.info)},
        )

    def _way(self, encoder: VulkanEncoder) -> Tournament | None:
        """Return the tournament that yields the boxes; None if they are sorted."""
        info, problem = encoder.info, (self._rows, self._size, self._most)
        found: list[Tournament | None] = []
        if "texel" in encoder.loads:
            found += tournaments(info, self._size, self._most, short=encoder.offers_all)
        sort = 0 if is_gpu(info) else len(found)
        found.insert(sort, None)
        return encoder.choose("suppression", problem, found)

    def _hold(self, way: Tournament, chosen: Tensor, state: Tensor, encoder: VulkanEncoder) -> None:
        """Record a tournament, in as many parts as it needs."""
        rows, size, most = self._rows, self._size, self._most
        boxes, scores = self.operand(0), self.operand(1)
        limit, least = self.optional(3), self.optional(4)
        edges = encoder.scratch(4 * rows * most)
        params = kernels.NmsTournamentParams(
            rows=rows,
            classes=self._classes,
            size=size,
            block=way.block(size),
            most=most,
            rounds=way.rounds,
        )
        for part in range(way.parts(size, most)):
            encoder.dispatch(
                kernels.nms_tournament(lanes=way.lanes, width=4 if size % 4 == 0 else 1),
                [scores, least or scores, boxes, limit or boxes, edges, chosen, state],
                params,
                linear_groups(rows, 1, encoder.info.limits),
                {
                    "FIRST": part == 0,
                    "CENTER": self.attrs.center,
                    "HAS_LIMIT": limit is not None,
                    "HAS_THRESHOLD": least is not None,
                },
            )

    def _sorted(self, encoder: VulkanEncoder) -> tuple[Tensor, Tensor]:
        """Record the sorting; return the candidates of each row, and their number."""
        rows, size = self._rows, self._size
        scores, least = self.operand(1), self.optional(4)
        order = encoder.scratch(rows * size, DType.INT32)
        spare = encoder.scratch(rows * size, DType.INT32)
        counts = encoder.scratch(rows, DType.INT32)
        narrow = WIDE if is_gpu(encoder.info) else cpu_lanes(encoder.info)
        lanes = narrow if sort_rounds(size, narrow) <= MAX_LOOP_ROUNDS else WIDE
        wide = size % 4 == 0
        encoder.dispatch(
            kernels.nms_sort(width=4 if wide else 1, load=encoder.load),
            [scores, *[scores] * wide, least or scores, order, spare, counts],
            kernels.NmsSortParams(rows=rows, size=size),
            linear_groups(rows, 1, encoder.info.limits),
            {"local_size_x": lanes, "HAS_THRESHOLD": least is not None},
        )
        return order, counts

    def _choose(
        self, order: Tensor, counts: Tensor, chosen: Tensor, state: Tensor, encoder: VulkanEncoder
    ) -> None:
        """Record the dispatches that choose boxes, as many as necessary."""
        boxes, limit = self.operand(0), self.optional(3)
        narrow = WIDE if is_gpu(encoder.info) else cpu_lanes(encoder.info)
        lanes = narrow if choice_parts(self._size, self._most, narrow) <= FEW else WIDE
        params = kernels.NmsChooseParams(
            rows=self._rows,
            classes=self._classes,
            size=self._size,
            most=self._most,
            rounds=MAX_LOOP_ROUNDS,
        )
        for part in range(choice_parts(self._size, self._most, lanes)):
            encoder.dispatch(
                kernels.nms_choose(load=encoder.load),
                [boxes, order, counts, limit or boxes, chosen, state],
                params,
                linear_groups(self._rows, 1, encoder.info.limits),
                {
                    "local_size_x": lanes,
                    "FIRST": part == 0,
                    "CENTER": self.attrs.center,
                    "HAS_LIMIT": limit is not None,
                },
            )
