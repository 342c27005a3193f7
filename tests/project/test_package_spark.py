"""What is uploaded for EMR: the code, and an environment that starts wherever it is unpacked; the same bytes always."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts import package_spark
from tests.project.source_tree import ROOT

SITE = "lib/python3.11/site-packages/"
WHEEL = {
    "small/__init__.py": "NAME = 'small'\n",
    "small/_fast.so": "binary",
    "small-1.0.dist-info/METADATA": "Name: small\n",
    "small-1.0.data/scripts/small": "#!python\n",
    "small-1.0.data/purelib/small/extra.py": "EXTRA = 1\n",
    "botocore/data/s3/2006-03-01/service-2.json": "{}",
    "botocore/data/ec2/2016-11-15/service-2.json": "{}",
    "botocore/data/endpoints.json": "{}",
    "pandas/core.py": "",
    "pandas/tests/test_core.py": "",
}


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """One wheel that has a bit of everything."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "small-1.0-py3-none-any.whl", "w") as wheel:
        for name, body in WHEEL.items():
            entry = zipfile.ZipInfo(name, (2026, 5, 4, 3, 2, 0))
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            wheel.writestr(entry, body)
    return folder


def test_the_environment_is_a_virtual_environment_of_emrs_python(wheels: Path, tmp_path: Path) -> None:
    package_spark.package(tmp_path / "out", "ARM64", wheels)
    with tarfile.open(tmp_path / "out" / "worm-spark-env.tar.gz") as archive:
        found = {entry.name: entry for entry in archive.getmembers()}
        config = archive.extractfile("pyvenv.cfg")
        assert config is not None
        assert config.read() == b"home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n"
    links = {name: entry.linkname for name, entry in found.items() if entry.issym()}
    assert links == {f"bin/{name}": "/usr/bin/python3.11" for name in ("python", "python3", "python3.11")}
    assert {entry.mtime for entry in found.values()} == {0}
    assert {entry.uid for entry in found.values()} == {0}


def test_what_a_wheel_holds_lies_where_python_finds_it_without_what_no_job_needs(wheels: Path, tmp_path: Path) -> None:
    package_spark.package(tmp_path / "out", "ARM64", wheels)
    with tarfile.open(tmp_path / "out" / "worm-spark-env.tar.gz") as archive:
        modes = {entry.name: entry.mode for entry in archive.getmembers() if entry.name.startswith(SITE)}
    assert modes == {
        f"{SITE}botocore/data/endpoints.json": 0o644,
        f"{SITE}botocore/data/s3/2006-03-01/service-2.json": 0o644,
        f"{SITE}pandas/core.py": 0o644,
        f"{SITE}small-1.0.dist-info/METADATA": 0o644,
        f"{SITE}small/__init__.py": 0o644,
        f"{SITE}small/_fast.so": 0o755,
        f"{SITE}small/extra.py": 0o644,
    }


def test_the_code_holds_the_jobs_and_the_library_without_its_command_line(wheels: Path, tmp_path: Path) -> None:
    package_spark.package(tmp_path / "out", "ARM64", wheels)
    names = set(zipfile.ZipFile(tmp_path / "out" / "spark_jobs.zip").namelist())
    folders = {Path(name).parent for name in names}
    assert {"spark_jobs/__init__.py", "spark_jobs/launch.py", "worm/__init__.py", "worm/store/base.py"} <= names
    left_out = ("worm/cli/", "worm/dev/")
    assert {name for name in names if name.startswith(left_out)} == set()
    assert {name.partition("/")[0] for name in names} == {"pyspark_worm", "spark_jobs", "worm"}
    # `--py-files` finds a package in a zip by its __init__.py only.
    assert {str(folder) for folder in folders if f"{folder}/__init__.py" not in names} == set()


@pytest.mark.slow
def test_every_module_of_the_jobs_imports_out_of_the_zip_alone(tmp_path: Path) -> None:
    """With the packages of the environment, but without this repository."""
    code = tmp_path / "spark_jobs.zip"
    package_spark.write_code(code)
    names = [name for name in zipfile.ZipFile(code).namelist() if name.startswith(("spark_jobs/", "worm/spark/"))]
    modules = sorted(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names)
    jobs = {f"spark_jobs.{job}" for job in ("rebuild", "verify", "export", "compact_oplog", "compact_pages")}
    assert jobs <= set(modules)
    program = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
ours = {{name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] in ("worm", "spark_jobs")}}
print(*(name for name, file in ours.items() if not file.startswith({str(code)!r})))
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(code)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == []


def test_packing_twice_gives_the_same_bytes(wheels: Path, tmp_path: Path) -> None:
    first = package_spark.package(tmp_path / "first", "ARM64", wheels)
    for wheel in wheels.iterdir():
        os.utime(wheel, (1, 1))
    second = package_spark.package(tmp_path / "second", "X86_64", wheels)
    assert [path.name for path in first] == ["launch.py", "spark_jobs.zip", "worm-spark-env.tar.gz"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[2].read_bytes()[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "a time in the header of gzip"


def test_spark_itself_is_the_clusters() -> None:
    names = package_spark.requirements()
    assert [name for name in names if "spark" in name] == []
    assert {"pyarrow", "pandas", "obstore", "pydantic"} <= {name.partition(">")[0] for name in names}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the environment is one of Python 3.11")
def test_the_environment_starts_wherever_it_is_unpacked(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this machine's Python in the place of EMR's."""
    here = Path(os.path.realpath(sys.executable))
    monkeypatch.setattr(package_spark, "PYTHON_OF_EMR", str(here))
    package_spark.package(tmp_path / "out", "ARM64", wheels)
    unpacked = tmp_path / "elsewhere" / "environment"
    with tarfile.open(tmp_path / "out" / "worm-spark-env.tar.gz") as archive:
        archive.extractall(unpacked, filter="fully_trusted")
    program = "import small, small.extra, sys; print(small.__file__, sys.prefix)"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        ["environment/bin/python", "-c", program],
        cwd=unpacked.parent,
        env=kept,
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout.split() == [str(unpacked / SITE / "small" / "__init__.py"), str(unpacked)]


def test_a_job_that_does_not_exist_is_refused() -> None:
    for words in ([], ["no_such_job"], ["../rebuild"], ["cluster.x"]):
        command = [sys.executable, str(ROOT / "spark_jobs" / "launch.py"), *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "shared")])}
        done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
        assert done.returncode == 1
        assert "launch.py: there is no job" in done.stderr


def test_a_checkout_needs_no_path_to_its_jobs() -> None:
    """`pip install` and a clone, as the tutorial has it: without the path of this environment."""
    command = [sys.executable, "-S", str(ROOT / "spark_jobs" / "launch.py"), "no_such_job"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert "launch.py: there is no job 'no_such_job'" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("architecture", "machine"), [("ARM64", 183), ("X86_64", 62)])
def test_the_real_environment_has_binaries_for_the_processor_only(
    architecture: str, machine: int, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    package_spark.download(wheels, package_spark.MACHINES[architecture])
    names = {path.name.partition("-")[0] for path in wheels.iterdir()}
    binaries = {
        body[18:20]
        for wheel in wheels.glob("*.whl")
        for name, _, body in package_spark.unpacked(wheel)
        if name.endswith(".so")
    }
    assert {"boto3", "numpy", "obstore", "orjson", "pandas", "pyarrow", "pydantic_core"} <= names
    assert {"pyspark", "py4j"} & names == set()
    assert binaries == {machine.to_bytes(2, "little")}
