"""Does what the key of the document (or the event's `do`) says: the worker under test of tests/dev."""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

# The layer's folder is on the path only where Lambda (or the embedded AWS) runs this.
GREETING = importlib.import_module("echo_layer").GREETING


def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    if "Records" not in event:
        return _direct(event["do"], context)
    failed = []
    for record in event["Records"]:
        body = json.loads(record["body"])
        key = body["detail"]["object"]["key"] if "detail" in body else body["key"]
        received = record["attributes"]["ApproximateReceiveCount"]
        print(json.dumps({"key": key, "received": received}))
        if key.startswith("slow") and received == "1":
            time.sleep(20)  # a test kills it meanwhile
        if key.startswith("poison"):
            failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed}


def _direct(what: str, context: Any) -> dict[str, Any]:
    if what == "raise":
        raise ValueError("asked to")
    if what == "sleep":
        print("asleep", flush=True)
        time.sleep(600)
    if what == "exit":
        os._exit(3)
    if what == "grow":
        _ = bytearray(b"x") * 100_000_000
    if what == "spill":
        with (Path(os.environ["TMPDIR"]) / "large").open("wb") as file:
            file.truncate(513 * 1024 * 1024)
        time.sleep(600)
    if what == "allocate":
        bytearray(64 * 1024 * 1024 * 1024)
    return {
        "environment": dict(os.environ),
        "layer": GREETING,
        "memory": context.memory_limit_in_mb,
        "function": context.function_name,
        "arn": context.invoked_function_arn,
        "remaining_ms": context.get_remaining_time_in_millis(),
        "pid": os.getpid(),
    }
