from __future__ import annotations

from pathlib import Path

import pytest

from tests.outside.world import require_clients


def test_without_clients_a_test_is_skipped_here_and_fails_in_ci(tmp_path: Path) -> None:
    """A suite that skips itself in CI looks like one that passes."""
    with pytest.raises(pytest.skip.Exception, match="scripts/setup --clients"):
        require_clients(tmp_path, is_ci=False)
    with pytest.raises(AssertionError, match="scripts/setup --clients"):
        require_clients(tmp_path, is_ci=True)
    (tmp_path / "aws").touch()
    require_clients(tmp_path, is_ci=True)
