"""The fenced commit log on object storage: segments under a lease, one PUT each."""
