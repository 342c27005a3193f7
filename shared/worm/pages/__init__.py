"""Pages by name and LSN: an LSM tree of immutable layer files on object storage, fed by the commit log.

A *page* is bytes under a name; every change of it is a *version* with the LSN that made it. A *layer* is one object
that holds versions, sorted; a reader fetches its index and single blocks, never the whole layer. `PageDb` writes a
branch, `PageReader` reads one, `Applier` and `Maintainer` bring layers up to date, and `PageTools` has everything else
that `worm db` can do. `space_record` says which pages a commit of a space makes.

A layer is never changed after it was written, and never deleted while a promised read needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.pages import space_record
    from worm.pages.apply import Applier
    from worm.pages.branches import Branches
    from worm.pages.compact import Compacted, Compactor, Task, do_task
    from worm.pages.db import PageDb
    from worm.pages.layers import Candidate, LayerGone, PageRange
    from worm.pages.manifest import Layer, PageConfig
    from worm.pages.opening import open_pages
    from worm.pages.reader import PageReader
    from worm.pages.records import check_data
    from worm.pages.root import PagesRoot
    from worm.pages.tools import PageTools
    from worm.pages.upkeep import CompactReport, Maintainer
else:
    __getattr__ = door(
        __name__,
        """
        apply: Applier
        branches: Branches
        compact: Compacted Compactor Task do_task
        db: PageDb
        layers: Candidate LayerGone PageRange
        manifest: Layer PageConfig
        opening: open_pages
        reader: PageReader
        records: check_data
        root: PagesRoot
        space_record:
        tools: PageTools
        upkeep: CompactReport Maintainer
        """,
    )
