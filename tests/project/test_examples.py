"""How much `make check` tries of what `scripts/test` tries."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.examples import FAST, USUAL, crash_points, examples, some


@pytest.fixture
def profile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.examples.settings", lambda: SimpleNamespace(max_examples=request.param))


@pytest.mark.parametrize("profile", [USUAL], indirect=True)
def test_usually_all_cases_are_tried(profile: None) -> None:
    assert (examples(30), list(some("abcd"))) == (30, list("abcd"))
    assert list(crash_points(2)) == [(1, "before"), (1, "after"), (2, "before"), (2, "after")]


@pytest.mark.parametrize("profile", [FAST], indirect=True)
def test_a_part_of_them_is_tried_in_make_check(profile: None) -> None:
    assert (examples(30), list(some("abcdefg"))) == (7, list("adg"))
    assert list(crash_points(5)) == [(1, "before"), (2, "after"), (4, "before"), (5, "after")]


@pytest.mark.parametrize("profile", [FAST], indirect=True)
def test_more_than_so_many_are_more_than_so_many_examples(profile: None) -> None:
    for least in range(200):
        assert len(list(some(range(least + 1)))) > examples(least)
