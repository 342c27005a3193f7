"""Pages by name and LSN: an LSM tree of immutable layer files on object storage, fed by the commit log.

A *page* is bytes under a name; every change of it is a *version* with the LSN that made it. A *layer* is one object
that holds versions, sorted; a reader fetches its index and single blocks, never the whole layer.
"""
