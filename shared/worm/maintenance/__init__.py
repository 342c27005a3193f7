"""What keeps derived data up to date without an event: SDK, workers and `worm repair` all call it."""
