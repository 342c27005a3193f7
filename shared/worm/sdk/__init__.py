"""The verbs of the SDK, one module each; `worm.model` is where to import from."""
