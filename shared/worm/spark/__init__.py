"""Spark: the data source `worm`, and the parts of the jobs in spark_jobs/. Nothing else imports Spark."""
