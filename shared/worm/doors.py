"""What a room shows to the others, loaded on first use.

A room is a folder, and its `__init__` is its door: it names what other rooms may use, and nothing else is imported from
outside. `door` reads a table with one line for each module, `module: Name other_name`. A module without names is shown
as a whole. Nothing is loaded before it is asked for, so a Lambda handler loads only the modules that it needs.

This module imports nothing from worm and may be used everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module


def door(room: str, table: str) -> Callable[[str], object]:
    """The `__getattr__` of a room. Values are not kept, so a test may replace a name in its module."""
    homes = {}
    for line in table.split("\n"):
        module, _, names = line.strip().partition(":")
        for name in names.split() or [module]:
            homes[name] = f"{room}.{module}"

    def find(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {room!r} has no attribute {name!r}", name=name)
        module = sys.modules.get(home) or import_module(home)
        return module if home == f"{room}.{name}" else getattr(module, name)

    return find
