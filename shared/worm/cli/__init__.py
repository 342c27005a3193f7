"""The `worm` command: a thin layer over the library, one module per noun. `commands` lists where each command is."""

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
