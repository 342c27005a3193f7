"""What a caller does with a document afterwards must not reach into what the session remembers or caches."""

from __future__ import annotations

from tests.harness import DataPath, schema_of
from worm.formats import load_schema
from worm.sdk.database import Model, Worm


def customers_of(path: DataPath) -> Model:
    session = Worm(path.store, load_schema(schema_of()), probe=False, clock=path.clock, ids=path.ids)
    return session.model("Customer")


def test_changing_a_saved_or_read_document_in_place_shows_in_the_next_diff() -> None:
    """The remembered parent would change along with it, and the diff would miss what changed: wrong for ever."""
    path = DataPath()
    customers = customers_of(path)
    document = customers.save({"id": "a", "name": "Acme", "tags": ["old"]})
    tags = document["tags"]
    assert isinstance(tags, list)
    tags.append("new")
    customers.save(document)
    read = customers.find_by_id("a")
    assert read is not None
    more = read["tags"]
    assert isinstance(more, list)
    more.append("newer")
    customers.save(read)
    diffs = [entry.diff and entry.diff["tags"] for entry in customers.get_history("a")]
    assert diffs == [None, [["old"], ["old", "new"]], [["old", "new"], ["old", "new", "newer"]]]
    path.assert_true()


def test_changing_a_row_of_a_query_does_not_change_the_table() -> None:
    path = DataPath()
    customers = customers_of(path)
    customers.save({"id": "a", "name": "Acme", "tags": ["old"]})
    (row,) = customers.find_all()
    tags = row["tags"]
    assert isinstance(tags, list)
    tags.append("not stored")
    customers.save({"id": "b", "name": "Bee"})
    assert customers.find_all(filter={"name": "Acme"}, select=["tags"]) == [{"id": "a", "tags": ["old"]}]
    path.assert_true()
