"""Pages by name and LSN: an LSM tree of immutable layer files on object storage, fed by the commit log.

A *page* is bytes under a name; every change of it is a *version* with the LSN that made it. A *layer* is one object
that holds versions, sorted; a reader fetches its index and single blocks, never the whole layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.pages import space_record
    from worm.pages.apply import Applier, databases
    from worm.pages.branches import Branches
    from worm.pages.collect import PageCollector
    from worm.pages.compact import Compacted, Compactor, Task, do_task
    from worm.pages.db import PageDb, create_database
    from worm.pages.deleting import delete_database, undelete_database
    from worm.pages.layers import Candidate, LayerGone, PageRange
    from worm.pages.manifest import MAIN, Layer, PageBranch, PageConfig
    from worm.pages.opening import open_pages
    from worm.pages.pack import pack_database, unpack_database
    from worm.pages.past import Past
    from worm.pages.reader import PageReader
    from worm.pages.records import check_data
    from worm.pages.repair import repair_root
    from worm.pages.root import PagesRoot
    from worm.pages.space_record import DATA, OPS, RUN, SNAPPED, EntityHead, Item, ItemRun, blob_page, space_pages
    from worm.pages.stat import BranchStat, branch_stat, picture
    from worm.pages.upkeep import CompactReport, Maintainer, maintain
    from worm.pages.verify import verify_pages
else:
    __getattr__ = door(
        __name__,
        """
        apply: Applier databases
        branches: Branches
        collect: PageCollector
        compact: Compacted Compactor Task do_task
        db: PageDb create_database
        deleting: delete_database undelete_database
        layers: Candidate LayerGone PageRange
        manifest: Layer MAIN PageBranch PageConfig
        opening: open_pages
        pack: pack_database unpack_database
        past: Past
        reader: PageReader
        records: check_data
        repair: repair_root
        root: PagesRoot
        space_record:
        space_record: DATA EntityHead Item ItemRun OPS RUN SNAPPED blob_page space_pages
        stat: BranchStat branch_stat picture
        upkeep: CompactReport Maintainer maintain
        verify: verify_pages
        """,
    )
