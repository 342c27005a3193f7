"""A process that works on a FileStore, for the tests that race and kill such processes.

    python -m tests.store.file_worker create|count|rewrite DIRECTORY NAME ROUNDS

Prints one JSON line with what it was told; `rewrite` prints a line when it starts and goes on until it is killed.
"""

from __future__ import annotations

import json
import sys

from worm.errors import NotFound
from worm.store.base import Won
from worm.store.file import FileStore


def create(store: FileStore, name: str, rounds: int) -> list[int]:
    """Which of the slots this process was told it won."""
    return [
        number
        for number in range(rounds)
        if isinstance(store.put_if_absent(f"slots/{number}", f"{name}-{number}".encode()), Won)
    ]


def count(store: FileStore, rounds: int) -> int:
    """Increments one counter `rounds` times."""
    for _ in range(rounds):
        while True:
            current = store.get("counter")
            if current is None:
                raise NotFound("the counter is missing")
            if isinstance(store.put_if_match("counter", b"%d" % (int(current.body) + 1), current.etag), Won):
                break
    return rounds


def rewrite(store: FileStore, size: int) -> None:
    """Replaces one document for ever, with one letter repeated, and its letter as metadata."""
    print("started", flush=True)
    turn = 0
    while True:
        letter = chr(ord("a") + turn % 26)
        store.put("folder/doc", letter.encode() * size, metadata={"letter": letter})
        turn += 1


def main(work: str, directory: str, name: str, rounds: str) -> None:
    store = FileStore(directory)
    if work == "create":
        print(json.dumps(create(store, name, int(rounds))))
    elif work == "count":
        print(json.dumps(count(store, int(rounds))))
    else:
        rewrite(store, int(rounds))


if __name__ == "__main__":
    main(*sys.argv[1:])
