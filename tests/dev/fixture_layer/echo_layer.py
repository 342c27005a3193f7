"""Proves that the layer's folder is importable."""

from __future__ import annotations

GREETING = "from the layer"
