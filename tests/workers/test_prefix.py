"""A stack below a prefix of a bucket that others use, too: everything it reads and writes is below it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import parse_qs

import pytest

from tests.emulators import new_bucket, s3_client
from tests.fault_proxy import FaultProxy, fault_proxy
from tests.harness import created, schema_of
from tests.sdk.bank_room import ACCOUNT
from tests.workers.function_room import NAMES, Deployed, Functions
from worm.errors import Invalid
from worm.formats import load_schema
from worm.sdk.database import connect, push
from worm.store.s3 import S3Store
from worm.tables.verify import verify_collection
from worm.upkeep.session import Session, Settings

PREFIX = "team/data/"
CUSTOMER = "org/customers/{}/profile.json"


@pytest.mark.parametrize(("given", "prefix"), [("", ""), ("team", "team/"), ("team/", "team/"), (PREFIX, PREFIX)])
def test_a_prefix_is_empty_or_ends_in_a_slash(given: str, prefix: str) -> None:
    assert Settings.from_environment({"WORM_BUCKET": "b", "WORM_PREFIX": given}).prefix == prefix
    assert Settings.from_environment({"WORM_BUCKET": "b"}).prefix == ""


@pytest.mark.parametrize("given", ["/", "/team/", "team//data/", "team/./", "../", ".hidden/", "a/.b/", "a\nb/", "//"])
def test_a_wrong_prefix_is_refused_at_start(given: str) -> None:
    """Below a folder that starts with a dot, all documents would be system keys, which nobody captures."""
    with pytest.raises(Invalid, match="WORM_PREFIX must be empty or a path such as team/data/"):
        Settings.from_environment({"WORM_BUCKET": "b", "WORM_PREFIX": given})


@pytest.fixture
def proxy(moto_endpoint: str, aws_environment: None) -> Iterator[FaultProxy]:
    with fault_proxy(moto_endpoint) as found:
        yield found


class Stack:
    """All functions of a stack below the prefix, on a bucket that has the same keys outside of it."""

    def __init__(self, moto: str, proxy: FaultProxy, functions: Functions) -> None:
        self.bucket, self.proxy, self.s3 = new_bucket(moto, versioned=True), proxy, s3_client(moto)
        self.store = S3Store(self.bucket, PREFIX, endpoint_url=moto)
        models = {"Account": ACCOUNT}
        customer = schema_of(softDelete=True, trashTtlDays=1)["models"]
        assert isinstance(customer, dict)
        self.schema = load_schema({"version": "1.0", "storage": {"layout": "root"}, "models": {**customer, **models}})
        push(self.store, self.schema)
        environment = {"WORM_BUCKET": self.bucket, "WORM_PREFIX": PREFIX, "AWS_ENDPOINT_URL": proxy.url}
        for name, value in environment.items():
            functions.monkeypatch.setenv(name, value)
        self.functions: dict[str, Deployed] = {name: functions.load(name) for name in NAMES}

    def put(self, key: str, document: dict[str, object]) -> None:
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=json.dumps(document).encode())

    def stored(self) -> set[str]:
        return {one["Key"] for one in self.s3.list_objects_v2(Bucket=self.bucket).get("Contents", [])}

    def run(self, name: str, *keys: str) -> None:
        """The events have full keys, as S3 sends them."""
        assert self.functions[name].batch([created(key, bucket=self.bucket) for key in keys]) == []

    def change_sets(self) -> list[str]:
        return sorted(key for key in self.stored() if key.startswith(f"{PREFIX}.worm.changes/"))

    def outside(self) -> list[str]:
        """Requests of the functions that are about something above or beside the prefix."""
        found = []
        for seen in self.proxy.seen:
            asked = parse_qs(seen.query).get("prefix", [""])[0] if seen.is_listing else seen.path
            base = "" if seen.is_listing else f"/{self.bucket}/"
            if not asked.startswith(f"{base}{PREFIX}"):
                found.append(f"{seen.method} {seen.path}?{seen.query}")
        return found


@pytest.mark.slow
def test_no_request_of_any_function_leaves_the_prefix(
    moto_endpoint: str, proxy: FaultProxy, functions: Functions
) -> None:
    """WORM_PREFIX was documented and read nowhere: a stack beside others would have recorded and swept their keys."""
    stack = Stack(moto_endpoint, proxy, functions)
    inside, outside = PREFIX + CUSTOMER.format("a"), CUSTOMER.format("stranger")
    stack.put(inside, {"name": "A", "status": "active"})
    stack.put(outside, {"name": "not ours"})
    stack.run("capture", inside, outside, f"other/{inside}")
    stack.run("tables", *stack.change_sets())

    db = connect(f"s3://{stack.bucket}/{PREFIX}", maintenance="events", endpoint_url=moto_endpoint)
    with db.transaction() as tx:
        tx.save("Account", {"id": "x", "email": "x@y", "balance": 1})
    segments = [key for key in stack.stored() if key.startswith(f"{PREFIX}db/space-main/log/")]
    stack.run("apply", *segments)
    account = f"{PREFIX}bank/accounts/x/data.json"
    assert account in stack.stored()
    stack.run("capture", account)
    stack.run("tables", *stack.change_sets())

    for name in ("unreported", "unreported-too"):
        stack.put(PREFIX + CUSTOMER.format(name), {"name": "U", "status": "new"})
    functions.monkeypatch.setattr("worm.upkeep.sweep_pass.CHUNK", 1)
    reports = {one["model"]: one for one in stack.functions["sweep"].call({}, seconds=1)}
    assert reports["Customer"]["finished"] is False, "its cursor is stored"
    assert {one["model"]: one["finished"] for one in stack.functions["sweep"].call({})} == {
        "Account": True,
        "Customer": True,
    }
    assert [one["finished"] for one in stack.functions["purge"].call({})] == [True, True]
    assert [(one["database"], one["finished"]) for one in stack.functions["compact"].call({})] == [("space-main", True)]

    assert len(proxy.seen) > 50
    assert stack.outside() == []
    assert {key for key in stack.stored() if not key.startswith(PREFIX)} == {outside}
    session = Session(stack.store, Settings(stack.bucket, PREFIX), schema=stack.schema)
    for model, documents in (("Customer", 3), ("Account", 1)):
        report = verify_collection(session.collection(model))
        assert (report.differences, report.documents) == ([], documents)
