"""Who may do what: least privilege of the roles, and the policies of bucket and queues."""

from __future__ import annotations

import pytest

from tests.template.sam_document import (
    DOCUMENTS,
    Function,
    Json,
    as_list,
    document,
    function,
    functions,
    logical_id,
    object_patterns,
    resources,
)

EVERY = pytest.mark.parametrize("function", functions(), ids=lambda function: function.folder)

TABLE_KEYS = {
    "*/.worm",
    "*/.worm.manifest.json",
    "*/.worm.manifest/*",
    "*/.worm.index/*",
    "*/.worm.heads.json",
    "*/.worm.heads/*",
}
TABLE_ROOTS = {"*/.worm.manifest.json", "*/.worm.heads.json", "*/.worm.heads/directory-*"}
TABLE_FILES = {"*/.worm.manifest/*", "*/.worm.index/*/part-*", "*/.worm.heads/*"}
LAYOUTS = ["root", "collection", "inline"]


def _keys(directory: str, layout: str, name: str = "*") -> str:
    return f"{directory}/{name}" if layout == "root" else f"*/{directory}/{name}"


def _actions(statements: list[Json]) -> set[str]:
    return {action for statement in statements for action in as_list(statement["Action"])}


def test_each_function_has_a_role_of_its_own() -> None:
    roles = [logical_id(one.properties["Role"]) for one in functions()]
    assert roles == [one.folder.title() + "Role" for one in functions()]


@EVERY
def test_no_role_has_a_wildcard_action(function: Function) -> None:
    assert {action for action in _actions(function.statements()) if "*" in action} == set()


