"""The `worm` command: a thin skin over the library, a module per noun; `commands` says which command is where."""
