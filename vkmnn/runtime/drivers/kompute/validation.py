"""kp under the validation layer: enabled from outside, its messages read from the log."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.errors import ValidationLayerError
from vkmnn.runtime.drivers.layer_settings import LayerLog, layer_settings
from vkmnn.runtime.drivers.vulkan.instance import require_layer, takes_named_settings


def validated_manager(kp: Any, index: int) -> tuple[Any, LayerLog]:
    """Create a manager under the layer, and the log for its messages.

    Raises:
        ValidationLayerError: the layer is not installed, or its messages cannot be read.
    """
    require_layer()
    with layer_settings(named=takes_named_settings(), forced=True):
        manager = kp.Manager(index)
    log = LayerLog()
    _provoke(kp, manager)
    if not log.new_messages():
        manager.destroy()
        raise ValidationLayerError(
            "no message of the validation layer arrives: its settings come from elsewhere",
            hint="unset VK_LAYER_SETTINGS_PATH, and remove vk_layer_settings.txt from this folder",
        )
    return manager, log


def _provoke(kp: Any, manager: Any) -> None:
    """Provoke a validation message: kp writes timestamps without resetting the queries first."""
    tensor = manager.tensor_t(np.zeros(64, np.uint32), kp.TensorTypes.host)
    sequence = manager.sequence(0, 1)
    sequence.record(kp.OpTensorSyncDevice([tensor])).eval()
    sequence.destroy()
    tensor.destroy()
