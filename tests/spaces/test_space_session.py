"""`db.space(name)`: the space beside the documents of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from worm.errors import Invalid
from worm.sdk.database import connect
from worm.spaces.opening import open_space
from worm.spaces.operations import set_document

SCHEMA = {"models": {"Customer": {"path": "#org/@customers/(id:string)", "fields": {"name": {"type": "string"}}}}}


def test_a_session_has_the_spaces_of_its_store(tmp_path: Path) -> None:
    db = connect(str(tmp_path), schema=SCHEMA)
    space = db.space("main")
    space.transact([set_document("a", {"n": 1})])
    assert db.space("main") is space
    assert db.space("other").seq == 0
    db.close()
    assert db.space("main").read("a").value == {"n": 1}, "opened again"
    db.close()
    with open_space(str(tmp_path), "main", create=False) as same:
        assert same.seq == 1
    with pytest.raises(Invalid, match="the space name"):
        db.space("a/b")
