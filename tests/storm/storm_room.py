"""Sessions and workers on a bucket behind a proxy that fails. Then it heals, the workers catch up, and a plain S3
client looks whether everything that was acknowledged is there once.

Threads decide who is next, so a seed repeats what each client tries and which faults there are, but not their order.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from tests.emulators import new_bucket, s3_client
from tests.fault_proxy import FaultProxy
from tests.harness import created
from tests.log.wire import HurriedClock
from tests.sdk.bank_room import ACCOUNT, MAIN
from tests.sdk.sessions import must
from worm.clock import Clock, Ids, SystemClock
from worm.errors import Conflict, Corrupt, Fenced, Invalid, NotFound, Unavailable, UniqueViolation, WormError
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.log.keys import DbKeys
from worm.sdk.database import Worm
from worm.store.s3 import S3Store
from worm.tables.verify import verify_collection
from worm.upkeep.purge import Purge
from worm.upkeep.repair import repair_model
from worm.upkeep.session import Maintenance, Session, Settings
from worm.upkeep.sweep import Sweep
from worm.upkeep.workers.apply import Apply
from worm.upkeep.workers.batch import Message
from worm.upkeep.workers.capture import Capture
from worm.upkeep.workers.compact import Compact
from worm.upkeep.workers.tables import Fold

SECONDS = float(os.environ.get("WORM_FAULT_SECONDS", "6"))
TIMEOUT_SECONDS = 1.0
SHARE = 0.08
EXPECTED = (Conflict, NotFound, Invalid, Unavailable, Fenced)
"""The errors that a client may get; `CommitStateUnknown` is an `Unavailable`."""
IDS = [f"c{number}" for number in range(5)]
EMAILS = [f"{name}@acme.com" for name in "xyz"]
ACCOUNTS = [f"account-{number}" for number in range(4)]
OPENING = 100
CUSTOMER: dict[str, object] = {
    "path": "#org/@customers/(id:string)",
    "file": "profile.json",
    "oplog": True,
    "softDelete": True,
    "snapshots": {"enabled": True, "every": 3},
    "fields": {"email": {"type": "string"}, "n": {"type": "number"}},
    "manifest": {"enabled": True},
    "indexes": {"byEmail": {"field": "email", "unique": True}},
}
MODES: list[tuple[Maintenance, Maintenance, Maintenance]] = [
    ("inline", "events", "inline"),
    ("background", "inline", "background"),
]
SCHEMA = load_schema({"version": "1.0", "models": {"Customer": CUSTOMER, "Account": ACCOUNT}})


class LaterClock(SystemClock):
    """When nobody can be at work any more."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


@dataclass
class Told:
    """The answers that the clients got: numbers of writes that were acknowledged, of those that may have landed, and
    of those that were refused, with the reason."""

    acked: dict[int, str] = field(default_factory=dict)
    maybe: dict[int, str] = field(default_factory=dict)
    denied: dict[int, tuple[str, WormError]] = field(default_factory=dict)
    transfers: list[int] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[BaseException] = field(default_factory=list)


