"""Bytes and values: strict and canonical JSON, exact diffs. No room here talks to storage."""
