"""Forks: what a child process made by `os.fork` must not share with its parent.

`multiprocessing` (by fork), `gunicorn --preload` and Spark's Python daemon fork a process that may have sessions open.
In the child only the thread that forked continues. A lock that another thread held would stay locked forever, a pool's
threads are gone, two processes would read from one connection, and a writer would commit as its parent.

So every lock is created here, and every object with a thread, a connection, a file lock or its own name registers a
method that gives it up. These methods run in the forking thread; they send no request and do not raise.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from types import MethodType
from typing import Any, cast
from weakref import WeakSet, WeakValueDictionary

_Hooks = WeakValueDictionary[tuple[int, Callable[[Any], None]], object]
_numbers = count()
_locks: WeakSet[Any] = WeakSet()
_before: _Hooks = WeakValueDictionary()
_in_parent: _Hooks = WeakValueDictionary()
_in_child: _Hooks = WeakValueDictionary()


importing = threading.Lock()
"""Held while a client library is imported. A fork waits for it: if another thread is in the middle of an import, the
child could never import the same module."""
_locks.add(importing)


def new_lock() -> threading.Lock:
    """A lock that is free in a child, even if another thread held it."""
    made = threading.Lock()
    _locks.add(made)
    return made


def new_rlock() -> threading.RLock:
    """A re-entrant lock that is free in a child, even if another thread held it."""
    made = threading.RLock()
    _locks.add(made)
    return made


def in_child(method: Callable[[], None]) -> None:
    """Call a bound method in every child, after its locks are free. Does not keep the object alive."""
    _keep(_in_child, method)


def around(before: Callable[[], None], in_parent: Callable[[], None]) -> None:
    """Call bound methods before every fork, and after it in the parent."""
    _keep(_before, before)
    _keep(_in_parent, in_parent)


def _keep(hooks: _Hooks, method: Callable[[], None]) -> None:
    bound = cast(MethodType, method)
    hooks[next(_numbers), bound.__func__] = bound.__self__


def _before_fork() -> None:
    importing.acquire()
    _run(_before)


def _go_on() -> None:
    _run(_in_parent)
    importing.release()


def _run(hooks: _Hooks) -> None:
    for (_, function), owner in list(hooks.items()):
        function(owner)


def _begin_child() -> None:
    for lock in (*_locks, *_property_locks()):
        lock._at_fork_reinit()  # the standard library does the same with its own locks
    _run(_in_child)


def _property_locks() -> Iterator[Any]:
    """Before Python 3.12 a `cached_property` has one lock for all instances, held while a value is computed."""
    if sys.version_info >= (3, 12):
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "worm":
            for found in [one for one in vars(module).values() if isinstance(one, type)]:
                for one in vars(found).values():
                    if isinstance(one, functools.cached_property):
                        yield vars(one)["lock"]


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_go_on,
        after_in_child=_begin_child,
    )
