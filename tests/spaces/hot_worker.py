"""A process that commits as fast as it can; run as `python -m tests.spaces.hot_worker URL SESSION COUNT`.

It opens the space, says that it is ready, waits for a line, commits COUNT transactions that each add to a counter of
its own and set a document that all share, and prints what that took as one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from worm.errors import Fenced
from worm.formats.strict_json import JsonObject
from worm.spaces.opening import open_space


def operations(session: str, number: int) -> list[JsonObject]:
    own: JsonObject = {"op": "add", "path": f"/n{number}", "value": number}
    return [
        {"op": "patch", "id": f"counter/{session}", "patches": [own]},
        {"op": "set", "id": "shared", "value": {"by": session, "number": number}},
    ]


def main(url: str, session: str, count: str) -> None:
    fenced, made = 0, Fenced.__init__

    def counted(self: Fenced, *args: Any, **named: Any) -> None:
        nonlocal fenced
        fenced += 1
        made(self, *args, **named)

    setattr(Fenced, "__init__", counted)  # noqa: B010  # mypy knows no other way; counts those that no caller sees, too
    space: Any = open_space(url, "main")
    store = space._backend._store
    list(store.list("db/", limit=1))  # loads the client library for listings, which takes longer than all the rest
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    seqs = [
        space.transact(operations(session, number), session_id=session, local_seq=number).seq
        for number in range(int(count))
    ]
    seconds = time.monotonic() - began
    space.close()
    print(json.dumps({"seqs": seqs, "seconds": seconds, "fenced": fenced, "requests": store.requests.snapshot()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
