"""Spark on EMR Serverless: the application, its schedule, what its jobs may do, and how a failed one is heard of."""

from __future__ import annotations

import json
import re
from typing import Any

import boto3
import pytest
from botocore.validate import ParamValidator

from tests.template.sam_document import (
    BUCKET,
    FULL,
    ROOT,
    STACK,
    TEMPLATE,
    Json,
    as_list,
    document,
    object_patterns,
    queue_id,
    resources,
    role_statements,
    stack,
)
from worm.dev.sam import spark_job_spec
from worm.dev.schedule import parse_schedule
from worm.dev.template import read_resources, read_template
from worm.errors import Invalid

SPARK = ROOT / "spark_jobs" / "template.yaml"
ARTIFACT_ARN = "arn:aws:s3:::artifacts"
OUTPUT_ARN = ARTIFACT_ARN + "/worm-spark/output/*"
APPLICATION = f"{STACK}-SparkStack-SparkApplication"
APPLICATION_ARN = f"arn:aws:emr-serverless:us-east-1:000000000000:/applications/{APPLICATION}"
GIVEN = {
    "StackName": STACK,
    "Bucket": "docs",
    "KeyPrefix": "",
    "BucketArn": "arn:aws:s3:::docs",
    "Keys": "arn:aws:s3:::docs/",
    "KmsKeyArn": "",
    "Oplog": ".oplog",
    "Snapshots": ".snapshots",
    "Trash": ".worm.trash",
    "AlarmTopicArn": "",
    "SparkArtifactsBucket": "artifacts",
}
"""What template.yaml passes down; the template of Spark has more parameters, for those who change their defaults."""
JOB_ROLES = ["SparkJobRole", "SparkCompactRole", "SparkPagesRole"]
LAYOUTS = ["root", "collection", "inline"]


def _actions(statements: list[Json], prefix: str = "") -> set[str]:
    return {action for one in statements for action in as_list(one["Action"]) if action.startswith(prefix)}


def _in_the_document_bucket(role: str) -> list[Json]:
    return [one for one in role_statements(role) if BUCKET in json.dumps(one["Resource"])]


def _keys(directory: str, layout: str, name: str = "*") -> str:
    return f"{directory}/{name}" if layout == "root" else f"*/{directory}/{name}"


def _start_job_run(schedule: str = "rebuild", **parameters: str) -> Json:
    """What Scheduler sends, as the embedded AWS resolves the template."""
    template = read_template(SPARK, parameters={**GIVEN, **parameters})
    asked: Json = json.loads(template.schedule(schedule).input or "")
    return asked


DAILY = {"SparkSweepSchedule": "cron(0 6 * * ? *)"}


def test_the_sweep_has_a_schedule_where_there_is_a_time_for_it() -> None:
    assert "worm-dev-spark-sweep" not in {one.name for one in read_template(SPARK, parameters=GIVEN).schedules}
    sweep, rebuild = _start_job_run("sweep", **DAILY), _start_job_run()
    submit = sweep["JobDriver"]["SparkSubmit"]
    assert submit["EntryPointArguments"] == ["sweep", "--url", "s3://docs/", "--documents-min", "20000000"]
    assert submit["SparkSubmitParameters"] == rebuild["JobDriver"]["SparkSubmit"]["SparkSubmitParameters"]
    assert (sweep["Name"], sweep["ExecutionRoleArn"]) == ("sweep", rebuild["ExecutionRoleArn"])


