"""The names of a pydantic class's fields in documents: what it writes, what it asks for and what it reads."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import AliasChoices, AliasPath, BaseModel

from worm.errors import Invalid


def names_of(cls: type[BaseModel]) -> tuple[dict[str, str], list[str], set[str]]:
    """The names in documents that a class writes, each with its attribute; those to ask for; and all that it reads.
    `Invalid` where an object would not get back what it wrote."""
    config = cls.model_config
    by_alias = config.get("validate_by_alias") is not False
    by_name = bool(config.get("populate_by_name") or config.get("validate_by_name"))
    written: dict[str, str] = {}
    wanted: list[str] = []
    read: set[str] = set()
    for name, field in cls.model_fields.items():
        writes = name if field.serialization_alias is None else field.serialization_alias
        paths = _paths(name, field.validation_alias) if by_alias else [[name]]
        reads = [*paths, *([[name]] if by_name else [])]
        if not field.exclude and not _is_read_back(writes, reads):
            raise Invalid(
                f"{cls.__name__}.{name} is written as '{writes}', but read from "
                + " or ".join(f"'{'.'.join(str(part) for part in path)}'" for path in reads),
                path=name,
                hint=f"Field(alias='{writes}'), or AliasChoices with '{writes}' before any AliasPath",
            )
        written[writes] = name
        wanted += [first for first in (writes, *(str(path[0]) for path in paths)) if first not in wanted]
        read |= {str(path[0]) for path in reads if len(path) == 1}
    return written, wanted, read


def _paths(name: str, alias: str | AliasPath | AliasChoices | None) -> list[list[str | int]]:
    """Where a field is read from, the first choice first."""
    if alias is None:
        return [[name]]
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [list(one.path) if isinstance(one, AliasPath) else [one] for one in choices]


def _is_read_back(writes: str, reads: Sequence[Sequence[str | int]]) -> bool:
    """A path into another value is not written, and so kept as it was: it must not go before what is written."""
    first = next((path for path in reads if len(path) > 1 or path[0] == writes), None)
    return first is not None and list(first) == [writes]
