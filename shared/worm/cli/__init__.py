"""The `worm` command: a thin layer over the library, one module per noun. `commands` lists where each command is."""
