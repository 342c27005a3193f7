"""The demo's trash: the worker rescued what a raw client deleted; one document is restored, and an expired one is
purged.

Everything is shown by the `worm` command. The effect of each step is checked in the bucket itself, so if the trash does
not work, the demo fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

from worm.clock import iso_seconds
from worm.collections import KeyKind
from worm.dev.demo_view import Display
from worm.dev.environment import Environment
from worm.dev.sample.documents import Change, Workload
from worm.dev.worker import OutcomeKind
from worm.errors import Corrupt, Unavailable
from worm.sdk import Worm, connect

SHOWN = ("--format", "table")
Command = Callable[..., int]
"""Shows and runs a `worm` command."""


def show_trash(env: Environment, display: Display, worm: Command, load: Workload, quiet_seconds_max: float) -> None:
    """Shows nothing if the load deleted nothing."""
    if not load.deletes:
        return
    session = connect(f"s3://{env.bucket}", actor="user:demo", maintenance="events")
    model, entity_id = _entity(session, load.deletes[0])
    display.line()
    display.line(f"plain boto3 deleted {len(load.deletes)} documents; capture rescued them from their last versions:")
    worm("trash", "list", model)
    _must(session.model(model).find_by_id(entity_id) is None, f"{entity_id} still exists")
    worm("trash", "restore", model, entity_id, *SHOWN)
    env.wait_quiet(quiet_seconds_max)
    worm("history", model, entity_id)
    ops = [entry.op for entry in session.model(model).get_history(entity_id)]
    _must(ops[-2:] == ["delete", "restore"], f"the history of {entity_id} is {ops}")
    _purge(env, display, model, entity_id, quiet_seconds_max)


def _purge(env: Environment, display: Display, model: str, entity_id: str, quiet_seconds_max: float) -> None:
    """The document is deleted again and expires: purge, which runs every hour, removes it."""
    session = connect(f"s3://{env.bucket}", actor="user:demo", maintenance="events")
    kept = _trash_keys(env)
    session.model(model).delete(entity_id)
    env.wait_quiet(quiet_seconds_max)
    if env.aws.is_moto:  # elsewhere an object cannot be made older
        _make_expired(env, session, model, entity_id)
    outcome = env.fire("purge")
    if outcome.kind is not OutcomeKind.OK:
        raise Unavailable(f"the function purge failed ({outcome.kind.value}): {outcome.error}")
    if env.aws.is_moto:
        _must(_trash_keys(env) == kept, "purge did not remove exactly the expired documents")
        display.line()
        display.line(f"{entity_id} was deleted again and has expired: purge removed it from the trash")


def _make_expired(env: Environment, session: Worm, model: str, entity_id: str) -> None:
    """Make the deletion look 31 days old: in its tombstone, and in the listing that purge uses."""
    key = session.resolver.tombstone_key(model, entity_id)
    found = session.store.get(key)
    _must(found is not None, f"{entity_id} is not in the trash")
    assert found is not None
    shape = json.loads(found.body)
    old = datetime.fromisoformat(shape["deletedAt"]) - timedelta(days=shape["ttl"] + 1)
    body = json.dumps({**shape, "deletedAt": iso_seconds(old)}).encode()
    env.aws.s3().put_object(Bucket=env.bucket, Key=key, Body=body)
    env.aws.date_back(env.bucket, key, shape["ttl"] + 1)
    _must(entity_id not in [one["id"] for one in session.model(model).list_trashed()], "an expired document is listed")


def _trash_keys(env: Environment) -> list[str]:
    session = connect(f"s3://{env.bucket}", maintenance="events")
    kinds = (KeyKind.TRASH, KeyKind.TOMBSTONE)
    return [listed.key for listed in session.store.list("") if session.resolver.parse(listed.key).kind in kinds]


def _entity(session: Worm, change: Change) -> tuple[str, str]:
    info = session.resolver.parse(change.key)
    assert info.model is not None
    assert info.id is not None
    return info.model, info.id


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Corrupt(f"the trash does not work as it should: {otherwise}")
