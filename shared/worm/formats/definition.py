"""schema.json as typed, immutable values: `Schema`, `ModelDef` and their parts, with the defaults of the format.

Wire names are camelCase, Python names snake_case. A model's path, `#folder/#folder/@collection/(id:type)`, says where
its documents are: zero or more folders, one collection, and a typed id. Without the id the model is a *singleton* with
one document.

`load_schema` is the entry point: it turns JSON text, a file or a dict into a checked `Schema`, and lists all mistakes
at once. Each definition is checked first; then the rules between definitions: places do not overlap, and names point at
something that exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Self, get_args

from worm.clock import Ids
from worm.errors import Corrupt, Invalid, NotFound, show
from worm.formats.fields import (
    ID_TYPES,
    Check,
    FieldDef,
    IdType,
    check_id,
    compile_object,
    field_definition,
    field_name_problems,
    field_problems,
    id_of,
    id_problem,
    id_text,
    new_id,
    path_name_problem,
    typed_problem,
)
from worm.formats.members import (
    Definition,
    Problem,
    boolean,
    choice,
    dict_of,
    invalid,
    list_of,
    member,
    needed,
    nullable,
    text,
    whole,
)
from worm.formats.strict_json import (
    JsonObject,
    JsonValue,
    check_json,
    child_path,
    dumps,
    dumps_document,
    loads,
    type_name,
)
from worm.values import dataclass
from worm.version import DOCS_URL

DIRECTORY_BYTES_MAX = 400  # with the longest id, file and system names, a key stays under S3's 1,024 bytes
VERSIONS: tuple[Literal["1.0"], ...] = ("1.0",)
LOG_FOLDER = "db"  # `db/` holds the commit logs

_NAME = "_name"
_MODEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_ID = re.compile(r"\((\w+):(\w+)\)")
_EXPECTED = "expected #folder/@collection/(id:type)"


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")
_IRREGULAR = {
    "child": "children",
    "man": "men",
    "woman": "women",
    "person": "people",
    "data": "data",
    "metadata": "metadata",
    "news": "news",
    "series": "series",
    "staff": "staff",
    "equipment": "equipment",
    "quiz": "quizzes",
}


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A parsed path. `id_type` is None for a singleton."""

    folders: tuple[str, ...]
    collection: str
    id_type: IdType | None

    @classmethod
    def parse(cls, text: str) -> ModelPath:
        """Parse, or raise ValueError with the reason."""
        parts = text.split("/")
        id_type = _id_type(parts.pop()) if len(parts) > 1 and parts[-1].startswith("(") else None
        collection = parts.pop()
        if not collection.startswith("@"):
            raise ValueError(f"must name its collection with @, {_EXPECTED}")
        folders = tuple(_folder(part) for part in parts)
        path = cls(folders, _segment("collection", collection[1:]), id_type)
        if (folders or (path.collection,))[0] == LOG_FOLDER:
            raise ValueError(f"the first folder must not be {show(LOG_FOLDER)}, which holds the commit logs")
        if len(path.directory) > DIRECTORY_BYTES_MAX:
            raise ValueError(f"folders and collection are longer than {DIRECTORY_BYTES_MAX} bytes")
        return path

    @staticmethod
    def usual_collection(model: str, *, singleton: bool) -> str:
        """The collection of a model without a path: `customers`, `order-lines`; a singleton's name is not made
        plural."""
        words = [word.lower() for word in _WORDS.findall(model)] or [model.lower()]
        if not singleton:
            words[-1] = _plural(words[-1])
        return "-".join(words)

    @property
    def directory(self) -> str:
        """`org/customers`: folders and collection, without a slash at the end."""
        return "/".join((*self.folders, self.collection))

    def __str__(self) -> str:
        identifier = f"/(id:{self.id_type})" if self.id_type else ""
        return "".join(f"#{folder}/" for folder in self.folders) + f"@{self.collection}{identifier}"


def _plural(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("y") and word[-2:-1] not in ("", *"aeiou"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "z", "ch", "sh")) else f"{word}s"


def _folder(part: str) -> str:
    if not part.startswith("#"):
        raise ValueError(f"part {show(part)} must start with # (folder), {_EXPECTED}")
    return _segment("folder", part[1:])


def _segment(role: str, name: str) -> str:
    problem = path_name_problem(name)
    if problem:
        raise ValueError(f"{role} {show(name)} {problem}")
    return name


