"""Compares the declarations of a template with its SPIR-V; any difference is an error."""

from __future__ import annotations

from collections.abc import Iterator

from vkmnn.codegen.declare import ELEMENTS, LOCAL_SIZE_NAMES, Declarations
from vkmnn.codegen.features import CAPABILITY_FEATURE, FLOOR_CAPABILITIES
from vkmnn.codegen.reflect import Reflection
from vkmnn.errors import ShaderError


def cross_check(
    file: str, declared: Declarations, found: Reflection, requires: frozenset[str]
) -> list[ShaderError]:
    """Return one error per difference, each with the line of the declaration."""
    return [
        ShaderError(message, template=place[0], line=place[1], hint=hint)
        for message, place, hint in (
            *_bindings(file, declared, found),
            *_params(file, declared, found),
            *_specs(file, declared, found),
            *_capabilities(file, found, requires),
        )
    ]


_REQUIRE = 'add "{0}" to "requires" in macro.json, or requires=["{0}"] to vkmnn.shader'
_Problem = tuple[str, tuple[str, int], str | None]


def _bindings(file: str, declared: Declarations, found: Reflection) -> Iterator[_Problem]:
    shared = {view.index for view in declared.views}
    # Names distinguish variables at one binding.
    reflected = {
        (real.set, real.index, real.name if real.index in shared else ""): real
        for real in found.bindings
    }
    for binding in (*declared.bindings, *declared.views):
        name = binding.name if binding.index in shared else ""
        real = reflected.pop((0, binding.index, name), None)
        if real is None:
            yield (
                f"tensor '{binding.name}' (binding {binding.index}) is declared but never used",
                binding.line,
                "declare it only where it is used ({% if … %}), or use it",
            )
            continue
        element = ELEMENTS[binding.element]
        texel = binding.type != "storage"
        sampled = binding.type == "image" and binding.access == "r"
        wanted: dict[str, object] = {
            "type": binding.type,
            "access": binding.access,
            "format": element.texel if texel and not sampled else None,
            "element": None if texel else element.stored,
            "stride": None if texel else element.size,
        }
        for what, value in wanted.items():
            if getattr(real, what) != value:
                yield (
                    (
                        f"tensor '{binding.name}': declared {what} {value!r}, "
                        f"the SPIR-V has {getattr(real, what)!r}"
                    ),
                    binding.line,
                    None,
                )
    for (group, index, _), real in reflected.items():
        yield (
            (
                f"the SPIR-V has {real.type} '{real.name}' at set {group}, binding {index}, "
                "which no helper declared"
            ),
            (file, 1),
            "declare every tensor with tensor_in, tensor_out or tensor_inout",
        )


def _params(file: str, declared: Declarations, found: Reflection) -> Iterator[_Problem]:
    place = declared.params_line or (file, 1)
    wanted = [(param.name, param.type, param.count, param.offset) for param in declared.params]
    real = [
        (member.name, member.type, member.count, member.offset) for member in found.push_constants
    ]
    if wanted and not real:
        yield ("params is declared but never used", place, "take the block out, or use it")
    elif wanted != real:
        yield (f"params: declared {wanted}, the SPIR-V has {real}", place, "use {{ params(…) }}")


def _specs(file: str, declared: Declarations, found: Reflection) -> Iterator[_Problem]:
    wanted = {spec.id: (spec.type, spec.default) for spec in declared.specs}
    if declared.local_size:
        wanted |= {i: ("uint", size) for i, size in enumerate(declared.local_size)}
    names = [*LOCAL_SIZE_NAMES, *(spec.name for spec in declared.specs)]
    for spec in found.spec_constants:
        if spec.id not in wanted:
            yield (
                (
                    f"the SPIR-V has specialization constant {spec.id} '{spec.name}', "
                    "which no helper declared"
                ),
                (file, 1),
                "use {{ spec(…) }}",
            )
        elif not _same(wanted[spec.id], (spec.type, spec.default)):
            yield (
                (
                    f"specialization constant '{names[spec.id]}': declared {wanted[spec.id]}, "
                    f"the SPIR-V has {(spec.type, spec.default)}"
                ),
                (file, 1),
                None,
            )
    if found.local_size != declared.local_size:
        yield (
            f"local_size: declared {declared.local_size}, the SPIR-V has {found.local_size}",
            (file, 1),
            "use {{ local_size(…) }} and no layout(local_size_…)",
        )


def _same(a: tuple[str, int | float | bool], b: tuple[str, int | float | bool]) -> bool:
    if a[0] != b[0]:
        return False
    if a[0] == "float":  # the SPIR-V holds the value rounded to 32 bits
        return abs(a[1] - b[1]) <= 1e-6 * abs(a[1])
    return a[1] == b[1]


def _capabilities(file: str, found: Reflection, requires: frozenset[str]) -> Iterator[_Problem]:
    if found.entry_points != ("main",):
        yield (f"entry points {found.entry_points}, expected only 'main'", (file, 1), None)
    for capability in found.capabilities:
        if capability in FLOOR_CAPABILITIES:
            continue
        feature = CAPABILITY_FEATURE.get(capability)
        if feature is None:
            yield (
                f"the SPIR-V uses capability {capability}, for which vkmnn has no feature name",
                (file, 1),
                "add it to vkmnn/codegen/features.py and to the runtime's feature query",
            )
        elif feature not in requires:
            yield (
                f"the SPIR-V uses capability {capability}: 'requires' does not list '{feature}'",
                (file, 1),
                _REQUIRE.format(feature),
            )
