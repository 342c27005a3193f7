"""What runs around a bucket on AWS: its stack, queues, dead letters and metrics, and what all of it costs."""
