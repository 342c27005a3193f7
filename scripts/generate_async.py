"""Write shared/worm/sdk/aio.py: every verb of `Model`, `DocumentTransaction` and `Worm` as a coroutine.

The asynchronous verbs have exactly the arguments, types and docstrings of the others, so they are generated from their
source. A test compares them; run `python scripts/generate_async.py` after you change a verb.
"""

from __future__ import annotations

import ast
import collections.abc
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORM = ROOT / "shared" / "worm"
SDK = WORM / "sdk"
TARGET = SDK / "aio.py"
VERBS = ["writing", "bulk", "changing", "reading", "history", "trashing", "tabling"]
STAYS = {"name", "mode", "typed"}
"""Members of a model that send no request, so they are not coroutines."""

HEADER = '''"""`worm.aconnect`: the same verbs as coroutines. Written by scripts/generate_async.py; do not edit.

Each coroutine runs its verb in a thread of the session's pool. The code, its guarantees and its requests are the same,
and the event loop is never blocked. Each call costs one thread switch: some tens of microseconds.

Cancellation leaves no half-done work. A verb that has not started does not run. A verb that has started runs to its end
in its thread, although nobody waits for it. `aclose()` waits for those verbs.
"""

from __future__ import annotations

import asyncio
from collections.abc import {abc}
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Generic, ParamSpec, Self, TypeVar, Unpack, overload

{imports}

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=BaseModel)
THREADS = 32


class _Pool:
    """Threads for the calls of one session."""

    def __init__(self, threads: object) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise Invalid(f"must be a whole number of 1 or more, not {{show(threads)}}", path="threads")
        self._count = threads
        self.is_closed = False
        self._begin()
        in_child(self._begin)

    def _begin(self) -> None:
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="worm-async")

    async def run(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.is_closed:
            raise Invalid("the session is closed", hint="open another: worm.aconnect(…)")
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    async def each(self, make: Callable[[], Iterator[R]]) -> AsyncIterator[R]:
        """Yield the items one by one. Each is fetched in a thread."""
        items = await self.run(make)
        while found := await self.run(list, islice(items, 1)):
            yield found[0]

    async def close(self) -> None:
        self.is_closed = True
        await asyncio.get_running_loop().run_in_executor(None, partial(self._threads.shutdown, wait=True))

'''

FOOTER = '''

class _Connecting:
    """The result of `aconnect`: await it, or enter it with `async with`."""

    def __init__(self, make: Callable[[], Worm], threads: int) -> None:
        self._make = make
        self._pool = _Pool(threads)
        self._open: AsyncWorm | None = None

    def __await__(self) -> Generator[object, None, AsyncWorm]:
        return self._connected().__await__()

    async def _connected(self) -> AsyncWorm:
        return AsyncWorm(await self._pool.run(self._make), self._pool)

    async def __aenter__(self) -> AsyncWorm:
        self._open = await self._connected()
        return self._open

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is not None:
            await self._open.aclose()


def aconnect({arguments}) -> _Connecting:
    """`connect` for programs with an event loop. Use `async with worm.aconnect(url) as db`, or `db = await
    worm.aconnect(url)` and `await db.aclose()` at the end. `threads` is the number of calls that run at the same time.

    Examples:
        >>> import asyncio
        >>> async def main():
        ...     async with worm.aconnect("./data") as db:
        ...         return await db.model("Customer").count()
        >>> asyncio.run(main())
        2
    """
    return _Connecting(partial(connect, {passed}), threads)
'''


