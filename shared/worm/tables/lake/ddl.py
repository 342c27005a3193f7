"""One statement or line of code for each engine that reads a Delta table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from worm.errors import Invalid, show
from worm.tables.lake.publish import Publisher
from worm.tables.parquet import ETAG, ID, REST, SEQ, ColumnKind

Engine: TypeAlias = Literal["athena", "glue", "duckdb", "spark", "trino"]
ENGINES: tuple[Engine, ...] = get_args(Engine)


def ddl(lake: Publisher, engine: str) -> str:
    """The statement for the engine; for Glue, the input of `aws glue create-table`."""
    written = _WRITERS.get(engine)
    if written is None:
        raise Invalid(f"engine {show(engine)} is unknown, choose one of {', '.join(ENGINES)}")
    return written(lake.table.collection.name, lake)


def _athena(name: str, lake: Publisher) -> str:
    head = f"CREATE EXTERNAL TABLE {_quoted(name.lower(), '`')}"
    return f"{head}\nLOCATION {_text(lake.location + '/')}\nTBLPROPERTIES ('table_type' = 'DELTA');"


def _spark(name: str, lake: Publisher) -> str:
    return f"CREATE TABLE {_quoted(name, '`')} USING DELTA LOCATION {_text(lake.location)};"


def _duckdb(name: str, lake: Publisher) -> str:
    head = f"INSTALL delta; LOAD delta;\nCREATE VIEW {_quoted(name, chr(34))} AS"
    return f"{head} SELECT * FROM delta_scan({_text(lake.location)});"


def _trino(name: str, lake: Publisher) -> str:
    call = f"schema_name => 'default', table_name => '{name.lower()}', table_location => {_text(lake.location)}"
    return f"CALL delta.system.register_table({call});"


def _glue(name: str, lake: Publisher) -> str:
    from worm.formats import JsonValue, dumps_document

    columns: list[JsonValue] = [{"Name": one, "Type": _hive(kind)} for one, kind in _columns(lake)]
    return (
        dumps_document(
            {
                "Name": name.lower(),
                "TableType": "EXTERNAL_TABLE",
                "Parameters": {"spark.sql.sources.provider": "delta", "table_type": "delta", "EXTERNAL": "TRUE"},
                "StorageDescriptor": {
                    "Columns": columns,
                    "Location": f"{lake.location}/",
                    "InputFormat": "org.apache.hadoop.mapred.SequenceFileInputFormat",
                    "OutputFormat": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
                    "SerdeInfo": {
                        "SerializationLibrary": "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
                        "Parameters": {"path": f"{lake.location}/", "serialization.format": "1"},
                    },
                },
            }
        )
        .decode()
        .rstrip()
    )


def _columns(lake: Publisher) -> list[tuple[str, ColumnKind]]:
    declared = [(column.name, column.kind) for column in lake.columns]
    text = ColumnKind("string")
    return [(ID, text), *declared, (SEQ, ColumnKind("long")), (ETAG, text), (REST, text)]


def _hive(kind: ColumnKind) -> str:
    if kind.items is not None:
        return f"array<{_hive(kind.items)}>"
    if kind.members:
        return f"struct<{','.join(f'{name}:{_hive(one)}' for name, one in kind.members)}>"
    return {"long": "bigint", "json": "string"}.get(kind.type, kind.type)


def _text(text: str) -> str:
    """As a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str, mark: str) -> str:
    return f"{mark}{name}{mark}"


_WRITERS: dict[str, Callable[[str, Publisher], str]] = {
    "athena": _athena,
    "glue": _glue,
    "duckdb": _duckdb,
    "spark": _spark,
    "trino": _trino,
}
