"""The `worm` command: a thin skin over the library, one file per command or group of commands."""
