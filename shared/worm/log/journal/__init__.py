"""An embedded store in a directory: `oplog.ndjson` is the source of truth, and all state is a fold over it."""
