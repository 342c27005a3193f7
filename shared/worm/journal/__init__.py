"""An embedded store in a directory: `oplog.ndjson` is its truth, and all state is a fold over it."""
