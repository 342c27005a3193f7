"""Health in the console: findings, dead letters that are sent again, what became of a key, and cost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener
from tests.browser.serving import SCHEMA, Served, Tab, serve
from tests.cli.deployed import Deployed
from tests.emulators import CREDENTIALS, new_bucket
from tests.harness import created
from worm.formats import load_schema
from worm.sdk.database import push
from worm.store.open import open_store

KEY = "org/customers/broken/data.json"


def test_findings_say_what_is_the_case_and_what_to_run(tab: Tab, served: Served) -> None:
    tab.open("health")
    findings = tab.page.get_by_role("region", name="Findings")
    found = served.get("/v1/health")["findings"]
    expect(findings.locator("tbody tr")).to_have_count(len(found))
    expect(findings).to_contain_text("worm verify --record")
    expect(tab.page.get_by_role("region", name="Dead letters")).to_contain_text("No dead-letter queue is configured")


def test_why_explains_a_key(tab: Tab) -> None:
    tab.open("health")
    tab.page.get_by_label("Key").fill("org/customers/c003/data.json")
    tab.button("Explain").click()
    verdict = tab.page.locator(".verdict")
    expect(verdict).to_contain_text("recorded")
    expect(verdict).to_contain_text("Customer")
    assert "key=org%2Fcustomers%2Fc003%2Fdata.json" in tab.page.url


def test_cost_per_day_follows_the_volume(tab: Tab, served: Served) -> None:
    tab.open("health", changes="100000", queries="0")
    wanted = served.get("/v1/cost?changes=3000000&queries=0")["usdPerMonth"] / 30
    expect(tab.page.locator(".sum b")).to_have_text(f"${wanted:.2f}")
    plot = tab.page.get_by_role("img", name="USD per day by changes per day")
    expect(plot.locator("canvas")).to_be_visible()


@pytest.fixture
def stack(moto_endpoint: str, aws_environment: None) -> Iterator[tuple[Deployed, Served]]:
    """A bucket with a deployed stack on the embedded AWS, served by `worm serve`."""
    bucket = new_bucket(moto_endpoint)
    push(open_store(f"s3://{bucket}", endpoint_url=moto_endpoint), load_schema(SCHEMA))
    made = Deployed(moto_endpoint, f"s-{bucket}", bucket).create()
    variables = {**CREDENTIALS, "AWS_ENDPOINT_URL": moto_endpoint, "WORM_STACK": made.name}
    with serve(f"s3://{bucket}", **variables) as served:
        yield made, served


def test_a_dead_letter_shows_its_reason_and_is_sent_again(open_tab: Opener, stack: tuple[Deployed, Served]) -> None:
    deployed, served = stack
    body = created(KEY, bucket=deployed.bucket)
    deployed.send("capture-dlq", body, reason="name: must be a string, not integer")
    tab = open_tab(served).open("health")
    letters = tab.page.get_by_role("region", name="Dead letters")
    expect(letters).to_contain_text("name: must be a string, not integer")
    expect(letters).to_contain_text(KEY)
    tab.button(f"Redrive {KEY}").click()
    tab.announced("The message was sent again")
    assert deployed.waiting("capture") == [body]
    assert deployed.waiting("capture-dlq") == []
    expect(letters).not_to_contain_text(KEY)


def test_who_may_not_see_it_is_told_once(tab: Tab) -> None:
    denied = {"type": "urn:worm:denied", "title": "Forbidden", "status": 403, "detail": "not with this token"}
    tab.allowed = {403}
    for path in ("health", "rejected", "why*"):
        tab.page.route(f"**/v1/{path}", lambda route: route.fulfill(status=403, json=denied))
    tab.open("health", key="org/customers/c003/data.json")
    expect(tab.page.locator(".sum b")).to_be_visible()  # the cost is no secret
    expect(tab.page.locator(".problem")).to_have_count(1)
