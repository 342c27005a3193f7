"""materialize: the documents of models in a space, brought to the end of its log (`spaces/bridge/following.py`).
Everything else works as usual: capture records them, tables are folded."""

from __future__ import annotations

from collections.abc import Mapping

from worm.clock import Deadline, forever
from worm.errors import NotFound
from worm.formats import ModelDef
from worm.spaces import DocumentRun, Materialized, OpenSpaces, correct_document
from worm.upkeep.session import Session


class Materializer:
    """Writes the documents of all models of a session that are in a space."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, db_id: str, left: Deadline) -> Materialized:
        """Apply the commits of the database `space-<name>` to the end of its log, or until time runs out."""
        name, session = OpenSpaces.name_of(db_id), self._session
        if name is None:
            return Materialized()
        with session.materializing:
            models = {model for model, definition in self._models().items() if definition.space == name}
            space = session.spaces.get(name) if models else None
            if space is None:
                return Materialized()
            return DocumentRun(space, db_id, models, session.collection, session.store, session.clock, session.ids).run(
                left
            )

    def run_space(self, name: str, left: Deadline = forever) -> Materialized:
        """Apply the commits of a space to the end of its log, or until time runs out."""
        return self.run(OpenSpaces.database_of(name), left)

    def _models(self) -> Mapping[str, ModelDef]:
        try:
            self._session.refresh()
        except NotFound:
            return {}  # no schema is pushed, so there are no models
        return self._session.schema.models

    def mend(self, model: str, entity_id: str) -> bool:
        """Set one document to the state of the log, if it has an older commit than it should."""
        return correct_document(self._session.collection(model), entity_id)
