"""A process that works on a store in a directory, for the tests that race and kill such processes.

    python -m tests.journal.log_worker hold|append|fill DIRECTORY [NUMBER]

`hold` opens the store, prints its pid and waits for the end of stdin. `append` goes on from the number: single inserts
and transactions of three in turn, and prints each number after it was acknowledged, until it is killed. `fill` writes
under a limit of so many bytes for a file, and prints how each write ended.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

from worm.errors import WormError
from worm.log.journal.store import LogStore


def hold(directory: Path) -> None:
    with LogStore.open(directory):
        print(os.getpid(), flush=True)
        sys.stdin.read()


def append(directory: Path, number: int) -> None:
    store = LogStore.open(directory)
    while True:
        if number % 2:
            store.insert("c", {"_id": number})
        else:
            with store.transaction() as tx:
                for part in range(3):
                    tx.insert("t", {"_id": f"{number}-{part}", "text": "x" * 50})
        print(number, flush=True)
        number += 1


def fill(directory: Path, limit: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    store = LogStore.open(directory)
    for number in range(limit):
        try:
            store.insert("c", {"_id": number, "text": "x" * 50})
        except WormError as error:
            print(type(error).__name__, flush=True)
            if type(error).__name__ == "Poisoned":
                return
        else:
            print(number, flush=True)


def main(work: str, directory: str, number: str = "0") -> None:
    if work == "hold":
        hold(Path(directory))
    elif work == "append":
        append(Path(directory), int(number))
    else:
        fill(Path(directory), int(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
