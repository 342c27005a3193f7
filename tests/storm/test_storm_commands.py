"""The command as processes behind a proxy that fails: exit codes say what happened, and no traceback does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest

from tests.fault_proxy import FaultProxy
from tests.storm.storm_room import EMAILS, IDS, SHARE, StormRoom
from worm.store.probe import ensure_safe

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("storm")]

WORM = Path(sys.executable).with_name("worm")
SEEDS = [int(os.environ["WORM_SEED"])] if "WORM_SEED" in os.environ else range(int(os.environ.get("WORM_SEEDS", "1")))
COMMANDS = int(os.environ.get("WORM_FAULT_COMMANDS", "6"))
REFUSALS = {3, 4, 11}  # NotFound, Conflict, UniqueViolation
UNCLEAR = {5, 6, 7}  # Fenced, Unavailable, CommitStateUnknown


def _worm(room: StormRoom, endpoint: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"WORM_URL": f"s3://{room.bucket}", "AWS_ENDPOINT_URL": endpoint}
    command = [str(WORM), *arguments]
    return subprocess.run(command, capture_output=True, env=variables, timeout=120, check=False, text=True, input=given)


def _client(room: StormRoom, number: int, commands: int) -> None:
    chance = Random(room.seed * 10 + number)
    for step in range(commands):
        entity_id, count = chance.choice(IDS), number * 1000 + step
        made = {"n": count, "email": chance.choice(EMAILS)} if chance.random() < 0.5 else {"n": count}
        verb = chance.choices(["put", "rm", "trash", "query", "history"], [5, 1, 1, 1, 1])[0]
        arguments = {
            "put": ["put", "Customer", "-", "--id", entity_id],
            "rm": ["rm", "Customer", entity_id],
            "trash": ["trash", "restore", "Customer", entity_id],
            "query": ["table", "query", "Customer", "--sort", "n"],
            "history": ["history", "Customer", entity_id],
        }[verb]
        found = _worm(room, room.proxy.url, *arguments, given=json.dumps(made) if verb == "put" else "")
        assert "Traceback" not in found.stderr, found.stderr
        assert found.returncode in {0, *REFUSALS, *UNCLEAR}, (arguments, found.returncode, found.stderr)
        lines = [line for line in found.stderr.splitlines() if "throttles this process" not in line]
        assert (found.returncode == 0) or len(lines) == 1, found.stderr
        room.told.refused[f"{verb} {found.returncode}"] += 1
        if verb == "put" and found.returncode == 0:
            room.told.acked[count] = entity_id
        elif verb == "put" and found.returncode in UNCLEAR:
            room.told.maybe[count] = entity_id


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_commands_in_a_storm_store_what_they_say_and_repair_makes_the_rest_good(proxy: FaultProxy, seed: int) -> None:
    room = StormRoom(proxy, seed)
    ensure_safe(room.store())  # its single attempts seldom get through a storm
    proxy.storm(SHARE)
    threads = [
        threading.Thread(target=room.guarded, args=(lambda number=number: _client(room, number, COMMANDS),))
        for number in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    proxy.heal()
    print(f"WORM_SEED={seed}: {len(proxy.seen)} requests, {dict(proxy.struck())}, {dict(room.told.refused)}")
    room.check()
    found = _worm(room, proxy.upstream, "verify")
    assert (found.returncode, found.stderr) == (0, ""), (found.stdout, found.stderr)
    assert room.told.acked
