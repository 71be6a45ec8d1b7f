"""Detectors that end in their own choice of boxes: anchor-free, single-shot, and in two stages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.networks.written import Feeds, Written, network, normal

_HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def _grid(step: int) -> str:
    """Return the nodes that place points on a feature map, from its shape, as traced."""
    return f"""
        shape{step} = Shape (map{step})
        rows{step} = Gather (shape{step}, two)
        columns{step} = Gather (shape{step}, three)
        down{step} = Range (zero, rows{step}, one)
        across{step} = Range (zero, columns{step}, one)
        down_f{step} = Cast <to = 1> (down{step})
        across_f{step} = Cast <to = 1> (across{step})
        down_h{step} = Add (down_f{step}, half)
        across_h{step} = Add (across_f{step}, half)
        row_1{step} = Unsqueeze (rows{step}, a0)
        column_1{step} = Unsqueeze (columns{step}, a0)
        plane{step} = Concat <axis = 0> (row_1{step}, column_1{step})
        down_2{step} = Unsqueeze (down_h{step}, a1)
        down_e{step} = Expand (down_2{step}, plane{step})
        across_e{step} = Expand (across_h{step}, plane{step})
        down_l{step} = Reshape (down_e{step}, flat)
        across_l{step} = Reshape (across_e{step}, flat)
        across_u{step} = Unsqueeze (across_l{step}, a0)
        down_u{step} = Unsqueeze (down_l{step}, a0)
        points{step} = Concat <axis = 0> (across_u{step}, down_u{step})
        steps{step} = ConstantOfShape <value = float[1] {{{step}.0}}> (plane{step})
        steps_l{step} = Reshape (steps{step}, flat)
        steps_u{step} = Unsqueeze (steps_l{step}, a0)
    """


def yolo() -> onnx.ModelProto:
    """Return a small anchor-free detector: boxes as distributions over 8 bins, then NMS."""
    text = f"""{_HEADER}
    yolo (float[1, 3, h, w] images) => (int64[n, 3] selected, float[n, 4] found, float[n] sure)
    {{
        c0 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (images, k0, b0)
        s0 = Sigmoid (c0)
        x0 = Mul (c0, s0)
        c1 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x0, k1, b1)
        s1 = Sigmoid (c1)
        x1 = Mul (c1, s1)
        c2 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x1, k2, b2)
        s2 = Sigmoid (c2)
        map8 = Mul (c2, s2)
        c3 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (map8, k3, b3)
        s3 = Sigmoid (c3)
        deep = Mul (c3, s3)
        up = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
                     nearest_mode = "floor"> (deep, , twice)
        joined = Concat <axis = 1> (up, map8)
        fine = Conv (joined, k4, b4)
        map16 = MaxPool <kernel_shape = [3, 3], strides = [1, 1], pads = [1, 1, 1, 1]> (deep)
        d8 = Conv (fine, box8, box8_b)
        d16 = Conv (map16, box16, box16_b)
        l8 = Conv (fine, class8, class8_b)
        l16 = Conv (map16, class16, class16_b)
        t8 = Concat <axis = 1> (d8, l8)
        t16 = Concat <axis = 1> (d16, l16)
        r8 = Reshape (t8, levels)
        r16 = Reshape (t16, levels)
        both = Concat <axis = 2> (r8, r16)
        bins, classes = Split <axis = 1> (both, parts)
        bins_4 = Reshape (bins, bin_shape)
        bins_t = Transpose <perm = [0, 2, 1, 3]> (bins_4)
        chances = Softmax <axis = 1> (bins_t)
        sides_4 = Conv (chances, numbers)
        sides = Reshape (sides_4, side_shape)
        {_grid(8)}
        {_grid(16)}
        points_2 = Concat <axis = 1> (points8, points16)
        steps_2 = Concat <axis = 1> (steps_u8, steps_u16)
        points = Unsqueeze (points_2, a0)
        before, after = Split <axis = 1> (sides, pairs)
        low = Sub (points, before)
        high = Add (points, after)
        sum = Add (low, high)
        centre = Div (sum, two_f)
        extent = Sub (high, low)
        corners = Concat <axis = 1> (centre, extent)
        boxes_c = Mul (corners, steps_2)
        boxes = Transpose <perm = [0, 2, 1]> (boxes_c)
        scores = Sigmoid (classes)
        selected = NonMaxSuppression <center_point_box = 1> (boxes, scores, most, overlap, least)
        index = Gather <axis = 1> (selected, two)
        all_boxes = Squeeze (boxes, a0)
        found = Gather (all_boxes, index)
        sure = GatherND (scores, selected)
    }}"""
    weights = {
        "k0": (16, 3, 3, 3), "k1": (24, 16, 3, 3), "k2": (32, 24, 3, 3), "k3": (48, 32, 3, 3),
        "k4": (32, 80, 1, 1), "box8": (32, 32, 1, 1), "box16": (32, 48, 1, 1),
        "class8": (5, 32, 1, 1), "class16": (5, 48, 1, 1),
        "b0": (16,), "b1": (24,), "b2": (32,), "b3": (48,), "b4": (32,),
        "box8_b": (32,), "box16_b": (32,), "class8_b": (5,), "class16_b": (5,),
    }  # fmt: skip
    constants = {
        "twice": np.array([1, 1, 2, 2], np.float32), "levels": np.array([1, 37, -1]),
        "parts": np.array([32, 5]), "bin_shape": np.array([1, 4, 8, -1]),
        "numbers": np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1),
        "side_shape": np.array([1, 4, -1]), "pairs": np.array([2, 2]),
        "half": np.float32(0.5), "two_f": np.float32(2),
        "zero": np.int64(0), "one": np.int64(1), "two": np.int64(2), "three": np.int64(3),
        "a0": np.array([0]), "a1": np.array([1]), "flat": np.array([-1]),
        "most": np.array([20]), "overlap": np.float32([0.5]), "least": np.float32([0.45]),
    }  # fmt: skip
    return network(text, weights, constants)


def ssd() -> onnx.ModelProto:
    """Return a single-shot detector: priors in constants, NMS, then TopK of a computed number."""
    text = f"""{_HEADER}
    ssd (float[1, 3, 64, 64] image) =>
        (float[1, k, 4] boxes, int64[1, k] labels, float[1, k] scores)
    {{
        c0 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (image, k0, b0)
        x0 = Clip (c0, low, six)
        c1 = Conv <strides = [2, 2], pads = [1, 1, 1, 1], group = 16> (x0, k1)
        n1 = BatchNormalization (c1, gain, bias, mean, var)
        x1 = Clip (n1, low, six)
        c2 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x1, k2, b2)
        x2 = Relu (c2)
        c3 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x2, k3, b3)
        x3 = Relu (c3)
        box_a = Conv <pads = [1, 1, 1, 1]> (x2, loc_a)
        box_b = Conv <pads = [1, 1, 1, 1]> (x3, loc_b)
        sort_a = Conv <pads = [1, 1, 1, 1]> (x2, conf_a)
        sort_b = Conv <pads = [1, 1, 1, 1]> (x3, conf_b)
        box_at = Transpose <perm = [0, 2, 3, 1]> (box_a)
        box_bt = Transpose <perm = [0, 2, 3, 1]> (box_b)
        sort_at = Transpose <perm = [0, 2, 3, 1]> (sort_a)
        sort_bt = Transpose <perm = [0, 2, 3, 1]> (sort_b)
        box_ar = Reshape (box_at, to_boxes)
        box_br = Reshape (box_bt, to_boxes)
        sort_ar = Reshape (sort_at, to_classes)
        sort_br = Reshape (sort_bt, to_classes)
        offsets = Concat <axis = 1> (box_ar, box_br)
        logits = Concat <axis = 1> (sort_ar, sort_br)
        xy, wh = Split <axis = 2> (offsets, pairs)
        xy_v = Mul (xy, variance_xy)
        xy_p = Mul (xy_v, prior_wh)
        centre = Add (xy_p, prior_xy)
        wh_v = Mul (wh, variance_wh)
        wh_e = Exp (wh_v)
        size = Mul (wh_e, prior_wh)
        half = Div (size, two_f)
        top = Sub (centre, half)
        end = Add (centre, half)
        corners = Concat <axis = 2> (top, end)
        chances = Softmax <axis = 2> (logits)
        by_class = Transpose <perm = [0, 2, 1]> (chances)
        real = Slice (by_class, a1, far, a1)
        chosen = NonMaxSuppression (corners, real, most, overlap, least)
        count = Shape (chosen)
        count_0 = Slice (count, a0, a1, a0)
        bound = Concat <axis = 0> (count_0, limit)
        k = ReduceMin <keepdims = 1> (bound)
        values = GatherND (real, chosen)
        best, order = TopK <axis = 0> (values, k)
        picked = Gather (chosen, order)
        label = Gather <axis = 1> (picked, one)
        place = Gather <axis = 1> (picked, two)
        label_1 = Add (label, one)
        labels = Unsqueeze (label_1, a0)
        boxes = Gather <axis = 1> (corners, place)
        scores = Unsqueeze (best, a0)
    }}"""
    weights = {
        "k0": (16, 3, 3, 3), "k1": (16, 1, 3, 3), "k2": (24, 16, 3, 3), "k3": (32, 24, 3, 3),
        "loc_a": (8, 24, 3, 3), "loc_b": (8, 32, 3, 3), "conf_a": (8, 24, 3, 3),
        "conf_b": (8, 32, 3, 3), "b0": (16,), "b2": (24,), "b3": (32,),
    }  # fmt: skip
    centres = [
        ((x + 0.5) / n, (y + 0.5) / n)
        for n in (8, 4) for y in range(n) for x in range(n) for _ in range(2)
    ]  # fmt: skip
    extents = [s for n in (8, 4) for _ in range(n * n)
               for s in ((1.5 / n, 1.5 / n), (2.0 / n, 1.0 / n))]  # fmt: skip
    constants = {
        "low": np.float32(0), "six": np.float32(6), "two_f": np.float32(2),
        "gain": np.full(16, 2, np.float32), "bias": np.full(16, 0.2, np.float32),
        "mean": np.linspace(-0.2, 0.2, 16, dtype=np.float32), "var": np.ones(16, np.float32),
        "to_boxes": np.array([1, -1, 4]), "to_classes": np.array([1, -1, 4]),
        "pairs": np.array([2, 2]), "prior_xy": np.array([centres], np.float32),
        "prior_wh": np.array([extents], np.float32), "variance_xy": np.float32(0.1),
        "variance_wh": np.float32(0.2), "far": np.array([2**63 - 1]), "a0": np.array([0]),
        "a1": np.array([1]), "one": np.int64(1), "two": np.int64(2), "limit": np.array([25]),
        "most": np.array([12]), "overlap": np.float32([0.45]), "least": np.float32([0.3]),
    }  # fmt: skip
    return network(text, weights, constants)


def two_stage() -> onnx.ModelProto:
    """Return a two-stage detector: proposals, NonZero over their sizes, RoiAlign, classes."""
    text = f"""{_HEADER}
    rcnn (float[1, 3, 64, 96] image) => (float[m, 4] boxes, float[m] scores, int64[m] labels)
    {{
        c0 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (image, k0, b0)
        x0 = Relu (c0)
        c1 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x0, k1, b1)
        x1 = Relu (c1)
        c2 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x1, k2, b2)
        map = Relu (c2)
        rpn = Conv <pads = [1, 1, 1, 1]> (map, k3, b3)
        rpn_r = Relu (rpn)
        object = Conv (rpn_r, k4)
        shifts = Conv (rpn_r, k5)
        object_t = Transpose <perm = [0, 2, 3, 1]> (object)
        object_l = Reshape (object_t, flat)
        shifts_t = Transpose <perm = [0, 2, 3, 1]> (shifts)
        shifts_l = Reshape (shifts_t, rows_of_4)
        best, order = TopK (object_l, first)
        some = Gather (shifts_l, order)
        some_anchors = Gather (anchors, order)
        d_xy, d_wh = Split <axis = 1> (some, pairs)
        a_low, a_high = Split <axis = 1> (some_anchors, pairs)
        a_wh = Sub (a_high, a_low)
        a_half = Mul (a_wh, half)
        a_xy = Add (a_low, a_half)
        step = Mul (d_xy, a_wh)
        p_xy = Add (step, a_xy)
        d_small = Clip (d_wh, , bound)
        grow = Exp (d_small)
        p_wh = Mul (grow, a_wh)
        p_half = Mul (p_wh, half)
        p_low = Sub (p_xy, p_half)
        p_high = Add (p_xy, p_half)
        low = Max (p_low, nothing)
        low_c = Min (low, whole)
        high = Max (p_high, nothing)
        high_c = Min (high, whole)
        proposals = Concat <axis = 1> (low_c, high_c)
        wide = Sub (high_c, low_c)
        enough = GreaterOrEqual (wide, smallest)
        enough_i = Cast <to = 7> (enough)
        sides = ReduceSum <keepdims = 0> (enough_i, a1)
        large = Equal (sides, two)
        places = NonZero (large)
        place = Squeeze (places, a0)
        kept = Gather (proposals, place)
        kept_s = Gather (best, place)
        kept_3 = Unsqueeze (kept, a0)
        kept_s2 = Unsqueeze (kept_s, a0)
        kept_s3 = Unsqueeze (kept_s2, a0)
        nms = NonMaxSuppression (kept_3, kept_s3, most, overlap)
        kept_i = Gather <axis = 1> (nms, two)
        rois = Gather (kept, kept_i)
        roi_shape = Shape (rois)
        roi_count = Slice (roi_shape, a0, a1, a0)
        batch = ConstantOfShape <value = int64[1] {{0}}> (roi_count)
        cut = RoiAlign <output_height = 5, output_width = 5, sampling_ratio = 2,
                        spatial_scale = 0.125, coordinate_transformation_mode = "half_pixel">
                       (map, rois, batch)
        vector = Flatten <axis = 1> (cut)
        f0 = Gemm <transB = 1> (vector, w6, b6)
        f0_r = Relu (f0)
        f1 = Gemm <transB = 1> (f0_r, w7, b7)
        chances = Softmax <axis = 1> (f1)
        real = Slice (chances, a1, far, a1)
        sure = Greater (real, threshold)
        hits = NonZero (sure)
        hit_t = Transpose <perm = [1, 0]> (hits)
        boxes_at, labels_at = Split <axis = 1> (hit_t, one_each)
        who = Squeeze (boxes_at, a1)
        which = Squeeze (labels_at, a1)
        b_all = Gather (rois, who)
        s_all = GatherND (real, hit_t)
        label_f = Cast <to = 1> (which)
        reach = ReduceMax <keepdims = 0> (b_all)
        reach_1 = Add (reach, one_f)
        apart = Mul (label_f, reach_1)
        apart_2 = Unsqueeze (apart, a1)
        moved = Add (b_all, apart_2)
        moved_3 = Unsqueeze (moved, a0)
        s_2 = Unsqueeze (s_all, a0)
        s_3 = Unsqueeze (s_2, a0)
        last = NonMaxSuppression (moved_3, s_3, most, overlap_2)
        last_i = Gather <axis = 1> (last, two)
        boxes = Gather (b_all, last_i)
        scores = Gather (s_all, last_i)
        label = Gather (which, last_i)
        labels = Add (label, one)
    }}"""
    weights = {
        "k0": (12, 3, 3, 3), "k1": (16, 12, 3, 3), "k2": (24, 16, 3, 3), "k3": (24, 24, 3, 3),
        "k4": (3, 24, 1, 1), "k5": (12, 24, 1, 1), "w6": (48, 600), "w7": (5, 48),
        "b0": (12,), "b1": (16,), "b2": (24,), "b3": (24,), "b6": (48,), "b7": (5,),
    }  # fmt: skip
    anchors = [
        (8 * x + 4 - w / 2, 8 * y + 4 - h / 2, 8 * x + 4 + w / 2, 8 * y + 4 + h / 2)
        for y in range(8) for x in range(12) for w, h in ((16, 16), (24, 12), (12, 24))
    ]  # fmt: skip
    constants = {
        "anchors": np.array(anchors, np.float32), "flat": np.array([-1]),
        "rows_of_4": np.array([-1, 4]), "first": np.array([100]), "pairs": np.array([2, 2]),
        "one_each": np.array([1, 1]), "half": np.float32(0.5), "bound": np.float32(4.135),
        "nothing": np.float32(0), "whole": np.array([96, 64], np.float32),
        "smallest": np.float32(6), "a0": np.array([0]), "a1": np.array([1]),
        "one": np.int64(1), "two": np.int64(2), "one_f": np.float32(1),
        "far": np.array([2**63 - 1]), "most": np.array([30]), "overlap": np.float32([0.7]),
        "overlap_2": np.float32([0.5]), "threshold": np.float32(0.2),
    }  # fmt: skip
    return network(text, weights, constants)


def _images(name: str, *sizes: tuple[int, int]) -> Callable[[np.random.Generator], list[Feeds]]:
    return lambda random: [{name: normal(random, 1, 3, *size)} for size in sizes]


DETECTORS = {
    "yolo": Written(
        "anchor-free detector with distributions of box sides, NMS",
        yolo,
        _images("images", (64, 96), (96, 32), (64, 96)),
    ),
    "ssd": Written(
        "single-shot detector: priors, NMS, TopK of a computed number",
        ssd,
        _images("image", (64, 64), (64, 64)),
    ),
    "two_stage": Written(
        "two-stage detector: proposals, NonZero, RoiAlign, NMS by class",
        two_stage,
        _images("image", (64, 96), (64, 96)),
    ),
}
