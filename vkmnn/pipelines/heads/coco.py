"""The classes of COCO, on which most published detectors were trained."""

from __future__ import annotations

COCO = tuple(
    """person|bicycle|car|motorcycle|airplane|bus|train|truck|boat|traffic light|fire hydrant|
stop sign|parking meter|bench|bird|cat|dog|horse|sheep|cow|elephant|bear|zebra|giraffe|backpack|
umbrella|handbag|tie|suitcase|frisbee|skis|snowboard|sports ball|kite|baseball bat|baseball glove|
skateboard|surfboard|tennis racket|bottle|wine glass|cup|fork|knife|spoon|bowl|banana|apple|
sandwich|orange|broccoli|carrot|hot dog|pizza|donut|cake|chair|couch|potted plant|bed|
dining table|toilet|tv|laptop|mouse|remote|keyboard|cell phone|microwave|oven|toaster|sink|
refrigerator|book|clock|vase|scissors|teddy bear|hair drier|toothbrush""".replace("\n", "").split(
        "|"
    )
)
"""The 80 classes with contiguous indices."""

_GAPS = frozenset({0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
_NAMES = iter(COCO)
COCO_IDS = tuple("" if number in _GAPS else next(_NAMES) for number in range(91))
"""The classes by their numbers in the data set, from 1 to 90, with gaps."""

VOC = tuple(
    """aeroplane|bicycle|bird|boat|bottle|bus|car|cat|chair|cow|diningtable|dog|horse|motorbike|
person|pottedplant|sheep|sofa|train|tvmonitor""".replace("\n", "").split("|")
)
"""The 20 classes of Pascal VOC."""

BY_COUNT = {len(COCO): COCO, len(COCO_IDS): COCO_IDS, 90: COCO_IDS[1:], len(VOC): VOC}
"""The most likely classes by their number."""
