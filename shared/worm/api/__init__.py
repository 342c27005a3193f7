"""The HTTP API: the verbs of the SDK as resources, for Lambda and for `worm serve` alike."""
