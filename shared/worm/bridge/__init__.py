"""A model in a space: the log of the space is the truth, and the model's documents follow it.

`origins` answers what collections ask of the source of a change; `commits` reads and writes documents through the log;
`documents` brings commits into one document; `applied` says how far that is done for a whole space.
"""
