"""Spark on EMR Serverless: the application, its schedule, what its jobs may do, and how a failed one is heard of."""

from __future__ import annotations

import json
import re
from typing import Any

import boto3
import pytest
from botocore.validate import ParamValidator

from tests.template.sam_document import (
    ROOT,
    TEMPLATE,
    Json,
    as_list,
    default,
    document,
    is_true,
    logical_id,
    object_patterns,
    resources,
    role_statements,
)
from worm.errors import Invalid
from worm_dev.sam import spark_job_spec
from worm_dev.schedule import parse_schedule
from worm_dev.template import read_template

ARTIFACTS = {"SparkArtifactsBucket": "artifacts"}
ARTIFACT_ARN = "arn:${AWS::Partition}:s3:::${SparkArtifactsBucket}"
OUTPUT_ARN = ARTIFACT_ARN + "/${SparkArtifactsPrefix}/output/*"
JOB_ROLES = ["SparkJobRole", "SparkCompactRole"]
LAYOUTS = ["root", "collection", "inline"]


def _actions(statements: list[Json], prefix: str = "") -> set[str]:
    return {action for one in statements for action in as_list(one["Action"]) if action.startswith(prefix)}


def _in_the_document_bucket(role: str) -> list[Json]:
    return [one for one in role_statements(role, **ARTIFACTS) if "DocumentBucket" in json.dumps(one["Resource"])]


def _keys(directory: str, layout: str, name: str = "*") -> str:
    return f"{directory}/{name}" if layout == "root" else f"*/{directory}/{name}"


def _start_job_run(**parameters: str) -> Json:
    """What Scheduler sends, as the embedded AWS resolves the template."""
    template = read_template(TEMPLATE, parameters={**ARTIFACTS, **parameters})
    asked: Json = json.loads(template.schedule("rebuild").input or "")
    return asked


def test_the_application_costs_nothing_at_rest_and_has_a_limit() -> None:
    application = resources("AWS::EMRServerless::Application")["SparkApplication"]
    assert default(application["ReleaseLabel"]) == "emr-spark-8.0.0"
    assert "InitialCapacity" not in application
    assert application == {
        "Name": {"Ref": "AWS::StackName"},
        "ReleaseLabel": {"Ref": "SparkReleaseLabel"},
        "Type": "SPARK",
        "Architecture": {"Ref": "SparkArchitecture"},
        "AutoStartConfiguration": {"Enabled": True},
        "AutoStopConfiguration": {"Enabled": True, "IdleTimeoutMinutes": 5},
        "MaximumCapacity": {
            "Cpu": {"Fn::Sub": "${SparkMaximumVcpu} vCPU"},
            "Memory": {"Fn::Sub": "${SparkMaximumMemoryGb} GB"},
        },
        "MonitoringConfiguration": {
            "CloudWatchLoggingConfiguration": {"Enabled": True, "LogGroupName": {"Ref": "SparkLogGroup"}}
        },
    }


@pytest.mark.parametrize(
    ("parameters", "exists"),
    [
        ({}, False),
        (ARTIFACTS, True),
        ({**ARTIFACTS, "SparkSchedule": ""}, False),
        ({"SparkSchedule": "rate(1 day)"}, False),
    ],
)
def test_the_schedule_exists_with_code_to_run_and_a_time_to_run_it(parameters: dict[str, str], exists: bool) -> None:
    conditional = {name for name, one in document()["Resources"].items() if one.get("Condition") == "HasSparkSchedule"}
    names = {spec.name for spec in read_template(TEMPLATE, parameters=parameters).schedules}
    assert conditional == {"SparkRebuildSchedule", "SparkScheduleRole"}
    assert is_true("HasSparkSchedule", parameters) is exists
    assert ("worm-dev-rebuild" in names) is exists


def test_the_schedule_starts_a_job_run_retries_and_keeps_what_it_could_not_start() -> None:
    schedule = resources("AWS::Scheduler::Schedule")["SparkRebuildSchedule"]
    target = schedule["Target"]
    parse_schedule(default(schedule["ScheduleExpression"]))
    assert schedule["FlexibleTimeWindow"] == {"Mode": "OFF"}
    assert target["Arn"] == {"Fn::Sub": "arn:${AWS::Partition}:scheduler:::aws-sdk:emrserverless:startJobRun"}
    assert logical_id(target["RoleArn"]) == "SparkScheduleRole"
    assert target["RetryPolicy"] == {"MaximumRetryAttempts": 3, "MaximumEventAgeInSeconds": 3600}
    assert logical_id(target["DeadLetterConfig"]["Arn"]) == "SparkDeadLetterQueue"


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
    assert submit["EntryPointArguments"] == ["rebuild", "--url", "s3://worm-dev-documentbucket"]
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
    vcpu, memory = (document()["Parameters"][name] for name in ("SparkMaximumVcpu", "SparkMaximumMemoryGb"))
    executor_gb = number["executor.memory"] + number["executor.memoryOverhead"]
    assert number["driver.cores"] + number["executor.cores"] <= vcpu["Default"]
    assert number["driver.memory"] + executor_gb <= memory["Default"]


