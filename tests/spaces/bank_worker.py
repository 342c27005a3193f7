"""A client of the bank, as a process that may be killed at any time.

    python -m tests.spaces.bank_worker URL SESSION FIRST_NUMBER SEED

Moves money between accounts, on the main branch and on a branch, and prints the number of each transfer and the commit
that it was told, until it is killed or its input ends. Conflicts are tried again under a new number.
"""

from __future__ import annotations

import random
import sys

from worm.errors import Conflict, Fenced, Unavailable
from worm.formats.strict_json import JsonObject
from worm.spaces.opening import open_space
from worm.spaces.results import Entity
from worm.spaces.space import Space

ACCOUNTS = [f"account-{n:03d}" for n in range(100)]
BRANCHES = ["main", "audit"]


def balance(entity: Entity) -> int:
    assert entity.value is not None
    found = entity.value["balance"]
    assert isinstance(found, int)
    return found


def transfer(space: Space, session: str, number: int, rng: random.Random) -> int | None:
    """The commit, or None where there was nothing to move, or others were quicker each time."""
    branch = rng.choice(BRANCHES)
    one, other = rng.sample(ACCOUNTS, 2)
    seen = space.read_many([one, other], branch=branch)
    amount = min(balance(seen[one]), rng.randint(1, 50))
    if amount < 1:
        return None
    ops: list[JsonObject] = [
        {"op": "set", "id": one, "value": {"balance": balance(seen[one]) - amount}},
        {
            "op": "patch",
            "id": other,
            "patches": [
                {"op": "test", "path": "/balance", "value": balance(seen[other])},
                {"op": "replace", "path": "/balance", "value": balance(seen[other]) + amount},
            ],
        },
    ]
    try:
        done = space.transact(ops, session_id=session, local_seq=number, branch=branch, reads=list(seen.values()))
    except (Conflict, Fenced, Unavailable):
        return None
    return done.seq


def opened(url: str) -> Space:
    while True:
        try:
            return open_space(url, "main", create=False)
        except Unavailable:
            continue


def main(url: str, session: str, first: str, seed: str) -> None:
    rng, number = random.Random(int(seed)), int(first)
    with opened(url) as space:
        while True:
            try:
                seq = transfer(space, session, number, rng)
            except Unavailable:  # it could not even read
                seq = None
            if seq is not None:
                print(number, seq, flush=True)
            number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
