"""Few large documents: what a function of the template's size has to bear, on the embedded AWS, which ends a process
that takes more memory than its function has."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import SCHEMA, Deployment
from worm.collections.documents import MAX_DOCUMENT_BYTES
from worm.formats import load_schema
from worm.sdk.database import Worm

pytestmark = [pytest.mark.slow]
LARGE = 5_000_000
MANIFEST = "org/customers/.worm.manifest.json"


def test_forty_documents_of_five_megabytes_fit_into_the_functions(deployment: Deployment) -> None:
    """Rows with whole documents made a manifest of 200 MB, which the tables function could not hold: its messages came
    again and again, and no document of the model was ever in the table."""
    numbers = list(range(40))
    deployment.upload(numbers, {"status": "active", "body": "x" * LARGE})
    room = MAX_DOCUMENT_BYTES - len(json.dumps({"status": "inactive", "body": "", "name": "n40"}))
    deployment.upload([40], {"status": "inactive", "body": "y" * room})
    deployment.environment.wait_quiet(400)

    counts = deployment.environment.counts.functions
    stored = deployment.store.get(MANIFEST)
    assert stored is not None
    print({name: round(one.peak_mb) for name, one in counts.items()}, len(stored.body))
    assert {name: one.deaths for name, one in counts.items() if one.deaths} == {}
    assert len(stored.body) < 40_000
    assert counts["tables"].peak_mb < 400
    assert deployment.environment.dlq_messages("capture") == deployment.environment.dlq_messages("tables") == []

    customers = Worm(deployment.store, load_schema(SCHEMA), maintenance="events").model("Customer")
    assert customers.count({"status": "active"}) == 40
    named = customers.find_all(sort="-name", select=["name"], limit=2)
    assert [row["name"] for row in named] == ["n9", "n8"]
    with deployment.store.requests.measure() as spent:
        (whole,) = customers.find_all(filter={"status": "inactive"})
    assert (len(str(whole["body"])), spent["GET"]) == (room, 2), "the manifest, and the document of the one row"
    assert deployment.verify().differences == []
