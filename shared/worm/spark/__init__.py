"""Spark: the data source `worm`, and what the driver and the tasks of the jobs in spark_jobs/ do with Spark.

A job divides a collection into ranges of ids (`division` of collections, `paper` of tables), and each task does what
the library does in one process. So a rebuild writes the same bytes as the workers, and a task that runs twice, late or
beside a copy of itself changes nothing. The work of a task is bounded; only the number of tasks grows.

Only this room, pyspark_worm and spark_jobs import Spark, and no function contains it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.spark.cluster import (
        JobSpec,
        check_shared,
        failures_of_tasks,
        job_parser,
        job_spec,
        parallelism,
        say,
        spark_session,
        specs_of,
        store_at,
    )
    from worm.spark.export_frames import export_frame
    from worm.spark.export_lake import Exported, export_table
    from worm.spark.export_request import BROKEN, FORMATS, FROM, MODES, TABLES, ExportRequest, refuse_overlap
    from worm.spark.export_writing import DELTA, explain, require_package, sized_files, write_frame
    from worm.spark.inventory import Inventory, open_inventory
    from worm.spark.inventory_frames import InventoryTable, Source
    from worm.spark.rebuild_job import rebuild, rebuild_incrementally, rebuild_models
    from worm.spark.rebuild_tasks import run_rounds
    from worm.spark.shares import planned_ranges
    from worm.spark.source.datasource import WormDataSource
    from worm.spark.sweep_job import inventory_at, is_larger, sweep
    from worm.spark.verify_job import JobReport, fix, verify
else:
    __getattr__ = door(
        __name__,
        """
        cluster: JobSpec check_shared failures_of_tasks job_parser job_spec parallelism say spark_session specs_of
        cluster: store_at
        export_frames: export_frame
        export_lake: Exported export_table
        export_request: BROKEN ExportRequest FORMATS FROM MODES TABLES refuse_overlap
        export_writing: DELTA explain require_package sized_files write_frame
        inventory: Inventory open_inventory
        inventory_frames: InventoryTable Source
        rebuild_job: rebuild rebuild_incrementally rebuild_models
        rebuild_tasks: run_rounds
        shares: planned_ranges
        source.datasource: WormDataSource
        sweep_job: inventory_at is_larger sweep
        verify_job: JobReport fix verify
        """,
    )
