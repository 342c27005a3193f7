"""Maintenance of derived data without events, used by the SDK, workers and `worm repair`."""
