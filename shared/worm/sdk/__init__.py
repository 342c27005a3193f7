"""The verbs of programs; `worm.model` is where to import from."""
