"""`Model`: everything that can be done with the documents of one model.

The verbs are in these modules: `writing` (insert, save, replace, upsert, delete), `changing` (patch, update, modify,
many at once), `reading` (by id, by query, totals), `history` (the past, rollback, snapshots), `trashing` (restore,
purge) and `tabling` (manifest and indexes). All of them build on `access`: checked ids, one conditional write, one
read, and the maintenance after a write.

Documents are dicts that know their version (`DocumentDict`), or objects of a pydantic class: `db.model(Customer)`. A
save is conditional on the version that its document came from. A session also remembers its own writes, so its queries
show them before the workers have processed them. Safe across threads.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, TypeVar, cast

from worm.errors import Invalid, show
from worm.sdk.access import D
from worm.sdk.changing import Changing
from worm.sdk.history import History
from worm.sdk.tabling import Tabling
from worm.sdk.trashing import Trashing

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")


class Model(Changing[D], History[D], Trashing[D], Tabling[D]):
    """Documents of one model: dicts or objects with `id`, `createdAt`, `updatedAt`.

    Examples:
        >>> db.model("Customer").get("acme")["name"], db.model(Customer).get("acme").name
        ('Acme', 'Acme')
    """

    def typed(self, cls: type[M]) -> Model[M]:
        """The same model, with documents as objects of the class.

        Examples:
            >>> db.model("Customer").typed(Customer).get("acme").name
            'Acme'
        """
        from pydantic import BaseModel

        from worm.sdk.objects import Objects

        given: object = cls
        if not isinstance(given, type) or not issubclass(given, BaseModel):
            raise Invalid(f"{show(given)} is not a pydantic class", path="typed")
        made = cast("Model[M]", copy(self))
        made._shape = Objects(cls, self._collection.definition)
        return made

    def __repr__(self) -> str:
        return f"<Model {self.name} at {self._session.store.url}>"
