"""vkmnn on clusters of Ray: `Predictor` for Ray Data, `deployment` for Ray Serve."""

from __future__ import annotations

from vkmnn.ray.devices import RESOURCE, node_resources, on_devices
from vkmnn.ray.predictor import Predictor
from vkmnn.ray.serving import deployment

__all__ = ["RESOURCE", "Predictor", "deployment", "node_resources", "on_devices"]