def _id_type(part: str) -> IdType:
    match = _ID.fullmatch(part)
    if not match or match[1] != "id":
        raise ValueError(f"part {show(part)} must be (id:type)")
    for known in ID_TYPES:
        if match[2] == known:
            return known
    raise ValueError(f"id type {show(match[2])} is unknown, choose one of {', '.join(ID_TYPES)}")


Layout = Literal["root", "collection", "inline"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
Mode = Literal["readonly", "readwrite", "append"]
IndexType = Literal["standard", "multiValue"]
LakeFormat = Literal["delta"]

TIME_FIELDS = ("createdAt", "updatedAt")
SYSTEM_FIELDS = frozenset(("id", *TIME_FIELDS))
EVERYTHING_ELSE = "."
"""A mark among the fields of a manifest: rows also have all other fields of their documents. No field of a schema has a
dot in its own name."""
FIELD_BYTES_MAX, ROW_BYTES_MAX = 1 << 20, 4 << 20
"""The maximum size of a row in any schema: partitions and change sets are cut between rows."""

_DURATION = re.compile(r"([1-9]\d{0,5})([smhdw])", re.ASCII)
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FILE_BYTES_MAX = 100
_SPACE_BYTES_MAX = 100


def duration_seconds(text: str) -> int:
    """`30d` in seconds; `ValueError` for text that is not a duration."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("must be a number and a unit s, m, h, d or w, such as 30d")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def _check_archive_age(text: str) -> None:
    if text != "never" and duration_seconds(text) < _UNIT_SECONDS["d"]:
        raise ValueError("must be at least 1d, or never")


def _check_file_name(text: str) -> None:
    problem = path_name_problem(text)
    if problem or len(text) > _FILE_BYTES_MAX:
        raise ValueError(f"file name {problem or f'must have at most {_FILE_BYTES_MAX} bytes'}")


def _check_space_name(text: str) -> None:
    problem = path_name_problem(text)
    if problem or len(text) > _SPACE_BYTES_MAX:
        raise ValueError(f"name of a space {problem or f'must have at most {_SPACE_BYTES_MAX} bytes'}")


class SnapshotsDef(Definition):
    """Periodic full copies: every `every` oplog entries, pruned by age and count."""

    enabled: bool = member(boolean, default=False)
    every: int = member(whole(1), default=10)
    max_age: str = member(text(duration_seconds), default="30d")
    max_count: int = member(whole(1), default=50)

    @property
    def max_age_seconds(self) -> int:
        return duration_seconds(self.max_age)


class ManifestDef(Definition):
    """The collection's table. `fields` None means all fields of the schema and, with `extra`, all others of the
    documents. Values larger than `max_field_bytes` of canonical JSON are left out of the rows, and so are values that
    make a row larger than `max_row_bytes`."""

    enabled: bool = member(boolean, default=False)
    fields: list[str] | None = member(nullable(list_of(text())), default=None)
    extra: bool = member(boolean, default=True)
    auto_update: bool = member(boolean, default=True)
    partition_threshold: int = member(whole(1), default=10_000)
    max_partitions: int = member(whole(1, 4096), default=16)
    max_field_bytes: int = member(whole(1, FIELD_BYTES_MAX), default=32 << 10)
    max_row_bytes: int = member(whole(1, ROW_BYTES_MAX), default=128 << 10)


class IndexDef(Definition):
    """A lookup table by one field, which may be a dotted path into an object."""

    field: str = needed(text())
    unique: bool = member(boolean, default=False)
    type: IndexType = member(choice(get_args(IndexType)), default="standard")


class LakeDef(Definition):
    """The model's table as a table of a data lake, at most `every` behind. It needs a manifest."""

    format: LakeFormat = member(choice(get_args(LakeFormat)), default="delta")
    every: str = member(text(duration_seconds), default="15m")

    @property
    def every_seconds(self) -> int:
        return duration_seconds(self.every)


class StorageDef(Definition):
    """Where oplog, snapshots and trash are; the three overrides take precedence over `layout`."""

    layout: Layout = member(choice(LAYOUTS), default="root")
    oplog: Layout | None = member(nullable(choice(LAYOUTS)), default=None)
    snapshots: Layout | None = member(nullable(choice(LAYOUTS)), default=None)
    trash: Layout | None = member(nullable(choice(LAYOUTS)), default=None)

    @property
    def oplog_layout(self) -> Layout:
        return self.oplog or self.layout

    @property
    def snapshots_layout(self) -> Layout:
        return self.snapshots or self.layout

    @property
    def trash_layout(self) -> Layout:
        return self.trash or self.layout


class ModelDef(Definition):
    """One model. `name` is its key under `models`."""

    path: str = needed(text(ModelPath.parse))
    file: str = member(text(_check_file_name), default="data.json")
    mode: Mode = member(choice(get_args(Mode)), default="readwrite")
    fields: dict[str, FieldDef] = member(dict_of(field_definition), default={})
    oplog: bool = member(boolean, default=False)
    soft_delete: bool = member(boolean, default=False)
    trash_ttl_days: int = member(whole(0), default=30)
    archive_after: str | None = member(nullable(text(_check_archive_age)), default=None)
    snapshots: SnapshotsDef = member(SnapshotsDef.read, default=SnapshotsDef())
    manifest: ManifestDef = member(ManifestDef.read, default=ManifestDef())
    indexes: dict[str, IndexDef] = member(dict_of(IndexDef.read), default={})
    lake: LakeDef | None = member(nullable(LakeDef.read), default=None)
    strict: bool = member(boolean, default=False)
    space: str | None = member(nullable(text(_check_space_name)), default=None)

    @property
    def name(self) -> str:
        return str(self.__dict__.get(_NAME, ""))

    def called(self, name: str) -> None:
        """Its name in the schema."""
        self.__dict__[_NAME] = name

    def _compared(self) -> tuple[object, ...]:
        return (self.name, *super()._compared())

    @cached_property
    def location(self) -> ModelPath:
        """The parsed path."""
        return ModelPath.parse(self.path)

    @property
    def collection(self) -> str:
        return self.location.collection

    @property
    def id_type(self) -> IdType | None:
        return self.location.id_type

    @property
    def is_singleton(self) -> bool:
        return self.location.id_type is None

    @staticmethod
    def name_problem(name: str) -> str | None:
        """Why this cannot be the name of a model, or None when it can."""
        if _MODEL_NAME.fullmatch(name):
            return None
        return "a model name must be a letter followed by letters, digits or _"

    # Ids

    def id_problem(self, id: str) -> str | None:
        """Why this cannot be the id of a document, or None."""
        return typed_problem(self.id_type, id)

    def check_id(self, id: str) -> str:
        """Return the id, or raise `Invalid` with the reason."""
        return check_id(self.id_type, id)

    def id_of(self, given: object) -> str:
        """The id that a caller passes, as text: a string, an integer if ids are `int`, a `UUID` if they are `uuid`."""
        return id_of(self.id_type, given)

    def id_text(self, value: object) -> str:
        """The id in a document as text, valid or not: text, a UUID, or an integer if ids are `int`."""
        return id_text(self.id_type, value)

    def new_id(self, ids: Ids) -> str:
        """A new random id."""
        return new_id(self.id_type, ids)

    # Fields

    def field_at(self, dotted: str) -> FieldDef | None:
        """The definition of a (dotted) name; None if there is none."""
        return find_field(self.fields, dotted)[1]

    def undeclared_fields(self, names: Iterable[str]) -> list[str]:
        """The (dotted) names that the schema does not declare. `Invalid` if the model is strict, so that no document
        can have one: it is a typo. Objects inside a document are not strict, and filters look through arrays."""
        unknown = [name for name in dict.fromkeys(names) if not find_field(self.fields, name)[0]]
        for name in unknown if self.strict else ():
            if not _is_possible(self.fields, name):
                known = ", ".join(("id", *(one for one in self.fields if one != "id")))
                raise Invalid(f"{self.name} has no field {show(name)}; it has {known}")
        return unknown

    def undeclared_notes(self, names: Iterable[str]) -> list[str]:
        """Notes about fields that the schema does not declare: they may be typos."""
        return [f"the schema of {self.name} declares no field {name!r}" for name in self.undeclared_fields(names)]

    @property
    def archive_seconds(self) -> int | None:
        """How long an entity must be unchanged before its old entries are archived; None: nothing is archived. With
        `never` there may still be older archives, so readers and writers look for them."""
        return None if self.archive_after in (None, "never") else duration_seconds(self.archive_after or "")

    @property
    def keeps_manifest(self) -> bool:
        """Indexes are folded from the manifest's rows, so a model with an index keeps the manifest too."""
        return self.manifest.enabled or bool(self.indexes)

    @property
    def unique_indexes(self) -> list[IndexDef]:
        """By field name. All writers claim values in this order. So if two writers want the same two values, one gets
        the first and, as far as these two are concerned, also the second."""
        return sorted((index for index in self.indexes.values() if index.unique), key=lambda index: index.field)

    @property
    def folds_manifest(self) -> bool:
        """Do folds maintain the manifest? Without `autoUpdate` only a build writes it."""
        return self.keeps_manifest and self.manifest.auto_update

    @cached_property
    def _table_fields(self) -> tuple[str, ...]:
        chosen = self.fields if self.manifest.fields is None else self.manifest.fields
        indexed = (index.field for index in self.indexes.values())
        return tuple(name for name in dict.fromkeys((*chosen, *TIME_FIELDS, *indexed)) if name != "id")

    def table_fields(self) -> tuple[str, ...]:
        """The named fields of a manifest row, in order; the id is the row's key. Dotted names reach into objects."""
        return self._table_fields

    @property
    def keeps_whole_rows(self) -> bool:
        """Does a row of the manifest have everything that its document has?"""
        return self.keeps_manifest and self.manifest.fields is None and self.manifest.extra

    @staticmethod
    def named_in(row_form: Iterable[str]) -> tuple[str, ...]:
        """The named fields of a `row_form`."""
        return tuple(name for name in row_form if not name.startswith(EVERYTHING_ELSE))

    @cached_property
    def row_form(self) -> tuple[str, ...]:
        """Describes how rows are made: their named fields, then `EVERYTHING_ELSE` if rows are whole documents, then the
        limits."""
        limits = f".cut {self.manifest.max_field_bytes}/{self.manifest.max_row_bytes}"
        return (*self._table_fields, *((EVERYTHING_ELSE,) if self.keeps_whole_rows else ()), limits)

    def defaults(self) -> JsonObject:
        """The declared default values, as a fresh copy."""
        declared = {name: field.default for name, field in self.fields.items() if field.has_default}
        copy = loads(dumps(declared))
        return copy if isinstance(copy, dict) else {}

    @cached_property
    def _check(self) -> Check:
        return compile_object(self.fields, strict=self.strict, always=SYSTEM_FIELDS)

    def __getstate__(self) -> dict[str, object]:
        """Without the compiled check, which is recompiled."""
        return {name: value for name, value in self.__dict__.items() if name != "_check"}

    def validate_document(self, document: JsonValue, *, id: str | None = None) -> list[Problem]:
        """Every rule the document breaks. `id` is the id of its key; a field `id` must equal it."""
        problems: list[Problem] = []
        self._check(document, "", problems)
        if isinstance(document, dict) and id is not None and "id" in document:
            problems += self._id_problems(document["id"], id)
        return problems

    def _id_problems(self, value: JsonValue, id: str) -> list[Problem]:
        if self.is_singleton or (isinstance(value, str) and value == id):
            return []
        if self.id_type == "int" and isinstance(value, int) and not isinstance(value, bool) and str(value) == id:
            return []
        return [Problem("id", f"must equal the id of the key, {show(id)}, not {show(value)}")]

    def check_document(
        self,
        document: JsonValue,
        *,
        id: str | None = None,
        key: str | None = None,
        before: Callable[[], JsonValue] | None = None,
    ) -> None:
        """Raise `Invalid` listing every rule that the document breaks. Rules that its predecessor already broke do not
        count: it was valid when it was written, and other changes must stay possible."""
        problems = self.validate_document(document, id=id)
        if problems and before is not None and isinstance(old := before(), dict):
            known = self.validate_document(old, id=id)
            problems = [one for one in problems if one not in known]
        if problems:
            raise invalid(f"{self.name} document", problems, key=key)


class Schema(Definition):
    """All models of one bucket.

    Examples:
        >>> sorted(db.schema.models)
        ['Customer', 'Note']
    """

    version: Literal["1.0"] = member(choice(VERSIONS), default="1.0")
    bucket: str | None = member(nullable(text()), default=None)
    storage: StorageDef = member(StorageDef.read, default=StorageDef())
    models: dict[str, ModelDef] = needed(dict_of(ModelDef.read))

    URL: ClassVar = f"{DOCS_URL}reference/schema.schema.json"
    """The JSON Schema of schema.json, for editors; `"$schema"` names it."""
    JSON_SCHEMA: ClassVar = Path(__file__).with_name("schema.schema.json")
    """The same in this package. It says what `load_schema` accepts, except for rules between models and fields."""

    def __init__(self, **values: object) -> None:
        super().__init__(**values)
        for name, model in self.models.items():
            model.called(name)

    @classmethod
    def read(cls, raw: JsonValue, path: str, problems: list[Problem]) -> Self:
        """`"$schema"` is for editors: it is left out."""
        if isinstance(raw, dict) and "$schema" in raw:
            raw = dict(raw)
            text()(raw.pop("$schema"), child_path(path, "$schema"), problems)
        return super().read(raw, path, problems)

    @staticmethod
    def require(given: object) -> Schema:
        """`Invalid` for what is not a loaded schema."""
        if not isinstance(given, Schema):
            raise Invalid(f"takes a Schema, not {show(given)}", path="schema", hint="`worm.load_schema` makes one")
        return given

    def __repr__(self) -> str:
        return f"<Schema {self.version} ({', '.join(self.models)})>"

    def model(self, name: str) -> ModelDef:
        """The model of this name; `NotFound` lists the known ones."""
        given: object = name
        found = self.models.get(given) if isinstance(given, str) else None
        if found is None:
            raise NotFound(f"the schema has no model {show(name)}; known: {', '.join(self.models) or 'none'}")
        return found

    def to_json(self) -> bytes:
        """Stable bytes of the definitions as written: `load_schema(schema.to_json()) == schema`.

        Models and fields keep their order, which is the order of a table's columns; everything else is normalized.
        """
        return dumps_document(self.shape())


def find_field(fields: Mapping[str, FieldDef], dotted: str) -> tuple[bool, FieldDef | None]:
    """Is a (dotted) name allowed by the definitions? With its definition, if it is declared."""
    if dotted in SYSTEM_FIELDS and dotted not in fields:
        return True, None
    head, *rest = dotted.split(".")
    field = fields.get(head)
    for name in rest:
        if field is None or field.type != "object" or not name:
            return False, None
        if field.properties is None:
            return True, None
        field = field.properties.get(name)
    return field is not None, field


def _is_possible(fields: Mapping[str, FieldDef], dotted: str) -> bool:
    """Can a document of a strict model with these fields have a value there?"""
    head, *rest = dotted.split(".")
    field = fields.get(head)
    if field is None:
        return False
    for name in rest:
        while field is not None and field.type == "array":
            field = field.items
        if field is not None and field.type != "object":
            return False
        field = None if field is None or field.properties is None else field.properties.get(name)
    return True


SCHEMA_BYTES_MAX = 1024 * 1024


def load_schema(source: Mapping[str, object] | bytes | str | Path) -> Schema:
    """Load from a dict, from JSON bytes, or from the path of a file. `Invalid` names the JSON path of each mistake.

    Examples:
        >>> fields = {"name": {"type": "string"}}
        >>> model = {"path": "#crm/@customers/(id:string)", "file": "data.json", "fields": fields}
        >>> sorted(worm.load_schema({"models": {"Customer": model}}).models)
        ['Customer']
    """
    raw = _read(source)
    if not isinstance(raw, dict):
        raise Invalid(f"a schema must be a JSON object, not {type_name(raw)}")
    problems: list[Problem] = []
    read = Schema.read(raw, "", problems)
    schema = None if problems else read
    raw_models = raw.get("models")
    known = raw_models if isinstance(raw_models, dict) else {}
    models = schema.models if schema else _well_formed(known)
    if schema and not schema.models:
        problems.append(Problem("models", "must define at least one model"))
    problems += cross_check(models, known)
    if problems or schema is None:
        raise invalid("schema", problems)
    return schema


def load_pushed(body: bytes, key: str) -> Schema:
    """The schema that was pushed to a location; `Corrupt`, with the key, if the object there is not a schema."""
    try:
        return load_schema(body)
    except Invalid as error:
        hint = "push a valid one with `worm push --force`"
        raise Corrupt(f"the pushed schema is not valid: {error.message}", key=key, hint=hint) from error


def _read(source: Mapping[str, object] | bytes | str | Path) -> JsonValue:
    if isinstance(source, bytes):
        return loads(source, max_bytes=SCHEMA_BYTES_MAX)
    if isinstance(source, str | Path):
        path = Path(source)
        try:
            body = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFound(
                f"the schema file {path} does not exist", hint="`worm import` creates one from existing documents"
            ) from error
        except OSError as error:
            raise Invalid(f"cannot read schema file {path}: {error.strerror}") from error
        except ValueError as error:  # no name of a file: a NUL, a lone surrogate
            raise Invalid(f"{show(str(source))} is not the path of a file") from error
        try:
            return loads(body, max_bytes=SCHEMA_BYTES_MAX)
        except Invalid as error:
            raise Invalid(f"{path}: {error.message}", hint=error.hint) from error
    if not isinstance(source, Mapping):
        raise Invalid(f"a schema must be an object, its JSON, or the path of a file, not {type(source).__name__}")
    return check_json(dict(source))


def _well_formed(raw_models: Mapping[str, JsonValue]) -> dict[str, ModelDef]:
    """The models that can be checked further, even if another one has a mistake."""
    models: dict[str, ModelDef] = {}
    for name, raw in raw_models.items():
        problems: list[Problem] = []  # already reported while reading the whole schema
        model = ModelDef.read(raw, "", problems)
        if not problems:
            models[name] = model
    return models


def cross_check(models: Mapping[str, ModelDef], known: Mapping[str, object]) -> list[Problem]:
    """Every mistake between or inside well-formed models. `known` holds all model names, well-formed or not."""
    problems: list[Problem] = []
    for name, model in models.items():
        path = child_path("models", name)
        name_problem = ModelDef.name_problem(name)
        if name_problem:
            problems.append(Problem(path, name_problem))
        for field_name, field in model.fields.items():
            fields_path = child_path(path, "fields")
            problems += field_name_problems(field_name, fields_path)
            problems += field_problems(field, child_path(fields_path, field_name), known)
        problems += _manifest_problems(model, path)
        if model.archive_after is not None and not model.oplog:
            problems.append(
                Problem(f"{path}.archiveAfter", "needs oplog: true; without it there is nothing to archive")
            )
        if model.lake is not None and not model.folds_manifest:
            problems.append(
                Problem(f"{path}.lake", 'needs a table that is kept up to date: set "manifest": {"enabled": true}')
            )
        problems += _index_problems(model, path)
    return problems + _place_problems(models)


def _manifest_problems(model: ModelDef, path: str) -> list[Problem]:
    problems: list[Problem] = []
    for at, name in enumerate(model.manifest.fields or ()):
        if not find_field(model.fields, name)[0]:
            where = child_path(f"{path}.manifest.fields", at)
            problems.append(Problem(where, f"unknown field {show(name)}, known: {_known(model)}"))
    return problems


def _index_problems(model: ModelDef, path: str) -> list[Problem]:
    problems: list[Problem] = []
    owner: dict[str, str] = {}
    for name, index in model.indexes.items():
        where = child_path(f"{path}.indexes", name)
        if index.field in owner:
            message = f"field {index.field!r} already has the index {owner[index.field]!r}"
            problems.append(Problem(f"{where}.field", message))
        owner.setdefault(index.field, name)
        exists, field = find_field(model.fields, index.field)
        if not exists:
            problems.append(Problem(f"{where}.field", f"unknown field {show(index.field)}, known: {_known(model)}"))
        elif field is not None:
            problems += _index_type_problems(index, field, where)
        if index.unique and index.type == "multiValue":
            problems.append(Problem(f"{where}.unique", "a multiValue index cannot be unique"))
    return problems


def _index_type_problems(index: IndexDef, field: FieldDef, where: str) -> list[Problem]:
    if index.type == "multiValue" and field.type != "array":
        return [Problem(f"{where}.type", f"multiValue needs an array field, {show(index.field)} is {field.type}")]
    if index.type == "standard" and field.type in ("array", "object"):
        hint = ', use "type": "multiValue"' if field.type == "array" else ""
        return [Problem(f"{where}.field", f"{show(index.field)} is {field.type} and has no single value{hint}")]
    return []


def _place_problems(models: Mapping[str, ModelDef]) -> list[Problem]:
    problems: list[Problem] = []
    owner: dict[str, str] = {}
    by_directory: dict[str, str] = {}
    for name, model in models.items():
        path = f"{child_path('models', name)}.path"
        if model.collection in owner:
            message = f"collection {model.collection!r} already belongs to model {owner[model.collection]}"
            problems.append(Problem(path, f"{message}; system directories are named by collection"))
        owner.setdefault(model.collection, name)
        if not model.is_singleton:
            by_directory.setdefault(model.location.directory, name)
    for name, model in models.items():
        segments = model.location.directory.split("/")
        for at in range(1, len(segments)):
            outer = by_directory.get("/".join(segments[:at]))
            id_type = None if outer is None else models[outer].id_type
            if id_type is not None and not id_problem(id_type, segments[at]):
                message = f"{model.location.directory!r} is also the document {segments[at]!r} of model {outer}"
                problems.append(Problem(f"{child_path('models', name)}.path", message))
    return problems


def _known(model: ModelDef) -> str:
    return ", ".join(model.fields) or "none"
