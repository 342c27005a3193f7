"""The AWS resources around a bucket: its stack, queues, dead letters and metrics, and their cost."""
