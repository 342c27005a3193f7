"""Spaces: transactions over many documents, every past state, branches and blobs, over one order of commits.

`Space` is the whole interface; a small `Backend` below it stores rows, in SQLite or in a page store. In `bridge/` are
the models in a space: `SpaceModel` reads and commits their documents, `BranchModel` does so on a branch,
`DocumentMerge` merges one, and `DocumentRun` makes documents follow the log. `SpaceTools` is for `worm space`.

The log of a space is the truth: a commit never changes afterward, and a transaction is in it completely or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.spaces.bridge.branches import BranchModel
    from worm.spaces.bridge.commits import KnownDocument, SpaceModel, Write
    from worm.spaces.bridge.document_merge import DocumentMerge
    from worm.spaces.bridge.following import DocumentRun, Materialized, correct_document
    from worm.spaces.bridge.origins import SpaceOrigins, outdated
    from worm.spaces.checking import SpaceReport
    from worm.spaces.merging import MergePlan, Policy
    from worm.spaces.opening import OpenSpaces, list_spaces, open_space, space_on
    from worm.spaces.operations import delete_document, patch_document, set_document
    from worm.spaces.pulling import pull_space
    from worm.spaces.results import BothChanged, Branch, MergeConflict
    from worm.spaces.space import Space
    from worm.spaces.tools import SpaceTools, SpaceTransaction
else:
    __getattr__ = door(
        __name__,
        """
        bridge.branches: BranchModel
        bridge.commits: KnownDocument SpaceModel Write
        bridge.document_merge: DocumentMerge
        bridge.following: DocumentRun Materialized correct_document
        bridge.origins: SpaceOrigins outdated
        checking: SpaceReport
        merging: MergePlan Policy
        opening: OpenSpaces list_spaces open_space space_on
        operations: delete_document patch_document set_document
        pulling: pull_space
        results: BothChanged Branch MergeConflict
        space: Space
        tools: SpaceTools SpaceTransaction
        """,
    )
