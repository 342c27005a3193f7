"""A model in a space: the log of the space is the source of truth, and the model's documents follow it.

`origins` answers the questions of collections about the source of a change; `commits` reads and writes documents
through the log; `document_merge` merges branches; `following` applies the log to all documents, `documents` to one, and
`applied` records how far that is done for a whole space.
"""
