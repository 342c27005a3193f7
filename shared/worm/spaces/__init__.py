"""Spaces: transactions over many documents, every past state, branches and blobs, over one order of commits.

The meaning of a space is defined once, above a small `Backend` (backend.py); a backend stores rows. `sqlite:///…`
stores them in the tables of one database per space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.spaces.backend import Backend
    from worm.spaces.blobs import Blob, Source, grace, stray, unneeded
    from worm.spaces.branches import BranchDifference
    from worm.spaces.bridge.applied import Applied, applied_file
    from worm.spaces.bridge.branches import BranchModel, BranchOplog
    from worm.spaces.bridge.commits import CommitOutcome, KnownDocument, SpaceModel, Write, commit
    from worm.spaces.bridge.documents import DocumentWriting, Step, operations_of, steps_of
    from worm.spaces.bridge.origins import SpaceOrigins, actor_of_commit, entity_name, in_space, outdated, written_over
    from worm.spaces.checking import SpaceReport
    from worm.spaces.merging import MergePlan, Policy, PolicyName, combined, policy_name
    from worm.spaces.opening import PREFIX, OpenSpaces, database_id, list_spaces, open_backend, open_space, space_on
    from worm.spaces.operations import ConfirmedRead, PendingRead, Read, SpaceConfig
    from worm.spaces.pulling import pull_space
    from worm.spaces.reading import seq_of
    from worm.spaces.results import (
        BothChanged,
        Branch,
        BranchMoved,
        Committed,
        Entity,
        LogEntry,
        MergeConflict,
        ReadConflict,
    )
    from worm.spaces.rows import DELETE, MAIN, TRUNK, branch_name, check_branch, check_id, moment_of
    from worm.spaces.space import Space
else:
    __getattr__ = door(
        __name__,
        """
        backend: Backend
        blobs: Blob Source grace stray unneeded
        branches: BranchDifference
        bridge.applied: Applied applied_file
        bridge.branches: BranchModel BranchOplog
        bridge.commits: CommitOutcome KnownDocument SpaceModel Write commit
        bridge.documents: DocumentWriting Step operations_of steps_of
        bridge.origins: SpaceOrigins actor_of_commit entity_name in_space outdated written_over
        checking: SpaceReport
        merging: MergePlan Policy PolicyName combined policy_name
        opening: OpenSpaces PREFIX database_id list_spaces open_backend open_space space_on
        operations: ConfirmedRead PendingRead Read SpaceConfig
        pulling: pull_space
        reading: seq_of
        results: BothChanged Branch BranchMoved Committed Entity LogEntry MergeConflict ReadConflict
        rows: DELETE MAIN TRUNK branch_name check_branch check_id moment_of
        space: Space
        """,
    )
