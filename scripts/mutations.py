"""Mutants: the code with one guard missing. They are made from the syntax tree and installed into live functions.

Only guards are changed, where a change means lost safety:

- *never*: an `if` (or a condition in an expression) that is never taken; a guard that raises or returns is gone
- *always*: one that is always taken, if it does not leave the block
- *without*: an `and` or `or` without one of its parts. A test that notices this also notices `and` in place of `or`
- *edge*: `<` for `<=`, `>` for `>=`, and the reverse
- *unconditional*: a write or delete without its condition (`put` for `put_if_absent`)
- *skipped*: a `raise`, or a call whose result is not used, that does not happen
- *swapped*: two such calls, one after the other, in the other order

A mutant is named by its module, its function, its kind and its text, so that the name survives an edit elsewhere.
"""

from __future__ import annotations

import ast
import importlib
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent / "shared" / "worm"
HIT = "__worm_hit__"
UNCONDITIONAL = {"put_if_absent": "put", "put_if_match": "put", "delete_if_match": "delete"}
_STRICT: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_TEXT_MAX = 100

Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[Any, str, int | None]
"""A node, the name of its field, and the position in it if the field is a list."""


@dataclass(frozen=True)
class Edit:
    """New values for places of a tree."""

    kind: str
    text: str
    changes: tuple[tuple[Place, Any], ...]
    inside: tuple[int, ...] = ()
    """Blocks that only the original enters (or only the mutant): tests that come here notice first."""

    def apply(self) -> None:
        for (node, name, at), value in self.changes:
            if at is None:
                setattr(node, name, value)
            else:
                getattr(node, name)[at] = value


@dataclass(frozen=True)
class Mutant:
    """One edit of one function."""

    name: str
    module: str
    function: str
    line: int
    block: int
    edit: Edit = field(repr=False)


@dataclass(frozen=True)
class Source:
    """A module as a tree, with its functions that are not inside another one."""

    module: str
    tree: ast.Module
    functions: tuple[tuple[str, Function], ...]

    @classmethod
    def of(cls, module: str) -> Source:
        tree = ast.parse((PACKAGE / module).read_text())
        return cls(module, tree, tuple(_functions(tree, "")))

    def install(self, function: str, line: int) -> None:
        """Make the live function run the current tree. All references to it see the change."""
        live_function(self.module, function, line).__code__ = _code(self.compiled(), function, line)

    def compiled(self) -> types.CodeType:
        return compile(ast.fix_missing_locations(self.tree), str(PACKAGE / self.module), "exec")


def modules(prefixes: list[str]) -> list[str]:
    """Modules below `shared/worm`, by room (`store/`) or by name (`store/file.py`)."""
    found = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
    return [one for one in found if one.startswith(tuple(prefixes))]


def mutants_of(source: Source) -> list[Mutant]:
    found: list[Mutant] = []
    names: dict[str, int] = {}
    for function, node in source.functions:
        for block, line, edit in _edits(node):
            name = f"{source.module} {function}: {edit.kind}: {edit.text}"
            names[name] = names.get(name, 0) + 1
            numbered = name if names[name] == 1 else f"{name} ({names[name]})"
            found.append(Mutant(numbered, source.module, function, line, block, edit))
    return found


def _functions(node: ast.AST, path: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{path}{child.name}.")
        elif isinstance(child, Function):
            yield f"{path}{child.name}", child


def _blocks(node: ast.AST) -> Iterator[tuple[ast.AST, str, list[ast.stmt]]]:
    for inner in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(inner, name, None)
            if isinstance(block, list) and block:
                yield inner, name, block


def _edits(function: Function) -> Iterator[tuple[int, int, Edit]]:
    """Each with the block that it is in (the line of its first statement) and its own line."""
    for node, name, block in _blocks(function):
        first = block[0].lineno
        for at, statement in enumerate(block):
            if at + 1 < len(block) and _is_call(statement) and _is_call(block[at + 1]):
                there, text = (node, name, at + 1), f"{_text(statement)}; {_text(block[at + 1])}"
                changes = (((node, name, at), block[at + 1]), (there, statement))
                yield first, statement.lineno, Edit("swapped", text, changes)
            if _is_call(statement) or (isinstance(statement, ast.Raise) and not _is_guard(node, block)):
                skip = ast.copy_location(ast.Pass(), statement)
                yield first, statement.lineno, Edit("skipped", _text(statement), (((node, name, at), skip),))
            if isinstance(statement, ast.If):
                yield from ((first, statement.lineno, edit) for edit in _forced(statement))
            for part in _expressions(statement):
                yield from ((first, statement.lineno, edit) for edit in _in_expression(part))


def _is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)


def _is_guard(node: ast.AST, block: list[ast.stmt]) -> bool:
    """An `if` with nothing but a `raise` is *never*; without its `raise` it would be the same mutant again."""
    return isinstance(node, ast.If) and block is node.body and len(block) == 1


