"""What callers work with, and the JSON documents behind it: plain dicts, or objects of a pydantic class.

A *shape* converts one into the other. The shape of classes is in `objects.py`, which is imported when an object is met:
a program without classes does not load pydantic.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeGuard

from worm.collections import Document
from worm.errors import Invalid
from worm.formats import JsonValue, ModelDef, type_name
from worm.sdk.document import DocumentDict, bring_dict, provenance_of
from worm.sdk.values import as_document

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typing_extensions import TypeVar

    from worm.sdk.objects import Objects

    D = TypeVar("D", default=DocumentDict)
else:  # only type checkers need the default, and the `typing` of Python 3.11 does not support it
    from typing import TypeVar

    D = TypeVar("D")
"""The type of documents for the caller: dicts, unless it passes a class."""


def is_object(item: object) -> TypeGuard[BaseModel]:
    """Is it an object of a pydantic class? There are none unless pydantic has been imported; another thread may be
    importing it now."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return base is not None and isinstance(item, base)


def model_name(cls: type[BaseModel]) -> str:
    return str(getattr(cls, "worm_model", cls.__name__))


def _objects(item: BaseModel, definition: ModelDef) -> Objects[BaseModel]:
    from worm.sdk.objects import Objects

    return Objects(type(item), definition)


class Shape(Protocol[D]):
    """Converts between documents and what the caller works with."""

    @property
    def is_plain(self) -> bool:
        """Do callers get the documents themselves?"""
        ...

    def load(self, document: DocumentDict) -> D:
        """What the caller gets. `Invalid` if the document does not fit."""
        ...

    def dump(self, item: object) -> DocumentDict:
        """The document of the caller's object, with its provenance. `Invalid` for anything else."""
        ...

    def check(self, document: Document) -> None:
        """Called before a document is stored: `Invalid` if the caller could not read it back."""
        ...

    def bring(self, item: object, document: DocumentDict) -> None:
        """The caller's own object becomes the stored document: it gets its version, and the values that the write
        filled in."""
        ...

    def refreshed(self, item: D, document: DocumentDict) -> D:
        """The caller's own object, updated to the whole document."""
        ...


class Dicts:
    """Documents are dicts. Values that JSON does not know (times, decimals, …) are converted."""

    is_plain = True

    def __init__(self, definition: ModelDef) -> None:
        self._definition = definition

    def load(self, document: DocumentDict) -> DocumentDict:
        return document

    def dump(self, item: object) -> DocumentDict:
        if is_object(item):
            return _objects(item, self._definition).dump(item)
        if not isinstance(item, Mapping):
            raise Invalid(f"a document must be a dict, not {type_name(item)}", hint='{"id": "acme", "name": "Acme"}')
        return DocumentDict.of(as_document(item, self._definition), provenance_of(item))

    def check(self, document: Document) -> None:
        """Every document is a dict."""

    def bring(self, item: object, document: DocumentDict) -> None:
        if is_object(item):
            _objects(item, self._definition).bring(item, document)
        else:
            bring_dict(item, document)

    def refreshed(self, item: Mapping[str, JsonValue], document: DocumentDict) -> DocumentDict:
        if not isinstance(item, DocumentDict):
            return document
        item.clear()
        self.bring(item, document)
        return item