def test_capture_and_tables_may_not_delete_and_no_role_may_remove_a_version_for_good() -> None:
    """apply and sweep delete documents of models in spaces, of which the versions stay."""
    deleting = {
        one.folder: {action for action in _actions(one.statements()) if action.startswith("s3:Delete")}
        for one in functions()
    }
    allowed = {folder: actions for folder, actions in deleting.items() if actions}
    assert allowed == {folder: {"s3:DeleteObject"} for folder in ("sweep", "purge", "apply", "compact")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_purge_deletes_snapshots_trash_and_table_files_and_writes_tombstones_only(layout: str) -> None:
    statements = function("purge").statements()
    trash = _keys(".worm.trash", layout)
    tombstones = ".worm.trash/*/.worm.tombstone" if layout == "root" else "*/.worm.trash/*.worm.tombstone"
    assert {
        "reads": object_patterns(statements, "s3:GetObject", layout),
        "writes": object_patterns(statements, "s3:PutObject", layout),
        "deletes": object_patterns(statements, "s3:DeleteObject", layout),
    } == {
        "reads": {".worm.schema.json", trash, *TABLE_ROOTS},
        "writes": {tombstones},
        "deletes": {trash, _keys(".snapshots", layout), *TABLE_FILES},
    }


@pytest.mark.parametrize("trash", LAYOUTS)
@pytest.mark.parametrize("snapshots", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_trash_and_snapshots_may_lie_elsewhere_than_the_oplog(layout: str, snapshots: str, trash: str) -> None:
    overrides = {"SnapshotsLayout": snapshots, "TrashLayout": trash}
    wanted = {_keys(".snapshots", snapshots), _keys(".worm.trash", trash)}
    purge = object_patterns(function("purge").statements(), "s3:DeleteObject", layout, **overrides)
    capture = object_patterns(function("capture").statements(), "s3:PutObject", layout, **overrides)
    assert (purge, capture) == (wanted | TABLE_FILES, wanted | {_keys(".oplog", layout), ".worm.changes/*"})


@EVERY
def test_only_tracing_is_allowed_on_every_resource(function: Function) -> None:
    everywhere = [statement for statement in function.statements() if statement["Resource"] == "*"]
    assert _actions(everywhere) == {"xray:PutTelemetryRecords", "xray:PutTraceSegments"}


@EVERY
def test_every_role_may_list_so_that_a_missing_key_answers_404(function: Function) -> None:
    """Without ListBucket S3 says 403 for a missing key, and no ambiguous write could ever be resolved."""
    bucket = {"Fn::GetAtt": ["DocumentBucket", "Arn"]}
    listing = [one for one in function.statements() if "s3:ListBucket" in as_list(one["Action"])]
    assert [one["Resource"] for one in listing] == [bucket]


@EVERY
def test_a_role_writes_only_to_the_log_group_of_its_function(function: Function) -> None:
    logging = [one for one in function.statements() if "logs:PutLogEvents" in as_list(one["Action"])]
    group = logical_id(function.properties["LoggingConfig"]["LogGroup"])
    assert [one["Resource"] for one in logging] == [{"Fn::GetAtt": [group, "Arn"]}]


def test_what_each_role_may_do_in_s3_and_sqs() -> None:
    reading = {"s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket", "s3:ListBucketVersions"}
    consuming = {
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
        "sqs:ReceiveMessage",
        "sqs:SendMessage",
    }
    found = {
        one.folder: {action for action in _actions(one.statements()) if action.startswith(("s3:", "sqs:"))}
        for one in functions()
    }
    assert found == {
        "capture": reading | {"s3:PutObject"} | consuming,
        "tables": reading | {"s3:PutObject", "s3:PutObjectTagging"} | consuming,
        "sweep": reading | {"s3:PutObject", "s3:PutObjectTagging", "s3:DeleteObject", "sqs:SendMessage"},
        "purge": {"s3:GetObject", "s3:ListBucket", "s3:PutObject", "s3:DeleteObject", "sqs:SendMessage"},
        "apply": reading | {"s3:PutObject", "s3:DeleteObject"} | consuming,
        "compact": {"s3:GetObject", "s3:ListBucket", "s3:PutObject", "s3:DeleteObject", "sqs:SendMessage"},
    }


@EVERY
def test_a_role_sends_to_its_own_dead_letter_queue_only(function: Function) -> None:
    sending = [one for one in function.statements() if "sqs:SendMessage" in as_list(one["Action"])]
    assert [logical_id(one["Resource"]) for one in sending] == [function.dead_letter_queue()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_which_keys_each_role_may_write_follows_the_layout(layout: str) -> None:
    history = {_keys(directory, layout) for directory in (".oplog", ".snapshots", ".worm.trash")}
    queued = [function(folder) for folder in ("capture", "tables", "sweep")]
    found = {one.folder: object_patterns(one.statements(), "s3:PutObject", layout) for one in queued}
    assert found == {
        "capture": history | {".worm.changes/*"},
        "tables": TABLE_KEYS,
        "sweep": history | TABLE_KEYS | {".worm.sweep/*", DOCUMENTS, "db/space-*/documents.json"},
    }


def test_a_queue_worker_reads_its_own_queue_only() -> None:
    found = {
        folder: [
            logical_id(one["Resource"])
            for one in function(folder).statements()
            if "sqs:ReceiveMessage" in as_list(one["Action"])
        ]
        for folder in ("capture", "tables", "apply")
    }
    assert found == {"capture": ["CaptureQueue"], "tables": ["TablesQueue"], "apply": ["ApplyQueue"]}


@pytest.mark.parametrize("queue", sorted(resources("AWS::SQS::Queue")))
def test_a_queue_is_encrypted_refuses_plain_http_and_takes_messages_of_its_rule_only(queue: str) -> None:
    policies = [
        statement
        for policy in resources("AWS::SQS::QueuePolicy").values()
        if [logical_id(name) for name in policy["Queues"]] == [queue]
        for statement in policy["PolicyDocument"]["Statement"]
    ]
    worker = queue.removesuffix("Queue").removesuffix("DeadLetter")
    arn = {"Fn::GetAtt": [queue, "Arn"]}
    allow = {
        "Sid": f"Allow{worker}Rule",
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": arn,
        "Condition": {
            "ArnEquals": {"aws:SourceArn": {"Fn::GetAtt": [f"{worker}Rule", "Arn"]}},
            "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}},
        },
    }
    deny = {
        "Sid": "DenyWithoutTls",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:*",
        "Resource": arn,
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    has_rule = f"{worker}Rule" in document()["Resources"]
    assert resources("AWS::SQS::Queue")[queue]["SqsManagedSseEnabled"] is True
    assert policies == ([allow, deny] if has_rule else [deny])


def test_the_bucket_policy_refuses_plain_http_old_tls_and_rewriting_history() -> None:
    everything = [{"Fn::GetAtt": ["DocumentBucket", "Arn"]}, {"Fn::Sub": "${DocumentBucket.Arn}/*"}]
    statements = resources("AWS::S3::BucketPolicy")["DocumentBucketPolicy"]["PolicyDocument"]["Statement"]
    assert statements == [
        {
            "Sid": "DenyWithoutTls",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": everything,
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        },
        {
            "Sid": "DenyOldTls",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": everything,
            "Condition": {"NumericLessThan": {"s3:TlsVersion": "1.2"}},
        },
        {
            "Sid": "DenyOverwriteOfHistory",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:PutObject",
            "Resource": [
                {"Fn::Sub": "${DocumentBucket.Arn}/.oplog/*"},
                {"Fn::Sub": "${DocumentBucket.Arn}/*/.oplog/*"},
            ],
            "Condition": {"Null": {"s3:if-none-match": "true"}},
        },
    ]
