"""The demo must not end well when something went wrong."""

from __future__ import annotations

import dataclasses
import os
import shutil

import pytest

from worm.dev import demo
from worm.dev.sample.documents import Change, Workload, sample_documents, workload


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_dead_letter_makes_the_demo_fail_and_keeps_its_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A demo that ends with 0 whatever happens would hide a broken data path from everybody who tries it."""
    bad = Change("org/customers/7d9f2c1e-0000-4000-8000-000000000001/profile.json", b'{"name": 7}')

    def with_a_bad_document(count: int) -> Workload:
        good = workload(count)
        return dataclasses.replace(good, uploads=[*good.uploads, bad])

    monkeypatch.setattr(demo, "workload", with_a_bad_document)
    before = dict(os.environ)
    assert demo.main(["--documents", "5"]) == 1
    shown = capsys.readouterr().out
    assert f"rejected  {bad.key}: name: must be a string, not integer\n" in shown
    assert "FAILED: 1 dead letters, verify ended with 0\n" in shown
    logs = demo.template_path().parent / ".worm-dev" / f"run-{os.getpid()}"
    assert f"the logs are in {logs}\n" in shown
    assert "must be a string, not integer" in (logs / "capture.log").read_text()
    shutil.rmtree(logs)
    assert dict(os.environ) == before


def test_the_sample_is_the_same_for_the_same_seed_and_touches_all_models() -> None:
    assert sample_documents(40) == sample_documents(40)
    assert sample_documents(40) != sample_documents(40, seed=2)
    emails = [document["email"] for document in sample_documents(1000) if "email" in document]
    assert len(set(emails)) == len(emails) == 400
    load = workload(300)
    assert (len(load.uploads), len(load.overwrites), len(load.deletes)) == (300, 60, 20)
    assert {change.key.split("/")[1] for change in load.overwrites} == {"customers", "invoices", "settings"}
    assert {change.key for change in load.deletes}.isdisjoint(change.key for change in load.overwrites)
    watched = f"org/customers/{load.watched}/profile.json"
    assert [change.key for change in load.overwrites].count(watched) == 2
