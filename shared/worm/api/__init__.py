"""HTTP: what the deployed function `api` and `worm serve` answer with, and who may ask."""

from __future__ import annotations
