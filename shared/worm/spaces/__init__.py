"""Spaces: transactions over many documents, every past state, branches and blobs, over one order of commits.

The meaning of a space is defined once, above a small `Backend` (backend.py); a backend stores rows. `sqlite:///…`
stores them in the tables of one database per space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.spaces.bridge.branches import BranchModel, BranchOplog
    from worm.spaces.bridge.commits import CommitOutcome, KnownDocument, SpaceModel, Write, commit
    from worm.spaces.bridge.following import Following, Materialized, mend
    from worm.spaces.bridge.origins import SpaceOrigins, actor_of_commit, entity_name, outdated, written_over
    from worm.spaces.checking import SpaceReport
    from worm.spaces.merging import MergePlan, Policy, PolicyName, combined, policy_name
    from worm.spaces.opening import OpenSpaces, list_spaces, open_space, space_on
    from worm.spaces.operations import ConfirmedRead, SpaceConfig
    from worm.spaces.pulling import pull_space
    from worm.spaces.results import BothChanged, Branch, BranchMoved, Committed, MergeConflict, ReadConflict
    from worm.spaces.rows import DELETE, MAIN, branch_name, check_branch, check_id
    from worm.spaces.space import Space
    from worm.spaces.tools import SpaceTools, SpaceTransaction
else:
    __getattr__ = door(
        __name__,
        """
        bridge.branches: BranchModel BranchOplog
        bridge.commits: CommitOutcome KnownDocument SpaceModel Write commit
        bridge.following: Following Materialized mend
        bridge.origins: SpaceOrigins actor_of_commit entity_name outdated written_over
        checking: SpaceReport
        merging: MergePlan Policy PolicyName combined policy_name
        opening: OpenSpaces list_spaces open_space space_on
        operations: ConfirmedRead SpaceConfig
        pulling: pull_space
        results: BothChanged Branch BranchMoved Committed MergeConflict ReadConflict
        rows: DELETE MAIN branch_name check_branch check_id
        space: Space
        tools: SpaceTools SpaceTransaction
        """,
    )