def test_scheduler_may_start_this_application_pass_this_role_and_report_failures_only() -> None:
    assert role_statements("SparkScheduleRole") == [
        {
            "Sid": "StartJob",
            "Effect": "Allow",
            "Action": "emr-serverless:StartJobRun",
            "Resource": {"Fn::GetAtt": ["SparkApplication", "Arn"]},
        },
        {
            "Sid": "PassJobRole",
            "Effect": "Allow",
            "Action": "iam:PassRole",
            "Resource": {"Fn::GetAtt": ["SparkJobRole", "Arn"]},
            "Condition": {"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}},
        },
        {
            "Sid": "ReportFailure",
            "Effect": "Allow",
            "Action": "sqs:SendMessage",
            "Resource": {"Fn::GetAtt": ["SparkDeadLetterQueue", "Arn"]},
        },
    ]


@pytest.mark.parametrize("role", JOB_ROLES)
def test_only_this_application_may_take_a_job_role(role: str) -> None:
    (trust,) = resources("AWS::IAM::Role")[role]["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "emr-serverless.amazonaws.com"}
    assert trust["Condition"] == {
        "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}},
        "ArnLike": {"aws:SourceArn": {"Fn::GetAtt": ["SparkApplication", "Arn"]}},
    }


def test_what_the_job_roles_may_do_in_the_document_bucket() -> None:
    reading = {"s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket", "s3:ListBucketVersions"}
    assert {role: _actions(_in_the_document_bucket(role)) for role in JOB_ROLES} == {
        "SparkJobRole": reading | {"s3:PutObject", "s3:PutObjectTagging", "s3:DeleteObject"},
        "SparkCompactRole": reading | {"s3:PutObject", "s3:DeleteObject"},
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_which_keys_the_job_roles_may_write_and_delete(layout: str) -> None:
    job, compact = (_in_the_document_bucket(role) for role in JOB_ROLES)
    history = {_keys(directory, layout) for directory in (".oplog", ".snapshots", ".worm.trash")}
    tables = {"*/.worm", "*/.worm.manifest.json", "*/.worm.manifest/*", "*/.worm.index/*"}
    tables |= {"*/.worm.heads.json", "*/.worm.heads/*"}
    archives = ".oplog/*/.archive/*" if layout == "root" else "*/.oplog/*.archive/*"
    assert {
        "job writes": object_patterns(job, "s3:PutObject", layout),
        "job tags": object_patterns(job, "s3:PutObjectTagging", layout),
        "job deletes": object_patterns(job, "s3:DeleteObject", layout),
        "compact writes": object_patterns(compact, "s3:PutObject", layout),
        "compact deletes": object_patterns(compact, "s3:DeleteObject", layout),
    } == {
        "job writes": history | tables,
        "job tags": tables,
        "job deletes": {"*/.worm.index/*/.claims/*"},
        "compact writes": {archives, archives.replace(".archive", ".times")},
        "compact deletes": {_keys(".oplog", layout)},
    }


@pytest.mark.parametrize("role", JOB_ROLES)
def test_a_job_reads_its_code_and_writes_below_output_only(role: str) -> None:
    outside = [one for one in role_statements(role, **ARTIFACTS) if ARTIFACT_ARN in json.dumps(one["Resource"])]
    assert {one["Sid"]: one["Resource"]["Fn::Sub"] for one in outside} == {
        "ListArtifacts": ARTIFACT_ARN,
        "ReadArtifacts": ARTIFACT_ARN + "/${SparkArtifactsPrefix}/*",
        "WriteOutput": OUTPUT_ARN,
    }
    assert [one["Sid"] for one in role_statements(role) if ARTIFACT_ARN in json.dumps(one["Resource"])] == []


@pytest.mark.parametrize("role", JOB_ROLES)
def test_no_job_role_has_a_wildcard_action_or_everything_as_resource(role: str) -> None:
    statements = role_statements(role, **ARTIFACTS)
    assert {action for action in _actions(statements) if "*" in action} == set()
    assert [one["Sid"] for one in statements if one["Resource"] == "*"] == []
    assert _actions(statements, "logs:") == {
        "logs:CreateLogStream",
        "logs:DescribeLogGroups",
        "logs:DescribeLogStreams",
        "logs:PutLogEvents",
    }


def test_a_failed_run_reaches_the_queue_that_the_alarm_watches() -> None:
    (target,) = resources("AWS::Events::Rule")["SparkRule"]["Targets"]
    alarm = resources("AWS::CloudWatch::Alarm")["SparkDeadLetterAlarm"]
    assert logical_id(target["Arn"]) == "SparkDeadLetterQueue"
    assert logical_id(alarm["Dimensions"][0]["Value"]) == "SparkDeadLetterQueue"


def test_the_logs_of_the_jobs_are_forgotten_like_those_of_the_functions() -> None:
    assert resources("AWS::Logs::LogGroup")["SparkLogGroup"] == {
        "LogGroupName": {"Fn::Sub": "/aws/emr-serverless/${AWS::StackName}"},
        "RetentionInDays": {"Ref": "LogRetentionDays"},
    }


def test_the_entry_point_and_the_scheduled_job_exist() -> None:
    job = spark_job_spec(json.dumps(_start_job_run()), "Resources")
    assert (ROOT / "spark_jobs" / "launch.py").is_file()
    assert (ROOT / "spark_jobs" / f"{job.name}.py").is_file() or (ROOT / "spark_jobs" / job.name).is_dir()
    assert (job.application, job.timeout_seconds) == ("worm-dev-SparkApplication", 360 * 60)


@pytest.mark.parametrize("text", [None, "{}", "[]", '{"ApplicationId": "a", "JobDriver": {"SparkSubmit": {}}}', "no"])
def test_a_start_that_is_no_spark_job_is_refused_by_the_embedded_aws(text: str | None) -> None:
    with pytest.raises(Invalid, match="is no job run of Spark") as refused:
        spark_job_spec(text, "Resources.X")
    assert refused.value.path == "Resources.X.Properties.Target.Input"
