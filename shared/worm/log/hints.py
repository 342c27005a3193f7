"""What to do about damage: the hints of errors."""

from __future__ import annotations

BY_HAND = "look at the object's older versions and restore a good one"
REPAIR = "run `worm db repair` to rebuild the root from what is left"
VERIFY = "run `worm log verify` to find all damage, and `worm log repair` to set it aside"