def test_an_inventory_is_named_to_the_sweep_and_its_job_may_read_it() -> None:
    folder = "inventories/of/docs/daily/"
    submit = _start_job_run("sweep", **DAILY, SparkInventory=folder)["JobDriver"]["SparkSubmit"]
    assert submit["EntryPointArguments"][-2:] == ["--inventory", f"s3://{folder}"]
    read = read_template(SPARK, parameters={**GIVEN, **DAILY, "SparkInventory": folder})
    assert read.schedule("sweep").job is not None
    allowed = document(SPARK)["Resources"]["SparkJobRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
    text = json.dumps(allowed)
    assert "arn:${AWS::Partition}:s3:::${SparkInventory}*" in text
    assert text.count("HasInventory") == 2


def test_the_application_costs_nothing_at_rest_and_has_a_limit() -> None:
    application = resources("AWS::EMRServerless::Application")["SparkApplication"]
    assert application == {
        "Name": STACK,
        "ReleaseLabel": "emr-spark-8.0.0",
        "Type": "SPARK",
        "Architecture": "ARM64",
        "AutoStartConfiguration": {"Enabled": True},
        "AutoStopConfiguration": {"Enabled": True, "IdleTimeoutMinutes": 5},
        "MaximumCapacity": {
            "Cpu": "64 vCPU",
            "Memory": "256 GB",
        },
        "MonitoringConfiguration": {
            "CloudWatchLoggingConfiguration": {"Enabled": True, "LogGroupName": f"/aws/emr-serverless/{STACK}"}
        },
    }


def test_without_code_to_run_a_stack_has_nothing_of_spark() -> None:
    """A release label that a region does not know would roll the whole stack back."""
    assert [name for name in stack(SparkArtifactsBucket="") if "Spark" in name or "Job" in name] == []
    assert "SparkApplication" in stack()


@pytest.mark.parametrize(("schedule", "exists"), [("rate(1 day)", True), ("", False)])
def test_the_schedule_exists_where_there_is_a_time_for_it(schedule: str, exists: bool) -> None:
    found = document(SPARK)["Resources"].items()
    template = read_template(SPARK, parameters={**GIVEN, "SparkSchedule": schedule})
    assert [name for name, one in found if one.get("Condition") == "HasSchedule"] == ["SparkRebuildSchedule"]
    assert [name for name, one in found if one.get("Condition") == "HasAnySchedule"] == ["SparkScheduleRole"]
    assert ("worm-dev-rebuild" in {spec.name for spec in template.schedules}) is exists


def test_template_yaml_passes_down_what_the_template_of_spark_needs_and_no_more() -> None:
    passed = document()["Resources"]["SparkStack"]["Properties"]["Parameters"]
    without_default = {name for name, one in document(SPARK)["Parameters"].items() if "Default" not in one}
    assert set(passed) == without_default == set(GIVEN)


def test_the_schedule_starts_a_job_run_retries_and_keeps_what_it_could_not_start() -> None:
    schedule = resources("AWS::Scheduler::Schedule")["SparkRebuildSchedule"]
    target = schedule["Target"]
    parse_schedule(schedule["ScheduleExpression"])
    assert schedule["FlexibleTimeWindow"] == {"Mode": "OFF"}
    assert target["Arn"] == "arn:aws:scheduler:::aws-sdk:emrserverless:startJobRun"
    assert target["RoleArn"].endswith("-SparkScheduleRole")
    assert target["RetryPolicy"] == {"MaximumRetryAttempts": 3, "MaximumEventAgeInSeconds": 3600}
    assert queue_id(target["DeadLetterConfig"]["Arn"]) == "SparkDeadLetterQueue"


def test_what_scheduler_sends_is_a_request_that_the_service_knows() -> None:
    """A universal target takes the names of the API with a capital letter; nothing else would see a misspelt one."""

    def api(node: Any) -> Any:
        if isinstance(node, dict):
            return {name[0].lower() + name[1:]: api(value) for name, value in node.items()}
        return node

    client = boto3.client("emr-serverless", region_name="eu-central-1")
    shape = client.meta.service_model.operation_model("StartJobRun").input_shape
    asked = _start_job_run()
    assert ParamValidator().validate(api(asked), shape).generate_report() == ""
    assert [name for name in asked if not name[0].isupper()] == []
    assert asked["ClientToken"] == "<aws.scheduler.execution-id>"


def test_the_job_run_has_its_code_its_python_and_its_arguments() -> None:
    asked = _start_job_run(SparkArtifactsPrefix="code/7", SparkTimeoutMinutes="90")
    submit = asked["JobDriver"]["SparkSubmit"]
    parameters = submit["SparkSubmitParameters"].split()
    conf = dict(parameters[at + 1].split("=", 1) for at, word in enumerate(parameters) if word == "--conf")
    assert asked["ExecutionTimeoutMinutes"] == 90
    assert submit["EntryPoint"] == "s3://artifacts/code/7/launch.py"
    assert submit["EntryPointArguments"] == ["rebuild", "--url", "s3://docs/"]
    assert parameters[:2] == ["--py-files", "s3://artifacts/code/7/spark_jobs.zip"]
    assert conf["spark.archives"] == "s3://artifacts/code/7/worm-spark-env.tar.gz#environment"
    assert {name: value for name, value in conf.items() if name.endswith("_PYTHON")} == dict.fromkeys(
        (
            "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON",
            "spark.emr-serverless.driverEnv.PYSPARK_PYTHON",
            "spark.executorEnv.PYSPARK_PYTHON",
        ),
        "./environment/bin/python",
    )


def test_one_run_fits_into_the_limit_of_the_application() -> None:
    parameters = _start_job_run()["JobDriver"]["SparkSubmit"]["SparkSubmitParameters"]
    number = {name: int(value) for name, value in re.findall(r"spark\.(\S+?)=(\d+)g?(?=\s|$)", parameters)}
    vcpu, memory = (document(SPARK)["Parameters"][name] for name in ("SparkMaximumVcpu", "SparkMaximumMemoryGb"))
    executor_gb = number["executor.memory"] + number["executor.memoryOverhead"]
    assert number["driver.cores"] + number["executor.cores"] <= vcpu["Default"]
    assert number["driver.memory"] + executor_gb <= memory["Default"]


def test_scheduler_may_start_this_application_pass_this_role_and_report_failures_only() -> None:
    assert role_statements("SparkScheduleRole") == [
        {
            "Sid": "StartJob",
            "Effect": "Allow",
            "Action": "emr-serverless:StartJobRun",
            "Resource": APPLICATION_ARN,
        },
        {
            "Sid": "PassJobRole",
            "Effect": "Allow",
            "Action": "iam:PassRole",
            "Resource": f"arn:aws:iam::000000000000:role/{STACK}-SparkStack-SparkJobRole",
            "Condition": {"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}},
        },
        {
            "Sid": "ReportFailure",
            "Effect": "Allow",
            "Action": "sqs:SendMessage",
            "Resource": f"arn:aws:sqs:us-east-1:000000000000:{STACK}-spark-dlq",
        },
    ]


@pytest.mark.parametrize("role", JOB_ROLES)
def test_only_this_application_may_take_a_job_role(role: str) -> None:
    (trust,) = resources("AWS::IAM::Role")[role]["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "emr-serverless.amazonaws.com"}
    assert trust["Condition"] == {
        "StringEquals": {"aws:SourceAccount": "000000000000"},
        "ArnLike": {"aws:SourceArn": APPLICATION_ARN},
    }


def test_what_the_job_roles_may_do_in_the_document_bucket() -> None:
    reading = {"s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket", "s3:ListBucketVersions"}
    assert {role: _actions(_in_the_document_bucket(role)) for role in JOB_ROLES} == {
        "SparkJobRole": reading | {"s3:PutObject", "s3:PutObjectTagging", "s3:DeleteObject"},
        "SparkCompactRole": reading | {"s3:PutObject", "s3:DeleteObject"},
        "SparkPagesRole": {"s3:ListBucket", "s3:GetObject", "s3:PutObject"},
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_which_keys_the_job_roles_may_write_and_delete(layout: str) -> None:
    job, compact, pages = (role_statements(role, Layout=layout) for role in JOB_ROLES)
    history = {_keys(directory, layout) for directory in (".oplog", ".snapshots", ".worm.trash")}
    tables = {"*/.worm", "*/.worm.manifest.json", "*/.worm.manifest/*", "*/.worm.lake/*", "*/.worm.index/*"}
    tables |= {"*/.worm.heads.json", "*/.worm.heads/*"}
    archives = _keys(".oplog", layout, "*.archive/*")
    assert {
        "job writes": object_patterns(job, "s3:PutObject"),
        "job tags": object_patterns(job, "s3:PutObjectTagging"),
        "job deletes": object_patterns(job, "s3:DeleteObject"),
        "compact writes": object_patterns(compact, "s3:PutObject"),
        "compact deletes": object_patterns(compact, "s3:DeleteObject"),
        "pages writes": object_patterns(pages, "s3:PutObject"),
        "pages deletes": object_patterns(pages, "s3:DeleteObject"),
    } == {
        "job writes": history | tables | {".worm.changes/*", ".worm.sweep/*"},
        "job tags": tables | {".worm.sweep/*"},
        "job deletes": {"*/.worm.index/*/.claims/*"},
        "compact writes": {archives, archives.replace(".archive", ".times")},
        "compact deletes": {_keys(".oplog", layout)},
        "pages writes": {"db/*/manifest.json", "db/*/delta/*", "db/*/image/*", "db/*/gc/clock"},
        "pages deletes": set(),
    }


@pytest.mark.parametrize("role", JOB_ROLES)
def test_a_job_reads_its_code_and_writes_below_output_only(role: str) -> None:
    outside = [one for one in role_statements(role) if ARTIFACT_ARN in json.dumps(one["Resource"])]
    assert {one["Sid"]: one["Resource"] for one in outside} == {
        "ListArtifacts": ARTIFACT_ARN,
        "ReadArtifacts": ARTIFACT_ARN + "/worm-spark/*",
        "WriteOutput": OUTPUT_ARN,
    }


@pytest.mark.parametrize("role", JOB_ROLES)
def test_no_job_role_has_a_wildcard_action_or_everything_as_resource(role: str) -> None:
    statements = role_statements(role)
    assert {action for action in _actions(statements) if "*" in action} == set()
    assert [one["Sid"] for one in statements if one["Resource"] == "*"] == []
    assert _actions(statements, "logs:") == {
        "logs:CreateLogStream",
        "logs:DescribeLogGroups",
        "logs:DescribeLogStreams",
        "logs:PutLogEvents",
    }


def test_exports_may_use_one_glue_database_if_it_is_named_and_none_otherwise() -> None:
    named = read_resources(SPARK, parameters={**GIVEN, "SparkGlueDatabase": "lake"})
    glue = {
        name: [
            one
            for policy in role["Properties"]["Policies"]
            for one in policy["PolicyDocument"]["Statement"]
            if "glue:" in json.dumps(one)
        ]
        for name, role in named.items()
        if role["Type"] == "AWS::IAM::Role"
    }
    here = "arn:aws:glue:us-east-1:000000000000:"
    assert {name: found for name, found in glue.items() if found} == {
        "SparkJobRole": [
            {
                "Sid": "UpdateGlueTables",
                "Effect": "Allow",
                "Action": ["glue:CreateTable", "glue:GetDatabase", "glue:GetTable", "glue:UpdateTable"],
                "Resource": [here + "catalog", here + "database/lake", here + "table/lake/*"],
            }
        ]
    }
    assert [role for role in JOB_ROLES if "glue:" in json.dumps(role_statements(role))] == []


def test_a_failed_run_reaches_the_queue_that_the_alarm_watches() -> None:
    (target,) = resources("AWS::Events::Rule")["SparkRule"]["Targets"]
    alarm = resources("AWS::CloudWatch::Alarm")["SparkFailedAlarm"]
    assert queue_id(target["Arn"]) == "SparkDeadLetterQueue"
    assert alarm["Dimensions"] == [{"Name": "QueueName", "Value": f"{STACK}-spark-dlq"}]


def test_the_logs_of_the_jobs_are_forgotten_like_those_of_the_functions() -> None:
    assert resources("AWS::Logs::LogGroup")["SparkLogGroup"] == {
        "LogGroupName": f"/aws/emr-serverless/{STACK}",
        "RetentionInDays": 30,
    }


def test_the_entry_point_and_the_scheduled_job_exist() -> None:
    template = read_template(TEMPLATE, parameters=FULL)
    job = spark_job_spec(template.schedule("rebuild").input, "Resources")
    assert (ROOT / "spark_jobs" / "launch.py").is_file()
    assert (ROOT / "spark_jobs" / f"{job.name}.py").is_file() or (ROOT / "spark_jobs" / job.name).is_dir()
    assert (job.application, job.timeout_seconds) == (APPLICATION, 360 * 60)


@pytest.mark.parametrize("text", [None, "{}", "[]", '{"ApplicationId": "a", "JobDriver": {"SparkSubmit": {}}}', "no"])
def test_a_start_that_is_no_spark_job_is_refused_by_the_embedded_aws(text: str | None) -> None:
    with pytest.raises(Invalid, match="is not a Spark job run") as refused:
        spark_job_spec(text, "Resources.X")
    assert refused.value.path == "Resources.X.Properties.Target.Input"
