"""Expressions of sizes in files of torch.export, which PyTorch evaluates when it loads them."""

from __future__ import annotations

import ast

_LONGEST = 10_000
_LARGEST_POWER = 16
_POWERS = {"Pow", "PowByNatural", "FloatPow", "LShift"}
_NAMES = {
    *_POWERS,
    # sympy's
    *("Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Mod", "Max", "Min", "Abs"),
    *("floor", "ceiling", "Floor", "Ceil", "And", "Or", "Not", "Eq", "Equality", "Ne"),
    *("Unequality", "Gt", "Ge", "Lt", "Le", "StrictGreaterThan", "GreaterThan"),
    *("StrictLessThan", "LessThan", "Piecewise", "ExprCondPair", "Tuple"),
    # torch.utils._sympy's
    *("FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt"),
    *("CeilDiv", "IntTrueDiv", "FloatTrueDiv", "RShift", "IsNonOverlappingAndDenseIndicator"),
    *("TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat", "Identity"),
}
_PLAIN = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.keyword, ast.UnaryOp, ast.BoolOp),
    *(ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Tuple),
)


def is_size(text: str) -> bool:
    """Return whether a text is an expression of sizes, which takes no time to evaluate."""
    if len(text) > _LONGEST:
        return False
    try:
        tree = ast.parse(text, mode="eval")
        return all(map(_is_plain, ast.walk(tree)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return not node.id.startswith("__")
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.Pow) or _is_small(node.left, node.right)
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id not in _NAMES:
            return False
        return node.func.id not in _POWERS or (
            len(node.args) == 2 and not node.keywords and _is_small(*node.args)
        )
    return isinstance(node, _PLAIN)


def _is_small(base: ast.expr, power: ast.expr) -> bool:
    """Return whether a power is a small number, and its base no power."""
    inside = power.args[0] if isinstance(power, ast.Call) and len(power.args) == 1 else power
    if isinstance(inside, ast.UnaryOp) and isinstance(inside.op, ast.USub):
        inside = inside.operand
    small = isinstance(inside, ast.Constant) and isinstance(inside.value, int | float)
    return (
        small
        and inside.value <= _LARGEST_POWER  # type: ignore[attr-defined]
        and not any(
            isinstance(node, ast.Pow)
            or (isinstance(node, ast.Call) and getattr(node.func, "id", "") in _POWERS)
            for node in ast.walk(base)
        )
    )
