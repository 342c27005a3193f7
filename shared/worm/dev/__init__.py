"""The embedded AWS of `worm dev` and `worm demo`: a bucket, events, queues and functions on one machine.

It reads the templates and starts what they describe: moto or another endpoint for S3 and SQS, and each function in
processes of its own under AWS's runtime client, with its timeout, batch size, concurrency and redrive. Tests use the
same `Environment`, with counters, injected faults and kill -9. Nothing imports this room, and no function contains it.
"""
