"""Spark jobs: what one process cannot hold, over whole collections. Each module is one job, or a part of one."""