def _forced(node: ast.If) -> Iterator[Edit]:
    text, inside = _text(node.test), (node.body[0].lineno,)
    yield Edit("never", text, (((node, "test", None), ast.Constant(False)),), inside)
    if not isinstance(node.body[-1], _LEAVES):
        skipped = (node.orelse[0].lineno,) if node.orelse else ()
        yield Edit("always", text, (((node, "test", None), ast.Constant(True)),), skipped)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """What a statement has besides the blocks inside it."""
    if isinstance(statement, (*_NESTED, ast.ClassDef)):
        return
    for name, value in ast.iter_fields(statement):
        if name not in ("body", "orelse", "finalbody", "handlers", "cases", "annotation"):
            values = value if isinstance(value, list) else [value]
            yield from (one for one in values if isinstance(one, ast.AST))
    if isinstance(statement, ast.Match):
        yield from (case.guard for case in statement.cases if case.guard is not None)


def _in_expression(root: ast.AST) -> Iterator[Edit]:
    for node in ast.walk(root):
        match node:
            case ast.BoolOp(op=operator, values=values):
                neutral = ast.copy_location(ast.Constant(isinstance(operator, ast.And)), node)
                for at, value in enumerate(values):
                    if _is_plain(value):
                        continue  # `found or ""`: a default is not a guard
                    rest = [neutral, *values[:at], *values[at + 1 :]]
                    text = f"{_text(value)} in {_text(node)}"
                    yield Edit("without", text, (((node, "values", None), rest),))
            case ast.IfExp(test=test):
                for kind, forced in (("never", False), ("always", True)):
                    yield Edit(
                        kind, _text(node), (((node, "test", None), ast.copy_location(ast.Constant(forced), test)),)
                    )
            case ast.Compare(ops=[operator]) if type(operator) in _STRICT:
                yield Edit("edge", _text(node), (((node, "ops", None), [_STRICT[type(operator)]()]),))
            case ast.comprehension(ifs=[*tests]):
                for at, test in enumerate(tests):
                    yield Edit("always", f"if {_text(test)}", (((node, "ifs", at), ast.Constant(True)),))
            case ast.Call(func=ast.Attribute(attr=attr) as called, args=args) if attr in UNCONDITIONAL:
                kept = args[:1] if attr == "delete_if_match" else args[:2]
                changes = (((called, "attr", None), UNCONDITIONAL[attr]), ((node, "args", None), kept))
                yield Edit("unconditional", _text(node), changes)


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or ast.unparse(node) in ("[]", "{}", "()")


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split()).replace("`", "'")
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"


# -- live functions


def _live(module: str) -> types.ModuleType:
    return importlib.import_module("worm." + module.removesuffix(".py").replace("/", "."))


def live_function(module: str, function: str, line: int) -> types.FunctionType:
    """The function object below its decorators. `line` distinguishes a property from its setter."""
    found: Any = _live(module)
    for part in function.split("."):
        found = vars(found)[part]
    plain = [one for one in _below_decorators(found) if one.__code__.co_firstlineno <= line <= _last_line(one.__code__)]
    if not plain:
        raise LookupError(f"{function} of {module} is behind a decorator that is not known here")
    return plain[0]


def _below_decorators(found: Any) -> Iterator[types.FunctionType]:
    if isinstance(found, types.FunctionType) and not hasattr(found, "__wrapped__"):
        yield found
        return
    for name in ("__wrapped__", "__func__", "fget", "fset", "func", "wrapped"):
        inner = getattr(found, name, None)
        if inner is not None and inner is not found:
            yield from _below_decorators(inner)


def _last_line(code: types.CodeType) -> int:
    own = max(line for _, _, line in code.co_lines() if line is not None)
    return max([own, *(_last_line(one) for one in code.co_consts if isinstance(one, types.CodeType))])


def _code(code: types.CodeType, function: str, line: int) -> types.CodeType:
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            if one.co_qualname == function and one.co_firstlineno <= line <= _last_line(one):
                return one
            if function.startswith(f"{one.co_qualname}."):
                try:
                    return _code(one, function, line)
                except LookupError:
                    continue
    raise LookupError(f"{function} is not in the compiled module")


Counted = list[tuple[types.FunctionType, types.CodeType]]


def counted_blocks(module: str, hits: set[tuple[str, int]]) -> Counted:
    """The functions of a module, each with code that notes in `hits` which blocks it enters."""
    source = Source.of(module)
    lines = [(name, node.body[-1].lineno) for name, node in source.functions]
    for _, node in source.functions:
        for _, _, block in list(_blocks(node)):
            note = ast.Expr(ast.Call(ast.Name(HIT, ast.Load()), [ast.Constant(block[0].lineno)], []))
            block.insert(0, ast.fix_missing_locations(ast.copy_location(note, block[0])))
    vars(_live(module))[HIT] = lambda line: hits.add((module, line))
    compiled, found = source.compiled(), []
    for name, line in lines:
        with suppress(LookupError):  # an overload, a function of a protocol: nothing runs them
            found.append((live_function(module, name, line), _code(compiled, name, line)))
    return found
