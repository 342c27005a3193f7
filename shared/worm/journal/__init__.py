"""Logs that are the truth: what happened, in order, as framed records; state is a fold over them.

`oplog.ndjson` in a directory of its own (an embedded store, and its archive) and the commit log on S3 share the
records, the fold and the tools.
"""
