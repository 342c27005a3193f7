"""Spaces: transactions over many documents, every past state, branches and blobs, over one order of commits.

What a space means is written once, above a small `Backend` (backend.py); a backend keeps rows. `sqlite:///…` keeps them
in the tables of a database of its own for each space.
"""