def generate() -> str:
    """The text of shared/worm/sdk/aio.py, before it is formatted."""
    model = [node for name in VERBS for node in _public(SDK / f"{name}.py", name.capitalize())]
    session = [*_public(SDK / "database.py", "Worm"), *_public(SDK / "upkeep.py", "Upkeep")]
    transaction = _public(SDK / "transacting.py", "DocumentTransaction")
    parts = [_class("AsyncModel(Generic[D])", MODEL_START, model, "_model")]
    parts.append(_class("AsyncTransaction", TRANSACTION_START, transaction, "_transaction"))
    parts.append(_class("AsyncWorm", WORM_START, session, "_worm"))
    body = "\n\n".join(parts) + _footer()
    return HEADER.format(abc=_abstract(body), imports=_imports(body)) + "\n\n" + body


MODEL_START = '''
    """The documents of one model; see `worm.sdk.model.Model`."""

    def __init__(self, model: Model[D], pool: _Pool) -> None:
        self._model = model
        self._pool = pool

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def mode(self) -> str:
        return self._model.mode

    def __repr__(self) -> str:
        return f"<Async{repr(self._model)[1:]}"
'''

TRANSACTION_START = '''
    """`async with db.transaction() as tx`; see `worm.sdk.transacting`."""

    def __init__(self, transaction: DocumentTransaction, pool: _Pool) -> None:
        self._transaction = transaction
        self._pool = pool

    def __repr__(self) -> str:
        return f"<Async{repr(self._transaction)[1:].removeprefix('Document')}"

    @property
    def seq(self) -> int | None:
        return self._transaction.seq

    async def __aenter__(self) -> Self:
        self._transaction.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.run(self._transaction.__exit__, kind, error, trace)
'''

WORM_START = '''
    """A session; see `worm.sdk.database.Worm`. `sync` is the blocking session that does the work."""

    def __init__(self, worm: Worm, pool: _Pool) -> None:
        self._worm = self.sync = worm
        self._pool = pool

    def __repr__(self) -> str:
        return f"<Async{repr(self._worm)[1:]}"

    @overload
    def model(self, name: str) -> AsyncModel[DocumentDict]: ...
    @overload
    def model(self, name: type[M]) -> AsyncModel[M]: ...
    def model(self, name: str | type[M]) -> AsyncModel[DocumentDict] | AsyncModel[M]:
        if isinstance(name, str):
            return AsyncModel(self._worm.model(name), self._pool)
        return AsyncModel(self._worm.model(name), self._pool)

    def transaction(self, *, actor: str | None = None) -> AsyncTransaction:
        return AsyncTransaction(self._worm.transaction(actor=actor), self._pool)

    async def branch(self, name: str) -> AsyncWorm:
        """A session on a branch, for models in a space. It ends with this session: do not close it."""
        return AsyncWorm(await self._pool.run(self._worm.branch, name), self._pool)

    async def aclose(self) -> None:
        """Wait for the running calls, then release all resources."""
        if not self._pool.is_closed:
            await self._pool.run(self._worm.close)
            await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
'''
OWN = {"model", "transaction", "branch", "close"}


