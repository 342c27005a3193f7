"""Manifests, indexes, and the fold that keeps them equal to what is recorded."""
