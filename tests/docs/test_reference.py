"""The reference is what the code says: generated pages are up to date, and every public name has an example that runs."""

from __future__ import annotations

import pytest

from scripts.site_reference import REFERENCE, described, pages


@pytest.mark.parametrize("name", ["settings.md", "metrics.md", "http-api.md"])
def test_a_generated_page_is_what_the_script_writes(name: str) -> None:
    assert (REFERENCE / name).read_text() == pages()[name], "run scripts/site_reference.py"


def test_a_new_name_without_a_meaning_fails_the_script() -> None:
    with pytest.raises(SystemExit, match="the list differs from the code: .'NEW'."):
        described(["OLD", "NEW"], {"OLD": "known"}, "the list")
