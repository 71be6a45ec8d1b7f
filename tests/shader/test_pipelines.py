"""Every variant becomes a pipeline on the available device, or the device reports why not.

Under the validation layer, which also checks a module against the enabled features. `tasks.py test`
runs this on the default device and on SwiftShader, the feature floor.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vkmnn.errors import ShaderError
from vkmnn.runtime.device import Device, enumerate_devices, open_device
from vkmnn.shaders import load_shader
from vkmnn.shaders.library import BUILTIN
from vkmnn.testing.emulation import lacking

VARIANTS: dict[str, list[str]] = {}
for variant, family, _ in BUILTIN.variants():
    VARIANTS.setdefault(family, []).append(variant)

# Templates without a variant that runs on every device, and the one that then does the same.
TWINS = {
    "attention_coop": "attention_tile",
    "attention_rotate": "attention_tile",
    "cached_attention_subgroup": "cached_attention",
    "cached_attention_wide": "cached_attention",
    "conv_codes_coop": "conv_shared",
    "conv_coop": "conv_tile",
    "conv_dot": "conv_shared",
    "conv_half": "conv_shared",
    "conv_halo_coop": "conv_tile",
    "conv_rotate": "conv_tile",
    "conv_row": "conv_tile",
    "matmul_codes_coop": "matmul_shared",
    "matmul_codes_dot": "matmul_codes",
    "matmul_coop": "matmul_tile",
    "matmul_dot": "matmul_shared",
    "matmul_half": "matmul_shared",
    "matmul_rotate": "matmul_tile",
    "nms_tournament": "nms_choose",
}
HALVES_ONLY = {"convert_width"}
"""Templates that nothing needs where floats are never stored in 16 bits."""


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    opened = open_device("auto", validation=True)
    yield opened
    opened.close()


@pytest.mark.validation
@pytest.mark.parametrize("template", VARIANTS)
def test_every_pipeline(device: Device, template: str) -> None:
    wanted = []
    for name in VARIANTS[template]:
        shader = load_shader(name)
        reason = device.supports(shader)
        if reason is None:
            if lacking(device, shader) is None:
                wanted.append((shader, {}))
            continue
        assert "lacks" in reason or f"{name} needs" in reason
        with pytest.raises(ShaderError) as caught:
            device.pipeline(shader)
        assert reason in str(caught.value)
    assert len(device.create_pipelines(wanted)) == len(wanted)


@pytest.mark.parametrize("template", sorted(VARIANTS.keys() - HALVES_ONLY))
def test_every_device_can_run_some_variant(template: str) -> None:
    """What needs a feature has a twin that needs none."""
    free = [name for name in VARIANTS[template] if not load_shader(name).requires]
    assert bool(free) != (template in TWINS)
    assert free or TWINS[template] in VARIANTS
