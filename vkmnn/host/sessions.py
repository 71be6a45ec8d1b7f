"""Sessions of onnxruntime whose results do not depend on the processor.

Every session of onnxruntime in the package and in its tests is opened with these options. Without
VNNI, onnxruntime's kernels for x86 add pairs of products of uint8 and int8 in 16 bits, which
saturate. `session.x64quantprecision` makes it convert constant int8 weights to uint8 first, but
only among its extended optimisations. `exact_codes.py` does the same at every level and for
computed weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkmnn.host.genuine import genuine_onnxruntime

if TYPE_CHECKING:
    import onnxruntime

_FATAL = 4
_EXACT_SUMS = "session.x64quantprecision"


def session_options(
    *,
    optimised: bool = True,
    threads: int = 0,
    log_severity: int = _FATAL,
    exact_sums: bool = True,
) -> onnxruntime.SessionOptions:
    """Return session options with exact sums of quantised values for constant weights.

    Args:
        optimised: with all graph optimisations, or with none: nodes as they are in the model.
        threads: number of threads for one node; 0: onnxruntime's default.
        log_severity: the lowest severity that is logged, from 0 (verbose) to 4 (fatal).
        exact_sums: False for models that onnxruntime fails on otherwise (`lacks_zero_points`).

    Raises:
        ImportError: onnxruntime is not installed.
    """
    onnxruntime = genuine_onnxruntime()
    options = onnxruntime.SessionOptions()
    if exact_sums:
        options.add_session_config_entry(_EXACT_SUMS, "1")
    options.intra_op_num_threads = threads
    options.log_severity_level = log_severity
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    )
    return options
