"""Spark jobs: work on whole collections that is too large for one process. Each module is one job, or a part of one."""
