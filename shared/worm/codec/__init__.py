"""Bytes and values: strict and canonical JSON, exact diffs. Nothing in this room talks to storage."""
