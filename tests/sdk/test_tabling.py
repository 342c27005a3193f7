"""How a session looks at its table and rebuilds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.sessions import Bench
from worm.errors import Invalid, NotFound
from worm.sdk.database import Model

MANIFEST = "org/customers/.worm.manifest.json"
FIELDS = ("name", "status", "score", "tags", "createdAt", "updatedAt")


def saved(customers: Model, count: int) -> None:
    for number in range(count):
        status = "active" if number % 2 else "inactive"
        customers.save(customers.create({"name": f"n{number}", "status": status, "tags": ["x"]}, id=f"c{number}"))


def test_the_status_of_a_manifest(bench: Bench) -> None:
    customers = bench.session().model("Customer")
    assert customers.get_manifest_status().shape() == {
        "exists": False,
        "fresh": True,
        "count": 0,
        "lastUpdated": None,
        "sizeBytes": 0,
        "partitioned": False,
        "fields": [],
    }
    saved(customers, 3)
    held = bench.store.get(MANIFEST)
    assert held is not None
    status = customers.get_manifest_status()
    assert (status.exists, status.fresh, status.count, status.partitioned) == (True, True, 3, False)
    assert (status.size_bytes, status.fields) == (len(held.body), FIELDS)
    assert status.last_updated is not None


def test_a_manifest_that_misses_an_upload_is_not_fresh_until_it_is_built(bench: Bench) -> None:
    customers = bench.session().model("Customer")
    saved(customers, 2)
    bench.clock.advance(5)
    bench.store.put("org/customers/raw/profile.json", b'{"status":"active"}')
    assert not customers.get_manifest_status().fresh
    customers.save(customers.create({"name": "other"}, id="other"))
    assert not customers.get_manifest_status().fresh, "the upload is still not recorded"


def test_a_partitioned_manifest_says_so(tmp_path: Path) -> None:
    manifest = {"enabled": True, "partitionThreshold": 4, "maxPartitions": 2}
    bench = Bench("memory", tmp_path, manifest=manifest)
    customers = bench.session().model("Customer")
    saved(customers, 6)
    status = customers.get_manifest_status()
    assert (status.partitioned, status.partitions, status.count, status.fresh) == (True, 2, 6, True)
    listed = [one for one in bench.store.list("org/customers/.worm.manifest") if "_meta" not in one.key]
    root = bench.store.get(MANIFEST)
    assert root is not None
    named = [one for one in listed if one.key.encode().rpartition(b"/")[2] in root.body]
    assert status.size_bytes == len(root.body) + sum(one.size for one in named)


def test_building_tells_how_far_it_is_and_a_second_build_changes_nothing(bench: Bench) -> None:
    customers = bench.session().model("Customer")
    saved(customers, 3)
    before = bench.store.get(MANIFEST)
    bench.store.put(MANIFEST, b"broken")
    seen: list[tuple[int, int | None]] = []
    status = customers.build_manifest(progress=lambda done, total: seen.append((done, total)))
    assert (status.exists, status.fresh, status.count) == (True, True, 3)
    assert seen == [(0, 3), (3, 3)]
    after = bench.store.get(MANIFEST)
    assert before is not None
    assert after is not None
    assert after.body == before.body
    customers.build_manifest()
    again = bench.store.get(MANIFEST)
    assert again is not None
    assert again.etag == after.etag


def test_an_invalidated_manifest_is_built_by_the_next_query(bench: Bench) -> None:
    session = bench.session()
    customers = session.model("Customer")
    saved(customers, 3)
    before = bench.store.get(MANIFEST)
    customers.invalidate_manifest()
    assert bench.store.get(MANIFEST) is None
    assert len(bench.session().model("Customer").find_all(filter={"status": "inactive"})) == 2, "others read documents"
    assert bench.store.get(MANIFEST) is None
    assert len(customers.find_all(filter={"status": "inactive"})) == 2
    after = bench.store.get(MANIFEST)
    assert before is not None
    assert after is not None
    assert after.body == before.body


def test_an_invalidated_manifest_is_built_by_the_next_save(bench: Bench) -> None:
    customers = bench.session().model("Customer")
    saved(customers, 3)
    customers.invalidate_manifest()
    other = bench.session().model("Customer")
    other.save(other.create({"name": "new"}, id="new"))
    assert other.get_manifest_status().count == 4
    assert other.get_manifest_status().fresh


def test_one_index_and_all_indexes(tmp_path: Path) -> None:
    indexes = {"byStatus": {"field": "status"}, "byTags": {"field": "tags", "type": "multiValue"}}
    bench = Bench("memory", tmp_path, indexes=indexes)
    customers = bench.session().model("Customer")
    saved(customers, 4)
    keys = ["org/customers/.worm.index/status.json", "org/customers/.worm.index/tags.json"]
    good = [bench.store.get(key) for key in keys]
    for key in keys:
        bench.store.put(key, b"broken")
    assert [one.exists for one in customers.get_index_status()] == [False, False]
    built = customers.build_index("byStatus")
    assert (built.name, built.field, built.values, built.exists) == ("byStatus", "status", 2, True)
    assert [one.exists for one in customers.get_index_status()] == [True, False]
    assert customers.build_index("tags").name == "byTags", "by its field too"
    assert [one.values for one in customers.build_indexes()] == [2, 1]
    assert [one and one.body for one in good] == [(found := bench.store.get(key)) and found.body for key in keys]


def test_an_index_of_a_partitioned_table_is_built_with_its_manifest(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, manifest={"enabled": True, "partitionThreshold": 2, "maxPartitions": 2})
    customers = bench.session().model("Customer")
    saved(customers, 6)
    customers.build_manifest()
    root = customers.table.manifest.root()
    assert root is not None
    assert root.is_spread
    part = f"org/customers/.worm.index/status/{root.indexes['status'].parts[0].file}"
    held = bench.store.get(part)
    assert held is not None
    bench.store.put(part, b"broken")
    other = bench.session().model("Customer")
    assert [one.exists for one in other.get_index_status()] == [False]
    assert other.build_index("byStatus").exists
    healed = bench.store.get(part)
    assert healed is not None
    assert healed.body == held.body


def test_without_auto_update_only_a_build_changes_the_manifest(tmp_path: Path) -> None:
    for oplog in (True, False):
        bench = Bench(
            "memory", tmp_path, oplog=oplog, softDelete=False, manifest={"enabled": True, "autoUpdate": False}
        )
        customers = bench.session().model("Customer")
        saved(customers, 3)
        assert bench.store.get(MANIFEST) is None
        assert len(customers.find_all(filter={"status": "inactive"})) == 2
        customers.build_manifest()
        before = bench.store.get(MANIFEST)
        saved(bench.session().model("Customer"), 0)
        customers.delete("c0")
        late = bench.session().model("Customer")
        late.save(late.create({"status": "inactive"}, id="late"))
        after = bench.store.get(MANIFEST)
        assert before is not None
        assert after is not None
        assert after.etag == before.etag
        fresh = bench.session().model("Customer")
        assert not fresh.get_manifest_status().fresh
        assert {row["id"] for row in fresh.find_all(filter={"status": "inactive"})} == {"c2", "late"}
        fresh.build_manifest()
        assert {row["id"] for row in fresh.find_all(filter={"status": "inactive"})} == {"c2", "late"}
        assert fresh.get_manifest_status().fresh


def test_what_cannot_be_built(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, manifest={"enabled": False}, indexes={})
    customers = bench.session().model("Customer")
    for verb in (customers.build_manifest, customers.invalidate_manifest, customers.build_indexes):
        with pytest.raises(Invalid, match="Customer keeps no manifest"):
            verb()
    assert not customers.get_manifest_status().exists
    other = Bench("memory", tmp_path).session().model("Customer")
    with pytest.raises(NotFound, match="Customer has no index 'byNothing'; declared: byStatus"):
        other.build_index("byNothing")
