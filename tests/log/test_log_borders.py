"""The commit log and the store in a directory are two rooms beside each other; pages are built on the first."""

from __future__ import annotations

import pytest

from tests.project.source_tree import WORM, imported_modules, python_files, relative


@pytest.mark.parametrize(("room", "other"), [("log", "journal"), ("journal", "log"), ("pages", "journal")])
def test_a_room_does_not_import_the_other(room: str, other: str) -> None:
    strays = [
        f"{relative(path)} imports {module}"
        for path in python_files(WORM / room)
        for module in sorted(imported_modules(path))
        if module.startswith(f"worm.{other}")
    ]
    assert strays == []