def _footer() -> str:
    """`aconnect` has the arguments of `connect`, and `threads`."""
    functions = [
        node for node in ast.parse((SDK / "database.py").read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    arguments = next(one for one in functions if one.name == "connect").args
    passed = ", ".join(_passed(arguments))
    return FOOTER.format(arguments=f"{ast.unparse(arguments)}, threads: int = THREADS", passed=passed)


def _class(head: str, start: str, verbs: Sequence[ast.FunctionDef], attribute: str) -> str:
    written = [_verb(verb, attribute) for verb in verbs if verb.name not in OWN | STAYS]
    return f"class {head}:{start}\n" + "\n".join(written)


def _public(path: Path, name: str) -> list[ast.FunctionDef]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return [one for one in node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
    raise LookupError(f"no class {name} in {path}")


def _verb(verb: ast.FunctionDef, attribute: str) -> str:
    is_overload = any(ast.unparse(one) == "overload" for one in verb.decorator_list)
    returns = ast.unparse(verb.returns) if verb.returns else "None"
    is_iterator = returns.startswith("Iterator[")
    arguments = _hidden(verb.args)
    prefix = "def" if is_iterator else "async def"
    if is_iterator:
        returns = returns.replace("Iterator[", "AsyncIterator[")
    head = f"    {prefix} {verb.name}({ast.unparse(arguments)}) -> {returns}:"
    if is_overload:
        return f"    @overload\n{head} ...\n"
    doc = ast.get_docstring(verb, clean=False)
    text = f'        """{_without_examples(doc)}"""\n' if doc else ""
    call = ", ".join([f"self.{attribute}.{verb.name}", *_passed(arguments)])
    if is_iterator:
        return f"{head}\n{text}        return self._pool.each(partial({call}))\n"
    return f"{head}\n{text}        return await self._pool.run({call})\n"


def _without_examples(doc: str) -> str:
    """They call the verb itself, not the coroutine."""
    text, examples, _ = doc.partition("\n\n        Examples:\n")
    return f"{text}\n        " if examples and "\n\n" in text else text


def _hidden(arguments: ast.arguments) -> ast.arguments:
    """The arguments without those that only tests use."""
    pairs = [
        (one, default)
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if not one.arg.startswith("_")
    ]
    arguments.kwonlyargs, arguments.kw_defaults = [one for one, _ in pairs], [default for _, default in pairs]
    return arguments


def _passed(arguments: ast.arguments) -> Iterator[str]:
    yield from (one.arg for one in arguments.args if one.arg != "self")
    yield from (f"{one.arg}={one.arg}" for one in arguments.kwonlyargs)
    if arguments.kwarg is not None:
        yield f"**{arguments.kwarg.arg}"


def _used(body: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}


def _abstract(body: str) -> str:
    own = {"AsyncIterator", "Callable", "Generator", "Iterator"}
    return ", ".join(sorted(own | (_used(body) & set(collections.abc.__all__))))


def _imports(body: str) -> str:
    """Import lines of the sources for every name that the verbs use."""
    wanted, lines = _used(body), set[str]()
    sources = [
        *(SDK / f"{name}.py" for name in (*VERBS, "transacting", "upkeep")),
        SDK / "database.py",
    ]
    skipped = {"typing", "collections.abc", "__future__", "types", "functools", "contextlib", "copy"}
    local = {"DocumentTransaction": "worm.sdk.transacting", "Model": "worm.sdk.model", "Worm": "worm.sdk.database"}
    local |= {"connect": "worm.sdk.database"}
    found: dict[str, str] = dict(local)
    for path in sources:
        module = ".".join(path.relative_to(WORM.parent).with_suffix("").parts)
        for node in _top_level(ast.parse(path.read_text()).body):
            if isinstance(node, ast.ImportFrom) and node.module not in skipped and node.module:
                found.update({one.name: node.module for one in node.names if one.name not in local})
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found.setdefault(node.targets[0].id, module)
            elif isinstance(node, ast.ClassDef):
                found.setdefault(node.name, module)
    made = {"AsyncModel", "AsyncTransaction", "AsyncWorm", "_Pool", "M", "P", "R", "THREADS"}
    for name in sorted((wanted | {"BaseModel", "DocumentDict", "Invalid", "show"}) & found.keys() - made):
        lines.add(f"from {found[name]} import {name}")
    lines.add("from worm.forks import in_child")
    return "\n".join(sorted(lines))


def _top_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, including those for type checkers."""
    for node in body:
        yield from _top_level(node.body) if isinstance(node, ast.If) else (node,)


def formatted() -> str:
    """`generate`, formatted by ruff."""
    ruff, name = Path(sys.executable).with_name("ruff"), ["--stdin-filename", str(TARGET), "-"]
    text = generate()
    for command in (["check", "--fix", "--exit-zero", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run([ruff, *command, *name], input=text, capture_output=True, text=True, check=True, cwd=ROOT)
        text = done.stdout
    return text


def main() -> None:
    """Write the file."""
    TARGET.write_text(formatted())


if __name__ == "__main__":
    main()
