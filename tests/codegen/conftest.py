from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the extra 'codegen' is not installed")

from vkmnn.codegen.build import Built, build
from vkmnn.codegen.compiler import Compiler
from vkmnn.codegen.compilers import find_compiler
from vkmnn.errors import ShaderError

SCALE = """\
{# y = alpha * x on flat groups of four. #}
{{ local_size(64) }}
{{ tensor_in("x", vec(dtype, 4), load=load) }}
{{ tensor_out("y", vec(dtype, 4)) }}
{{ params("n4:uint", "alpha:float=1.0", "steps:uint[3]") }}
{{ spec("SHIFT", "float", 0.5) }}
{% include "include/common.glsl.j2" %}
{% macro body(name) %}
    vec4 {{ name }} = x_load(i);
    {{ name }} *= pc.alpha;
{% endmacro %}

void main()
{
    uint i = global_index();
    if (i >= pc.n4)
        return;
    {{ body("value") }}
{% for k in range(2) %}
    value += SHIFT * {{ k }}.0;
{% endfor %}
    y_store(i, value);
}
"""
SCALE_ENTRY = {
    "axes": {"dtype": ["f32", "f16"], "load": ["buffer", "texel"]},
    "exclude": [{"dtype": "f16", "load": "texel"}],
    "requires": {"dtype=f16": ["storage16"]},
    "op_type": "Scale",
}


class Project:
    """A folder like vkmnn/shaders, to build templates in."""

    def __init__(self, root: Path, compiler: Compiler | None = None) -> None:
        self.root = root
        self.glsl = root / "glsl"
        self.glsl.mkdir(parents=True)
        self._compiler = compiler

    def write(self, name: str, text: str) -> None:
        path = self.glsl / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")

    def macro(self, entries: Mapping[str, object] | str) -> None:
        text = entries if isinstance(entries, str) else json.dumps(entries, indent=2)
        self.write("macro.json", text)

    def build(self, **options: object) -> Built:
        assert self._compiler is not None
        return build(self.glsl, self._compiler, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _cache_in_tmp(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    try:
        return find_compiler()
    except ShaderError as error:
        pytest.skip(error.message)


@pytest.fixture
def bare(tmp_path: Path) -> Project:
    """A project that is only rendered, never compiled."""
    return Project(tmp_path / "bare")


@pytest.fixture
def project(tmp_path: Path, compiler: Compiler) -> Project:
    """A project with one template, `scale`, and three variants."""
    made = Project(tmp_path / "shaders", compiler)
    made.write("scale.comp.j2", SCALE)
    made.macro({"scale.comp.j2": SCALE_ENTRY})
    return made
