"""Manifests, indexes, and the fold that keeps them in line with the recorded history."""