class StormRoom:
    """A versioned bucket with two models, one of them in a space; straight on the server, and through the proxy."""

    def __init__(self, proxy: FaultProxy, seed: int) -> None:
        self.proxy, self.seed = proxy, seed
        self.bucket = new_bucket(proxy.upstream, versioned=True)
        self.plain = s3_client(proxy.upstream)
        self.told = Told()
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._number = 0
        db = self.db(self.store(is_direct=True))
        db.push()
        for one in ACCOUNTS:
            db.model("Account").insert({"id": one, "balance": OPENING})
        db.close()

    def store(self, *, is_direct: bool = False, clock: Clock | None = None) -> S3Store:
        url = self.proxy.upstream if is_direct else self.proxy.url
        seconds = 20.0 if is_direct else TIMEOUT_SECONDS
        return S3Store(self.bucket, endpoint_url=url, clock=clock, timeout_seconds=seconds)

    def db(self, store: S3Store, maintenance: Maintenance = "inline", seed: int = 0) -> Worm:
        ids = Ids(store.clock, Random(self.seed * 100 + seed)) if seed else Ids.system(store.clock)
        return Worm(
            store, SCHEMA, actor=f"client-{seed}", maintenance=maintenance, probe=False, clock=store.clock, ids=ids
        )

    # Clients

    def run(self, seconds: float = SECONDS) -> None:
        """Three sessions and the workers, while the proxy fails."""
        self.proxy.storm(SHARE)
        one, two, three = MODES[self.seed % len(MODES)]
        clients: list[Callable[[], None]] = [
            lambda: self.client(1, one),
            lambda: self.client(2, two),
            lambda: self.client(3, three),
            self.workers,
        ]
        threads = [threading.Thread(target=self.guarded, args=(one,), daemon=True) for one in clients]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        while not (self.ended.is_set() or (len(self.told.acked) > 2 and self.proxy.struck().total() > 10)):
            time.sleep(0.1)  # a busy machine gets little done
        self.ended.set()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), "a client hangs"
        time.sleep(0.5)  # what a client has given up on may not have reached the proxy yet
        self.proxy.heal()

    def guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by `check`, in the thread of the test
            self.told.broken.append(error)
            self.ended.set()

    def client(self, number: int, maintenance: Maintenance) -> None:
        chance = Random(self.seed * 10 + number)
        db = self.db(self.store(clock=HurriedClock()), maintenance, number)
        while not self.ended.is_set():
            self._attempt(db, chance)
        try:
            db.close()
        except EXPECTED as error:  # what is not folded is found by the sweep
            self.told.refused[f"close {type(error).__name__}"] += 1

    def _attempt(self, db: Worm, chance: Random) -> None:
        verbs = (self.insert, self.change, self.delete, self.restore, self.transfer)
        verb = chance.choices(verbs, (4, 4, 2, 2, 2))[0]
        try:
            verb(db, chance)
        except EXPECTED as error:
            self.told.refused[f"{verb.__name__} {type(error).__name__}"] += 1

    def insert(self, db: Worm, chance: Random) -> None:
        entity_id = chance.choice(IDS)
        self._write(entity_id, chance, lambda made: db.model("Customer").insert({"id": entity_id, **made}))

    def change(self, db: Worm, chance: Random) -> None:
        entity_id = chance.choice(IDS)
        found = db.model("Customer").get(entity_id)
        self._write(entity_id, chance, lambda made: db.model("Customer").save(found | made))

    def _write(self, entity_id: str, chance: Random, write: Callable[[dict[str, JsonValue]], object]) -> None:
        with self._lock:
            self._number += 1
            number = self._number
        made: dict[str, JsonValue] = {"n": number}
        if chance.random() < 0.5:
            made["email"] = chance.choice(EMAILS)
        try:
            write(made)
        except Unavailable:
            self.told.maybe[number] = entity_id
            raise
        except EXPECTED as error:
            self.told.denied[number] = entity_id, error
            raise
        self.told.acked[number] = entity_id

    def delete(self, db: Worm, chance: Random) -> None:
        db.model("Customer").delete(chance.choice(IDS))

    def restore(self, db: Worm, chance: Random) -> None:
        db.model("Customer").restore(chance.choice(IDS))

    def transfer(self, db: Worm, chance: Random) -> None:
        one, other = chance.sample(ACCOUNTS, 2)
        with db.transaction() as bank:
            giver, taker = must(bank.get("Account", one)), must(bank.get("Account", other))
            amount = min(_balance(giver), chance.randint(1, 9))
            bank.save("Account", giver | {"balance": _balance(giver) - amount})
            bank.save("Account", taker | {"balance": _balance(taker) + amount})
        self.told.transfers.append(must(bank.seq))

    # Workers

    def workers(self) -> None:
        """All of them, one after the other, again and again. A batch that fails is delivered again."""
        store = self.store(clock=HurriedClock())
        session = Session(store, Settings(self.bucket, threads=2), ids=Ids.system(store.clock), clock=store.clock)
        steps = [self.capture, self.fold, self.apply, self.sweep, self.compact, self.purge]
        while not self.ended.is_set():
            for step in steps:
                try:
                    step(session)
                except EXPECTED as error:
                    self.told.refused[f"{step.__name__} {type(error).__name__}"] += 1

    def capture(self, session: Session) -> None:
        keys = [f"org/customers/{one}/profile.json" for one in IDS]
        self._no_damage(Capture(session).run(_messages(keys, self.bucket)).failed)

    def fold(self, session: Session) -> None:
        keys = [one.key for one in session.store.list(".worm.changes/")][-20:]
        self._no_damage(Fold(session).run(_messages(keys, self.bucket)).failed)

    def apply(self, session: Session) -> None:
        keys = [one.key for one in session.store.list(DbKeys(MAIN).log)][-3:]
        self._no_damage(Apply(session).run(_messages(keys, self.bucket), lambda: 100.0).failed)

    def sweep(self, session: Session) -> None:
        for report in Sweep(session).run(lambda: 100.0):
            self._no_damage({"model": report.error or report.failure})

    def compact(self, session: Session) -> None:
        for report in Compact(session).run(lambda: 100.0):
            self._no_damage({"database": report.error})

    def purge(self, session: Session) -> None:
        Purge(session).run(lambda: 100.0)

    def _no_damage(self, failed: Mapping[str, object]) -> None:
        for reason in failed.values():
            if isinstance(reason, Corrupt) or (isinstance(reason, Exception) and not isinstance(reason, WormError)):
                raise reason

    # At the end

    def check(self) -> None:
        for error in self.told.broken:
            raise AssertionError(f"seed {self.seed}") from error
        store = self.store(is_direct=True, clock=LaterClock())
        session = Session(store, Settings(self.bucket, threads=4), ids=Ids.system(store.clock), clock=store.clock)
        for report in Sweep(session).run(lambda: math.inf, resume=False):
            assert (report.error, report.problems) == (None, {}), report
        for name in SCHEMA.models:
            left = [one for one in verify_collection(session.collection(name)).differences if one.kind != "claim-stale"]
            assert left == [], left
            assert repair_model(session, name).problems == {}
            assert verify_collection(session.collection(name)).differences == []
        self._check_customers()
        self._check_accounts(session)

    def _check_customers(self) -> None:
        """By a plain client: every acknowledged write is one version, one that may have landed at most one."""
        written, current = defaultdict[int, set[str]](set), dict[str, dict[str, object]]()
        pages = self.plain.get_paginator("list_object_versions").paginate(Bucket=self.bucket, Prefix="org/customers/")
        for version in (one for page in pages for one in page.get("Versions", [])):
            key = version["Key"]
            if not key.endswith("/profile.json") or "/.worm" in key:
                continue
            found = self.plain.get_object(Bucket=self.bucket, Key=key, VersionId=version["VersionId"])
            document = json.loads(found["Body"].read())
            if found["Metadata"].get("worm-op") != "restore":
                written[document["n"]].add(found["Metadata"].get("worm-put-id", ""))
            if version["IsLatest"]:
                current[key] = document
        lost = {number for number in self.told.acked if len(written[number]) != 1}
        assert lost == set(), (lost, {one: written[one] for one in lost})
        assert all(len(names) <= 1 for names in written.values()), written
        denied = {number: why for number, why in self.told.denied.items() if number in written}
        assert [why for why in denied.values() if not self._may_be_stored(*why)] == []
        held = Counter(document["email"] for document in current.values() if document.get("email"))
        assert not held or max(held.values()) == 1, (held, current)

    def _may_be_stored(self, entity_id: str, refusal: WormError) -> bool:
        """Whether a refused write may have a version all the same. A save whose claim was taken over meanwhile is
        undone, which leaves one. And of a PUT that came twice the client hears the 412 of the second; if a third
        write replaces the first one before the client looks, no current state can tell."""
        if isinstance(refusal, UniqueViolation):
            return "its claim was taken over" in (refusal.hint or "")
        key = f"/{self.bucket}/org/customers/{entity_id}/profile.json"
        doubled = (one for one in self.proxy.seen if one.fault is not None and one.fault.when == "twice")
        return isinstance(refusal, Conflict) and any(one.path == key for one in doubled)

    def _check_accounts(self, session: Session) -> None:
        """The documents, read by a plain client, are what the log of the space says, and no money came or went."""
        balances = {}
        for one in ACCOUNTS:
            key = session.collection("Account").documents.key(one)
            balances[one] = json.loads(self.plain.get_object(Bucket=self.bucket, Key=key)["Body"].read())["balance"]
        assert sum(balances.values()) == OPENING * len(ACCOUNTS), balances
        with self.db(self.store(is_direct=True)) as db:
            assert balances == {one: db.model("Account").get(one)["balance"] for one in ACCOUNTS}
            seqs = [one.seq for one in db.space("main").log()]
        assert len(self.told.transfers) == len(set(self.told.transfers))
        assert set(self.told.transfers) <= set(seqs)


def _balance(account: Mapping[str, JsonValue]) -> int:
    found = account["balance"]
    assert isinstance(found, int)
    return found


def _messages(keys: list[str], bucket: str) -> list[Message]:
    return [Message(f"m{number}", created(key, bucket=bucket), 2) for number, key in enumerate(keys)]
