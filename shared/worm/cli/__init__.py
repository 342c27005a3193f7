"""The `worm` command: a thin layer over the library, one module per noun.

`commands` says where each command is, and a command's module is loaded when it is called, so that `worm --version` and
`--help` load nothing else. A command reads words, calls one verb, and prints what it returns as text or JSON. Every
error is one line with what to do next, and its kind decides the exit code.

Nothing below this room prints, and nothing but `dev` imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.cli import options
    from worm.cli.output import table_lines
    from worm.cli.program import app
else:
    __getattr__ = door(
        __name__,
        """
        options:
        output: table_lines
        program: app
        """,
    )
