"""Spaces: transactions over many documents, every past state, branches and blobs, over one order of commits.

The meaning of a space is defined once, above a small `Backend` (backend.py); a backend stores rows. `sqlite:///…`
stores them in the tables of one database per space.
"""
