"""Packages the Spark jobs for EMR: what `scripts/package_spark` runs.

Three files. `launch.py` is the entry point, `spark_jobs.zip` the code of spark_jobs/ and of the library (`--py-files`),
and `worm-spark-env.tar.gz` a virtual environment with the packages they import (`spark.archives`). Spark itself comes
from the cluster.

The environment is not created by `venv` and packed, because that would need a machine with the same system, processor
and Python path: this script lays it out itself. The wheels are downloaded for Amazon Linux 2023 and the cluster's
processor, and unpacked; `bin/python` is a link to the cluster's Python, which finds `pyvenv.cfg` beside it wherever
Spark unpacks the archive. A zip for `--py-files` would not work: compiled modules cannot be imported from a zip. The
same wheels and sources give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = "constraints-spark40.txt"
MACHINES = {"ARM64": "aarch64", "X86_64": "x86_64"}
PYTHON = "3.11"
PYTHON_OF_EMR = f"/usr/bin/python{PYTHON}"
# Amazon Linux 2023 has glibc 2.34; a wheel for an older one runs there.
GLIBC_MINORS = (17, 24, 26, 27, 28, 31, 34)
OF_THE_CLUSTER = {"pyspark"}
# The jobs only talk to S3; the descriptions of the other 400 services are most of botocore.
BOTOCORE_DATA = "botocore/data/"
BOTOCORE_SERVICES = ("s3", "sts")
WITH_TESTS = ("numpy", "pandas", "pyarrow")
SITE_PACKAGES = f"lib/python{PYTHON}/site-packages/"
ZIP_TIME = (1980, 1, 1, 0, 0, 0)


class PackagingFailed(Exception):
    """The message says what to do."""


def requirements() -> list[str]:
    """The requirements of the library and the extra `spark`, without the packages that the cluster has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    return [one for one in wanted if not any(one.startswith(name) for name in OF_THE_CLUSTER)]


def download(wheels: Path, machine: str) -> None:
    """The wheels for the cluster, into a folder."""
    platforms = [f"manylinux2014_{machine}", *(f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", PYTHON]
    command += [part for platform in platforms for part in ("--platform", platform)]
    command += ["--constraint", str(ROOT / CONSTRAINTS), "--dest", str(wheels), *requirements()]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        hint = "Check that the package index is reachable. pip's own settings (pip config, PIP_*) apply."
        raise PackagingFailed(f"{done.stdout}\nThe wheels could not be downloaded. {hint}")


def installed_name(name: str) -> str | None:
    """Where a file of a wheel belongs below site-packages; None if the jobs do not need it."""
    folder, _, rest = name.partition("/")
    if folder.endswith(".data"):
        scheme, _, rest = rest.partition("/")
        return installed_name(rest) if scheme in ("purelib", "platlib") else None
    if name.endswith("/") or (folder in WITH_TESTS and "/tests/" in name):
        return None
    if name.startswith(BOTOCORE_DATA) and "/" in (rest := name.removeprefix(BOTOCORE_DATA)):
        return name if rest.split("/")[0] in BOTOCORE_SERVICES else None
    return name


def unpacked(wheel: Path) -> Iterator[tuple[str, int, bytes]]:
    """Name below site-packages, mode and content of every file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            name = installed_name(entry.filename)
            if name is not None:
                mode = 0o755 if (entry.external_attr >> 16) & 0o111 else 0o644
                yield name, mode, archive.read(entry)


def write_environment(target: Path, wheels: Sequence[Path]) -> None:
    """The virtual environment as an archive."""
    config = f"home = {Path(PYTHON_OF_EMR).parent}\ninclude-system-site-packages = false\nversion = {PYTHON}\n"
    files = {name: (mode, body) for wheel in wheels for name, mode, body in unpacked(wheel)}
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in ("python", "python3", f"python{PYTHON}"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, PYTHON_OF_EMR, 0o777
            archive.addfile(link)
        _add(archive, "pyvenv.cfg", 0o644, config.encode())
        for name in sorted(files):
            _add(archive, SITE_PACKAGES + name, *files[name])


def _add(archive: tarfile.TarFile, name: str, mode: int, body: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = mode, len(body)
    archive.addfile(entry, io.BytesIO(body))


def code_files() -> dict[str, Path]:
    """Name in the zip → file: the jobs, the library without its command line and the embedded AWS, and the package by
    which Spark finds its data source."""
    found = {}
    shared = ROOT / "shared"
    packages = {"pyspark_worm": shared / "pyspark_worm", "spark_jobs": ROOT / "spark_jobs", "worm": shared / "worm"}
    for package, folder in packages.items():
        for path in folder.rglob("*.py"):
            name = path.relative_to(folder).as_posix()
            if not (package == "worm" and name.startswith(("cli/", "dev/"))):
                found[f"{package}/{name}"] = path
    return found


def write_code(target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(code_files().items()):
            entry = zipfile.ZipInfo(name, ZIP_TIME)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())


def package(output: Path, architecture: str, wheels: Path | None = None) -> list[Path]:
    """Writes the three files; `wheels` is a folder of wheels to use instead of a download."""
    output.mkdir(parents=True, exist_ok=True)
    launch, code, environment = (output / name for name in ("launch.py", "spark_jobs.zip", "worm-spark-env.tar.gz"))
    launch.write_bytes((ROOT / "spark_jobs" / "launch.py").read_bytes())
    write_code(code)
    with tempfile.TemporaryDirectory() as scratch:
        folder = wheels or Path(scratch)
        if wheels is None:
            download(folder, MACHINES[architecture])
        write_environment(environment, sorted(folder.glob("*.whl")))
    return [launch, code, environment]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/package_spark", description="Packages the Spark jobs for EMR.")
    parser.add_argument(
        "--architecture", choices=sorted(MACHINES), default="ARM64", help="same as the parameter SparkArchitecture"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "spark", metavar="FOLDER")
    options = parser.parse_args()
    try:
        for path in package(options.output, options.architecture):
            print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    except PackagingFailed as failure:
        print(f"package_spark: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
