"""The embedded AWS with what template.yaml describes, and raw S3 clients that know nothing of this library."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness import schema_of
from tests.template.stack import judged
from worm.collections.collection import Collection
from worm.dev.environment import Environment, Settings
from worm.formats import load_schema
from worm.sdk.database import push
from worm.store.s3 import S3Store
from worm.tables.verify import VerifyReport, verify_collection
from worm.upkeep.session import Session
from worm.upkeep.session import Settings as WorkerSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

TEMPLATE = Path(__file__).resolve().parents[2] / "template.yaml"
UPLOAD_THREADS = 4
SCHEMA = schema_of(softDelete=True, snapshots={"enabled": True, "every": 2, "maxAge": "30d", "maxCount": 50})


@dataclass
class Deployment:
    """A running environment and the raw client on its bucket."""

    environment: Environment
    s3: S3Client
    store: S3Store

    def key(self, number: int) -> str:
        return f"org/customers/c{number:04}/profile.json"

    def upload(self, numbers: Sequence[int], document: Mapping[str, object]) -> None:
        def one(number: int) -> None:
            body = json.dumps({**document, "name": f"n{number}"}).encode()
            self.s3.put_object(Bucket=self.environment.bucket, Key=self.key(number), Body=body)

        with ThreadPoolExecutor(UPLOAD_THREADS) as pool:
            list(pool.map(one, numbers))

    def remove(self, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), 50):
            objects = [{"Key": self.key(number)} for number in numbers[start : start + 50]]
            self.s3.delete_objects(Bucket=self.environment.bucket, Delete={"Objects": objects})  # type: ignore[typeddict-item]

    def load(self, chance: random.Random, *, documents: int, overwrites: int, deletes: int) -> None:
        everyone = list(range(documents))
        self.upload(everyone, {"status": "active"})
        self.upload([chance.randrange(documents) for _ in range(overwrites)], {"status": "inactive", "score": 1})
        self.remove(chance.sample(everyone, deletes))

    @property
    def collection(self) -> Collection:
        workspace = Session(self.store, WorkerSettings(self.environment.bucket))
        workspace.refresh()
        return workspace.table("Customer").collection

    def verify(self) -> VerifyReport:
        return verify_collection(self.collection)

    def trashed(self) -> set[str]:
        collection = self.collection
        return {item.id for item in collection.trash.list(collection.clock.now())}


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    settings = Settings(window_seconds=0.5, run_schedules=False, parameters={"SpaceDocuments": "bank/*"})
    with Environment(TEMPLATE, settings) as environment, judged(environment):
        for name, value in environment.environment.items():
            monkeypatch.setenv(name, value)
        store = S3Store(environment.bucket, endpoint_url=environment.endpoint_url)
        push(store, load_schema(SCHEMA))
        environment.wait_quiet(30)
        yield Deployment(environment, environment.aws.s3(), store)
