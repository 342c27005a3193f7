"""The verbs. Import from `worm.model`."""
