"""`Model`: everything that can be done with the documents of one model.

A session remembers the etags of the documents that it read, so `save` is optimistic: a document that changed since is a
`Conflict`. It also remembers what it wrote, so its own queries see that before the workers do. Safe across threads.
"""

from __future__ import annotations

from worm.sdk.bulk import Bulk
from worm.sdk.reading import Reading
from worm.sdk.snapshotting import Snapshotting
from worm.sdk.tabling import Tabling
from worm.sdk.trashing import Trashing


class Model(Bulk, Reading, Snapshotting, Tabling, Trashing):
    """Documents of one model: plain dicts with `id`, `createdAt`, `updatedAt`."""
