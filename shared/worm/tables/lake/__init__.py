"""The Delta table of a model: a log that names Parquet files of its manifest, derived from the root by reconcile."""
