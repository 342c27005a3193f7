"""`sam build`: what is deployed holds what the handlers import, and nothing of the development tools."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.template.sam_document import ROOT, TEMPLATE, functions, parameter_defaults

pytestmark = [
    pytest.mark.tools,
    pytest.mark.xdist_group("tools"),
    pytest.mark.timeout(600),
]

SAM = ROOT / ".venv-tools" / "bin" / "sam"
SIZE_BYTES_MAX = 70 * 1024 * 1024
"""Lambda allows 250 MB for code and layers; loading time grows with every one of them."""

LAYER = {
    "annotated_types",
    "arro3",
    "aws_lambda_powertools",
    "boto3",
    "botocore",
    "dateutil",
    "jmespath",
    "obstore",
    "orjson",
    "pydantic",
    "pydantic_core",
    "s3transfer",
    "six.py",
    "typing_extensions.py",
    "typing_inspection",
    "urllib3",
    "worm",
}
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}
IMPORT_EVERYTHING = """
import importlib, pathlib, sys
layer, functions = map(pathlib.Path, sys.argv[1:])
sys.path.insert(0, str(layer))
arrays = layer / "worm" / "tables" / "typed.py"  # for the extra `fast`, which the layer goes without
for path in sorted({*(layer / "worm").rglob("*.py")} - {arrays}):
    importlib.import_module(".".join(path.relative_to(layer).with_suffix("").parts).removesuffix(".__init__"))
for handler in sorted(functions.glob("*/handler.py")):
    sys.path.insert(0, str(handler.parent))
    sys.modules.pop("handler", None)
    assert callable(importlib.import_module("handler").lambda_handler), handler
    del sys.path[0]
outside = [m.__file__ for m in sys.modules.values() if "site-packages" in (getattr(m, "__file__", None) or "")]
assert outside == [], outside
"""


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SAM_", "PYTHON"))}
    own_python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "SAM_CLI_TELEMETRY": "0", "PYTHON": sys.executable, "PATH": own_python, **extra}


def _run(*command: str | Path, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=_environment(environment or {}), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a build with all defaults."""
    assert SAM.exists(), "sam is missing: run scripts/setup --tools"
    folder = tmp_path_factory.mktemp("sam") / "build"
    _run(SAM, "build", "--template", TEMPLATE, "--build-dir", folder, "--region", "eu-central-1")
    return folder


def test_a_function_holds_its_handler_and_nothing_else(build: Path) -> None:
    nested = {"apply": "PagesStack", "compact": "PagesStack", "api": "ApiStack"}
    found = {one.folder: _files(build / nested.get(one.folder, "") / one.id) for one in functions()}
    assert found == {one.folder: ["handler.py"] for one in functions()}


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_layer_holds_the_library_and_what_it_imports_and_nothing_else(build: Path) -> None:
    names = {path.name for path in (build / "WormLayer" / "python").iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == LAYER


def test_the_layer_has_the_library_without_the_command_line_and_without_leftovers(build: Path) -> None:
    worm = build / "WormLayer" / "python" / "worm"
    source = ROOT / "shared" / "worm"
    left_out = ("cli/", "dev/", "spark/", "tables/tasks/")  # no function rebuilds a large table in tasks
    wanted = [name for name in _files(source) if not name.startswith(left_out) and "__pycache__" not in name]
    assert _files(worm) == wanted


def test_the_layer_has_the_pinned_versions(build: Path) -> None:
    pins = re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "shared" / "constraints.txt").read_text(), flags=re.MULTILINE)
    pattern = re.compile(r"(.+)-(.+)\.dist-info")
    folders = (build / "WormLayer" / "python").glob("*.dist-info")
    found = {
        match[1].lower().replace("_", "-"): match[2] for path in folders if (match := pattern.fullmatch(path.name))
    }
    assert found == {name.lower().replace("_", "-"): pinned for name, pinned in pins}
    assert found["boto3"] == version("boto3")


def test_the_layer_stays_small(build: Path) -> None:
    size = sum(path.stat().st_size for path in (build / "WormLayer").rglob("*") if path.is_file())
    assert size < SIZE_BYTES_MAX


def test_the_binaries_are_for_the_processor_of_the_functions(build: Path) -> None:
    machine = MACHINES[parameter_defaults()["Architecture"]]
    number = {"aarch64": 183, "x86_64": 62}[machine]
    binaries = list((build / "WormLayer" / "python").rglob("*.so"))
    machines = {path.name: int.from_bytes(path.read_bytes()[18:20], "little") for path in binaries}
    assert len(binaries) >= 3
    assert machines == dict.fromkeys(machines, number)


def test_the_layer_is_built_for_the_default_architecture_of_the_template() -> None:
    default = re.search(r"^ARCHITECTURE \?= (\w+)$", (ROOT / "shared" / "Makefile").read_text(), flags=re.MULTILINE)
    assert default is not None
    assert default[1] == parameter_defaults()["Architecture"]


def test_the_binaries_are_for_the_python_of_the_functions(build: Path) -> None:
    """Wheels for another Python are installed without a complaint, and fail at the first import."""
    tags = {
        tag
        for wheel in (build / "WormLayer" / "python").glob("*.dist-info/WHEEL")
        for tag in re.findall(r"^Tag: (\S+)$", wheel.read_text(), flags=re.MULTILINE)
    }
    (runtime,) = {one.properties["Runtime"] for one in functions()}
    own = runtime.replace("python", "cp").replace(".", "")
    binary = {tag for tag in tags if not tag.endswith("-none-any")}
    assert {tag for tag in binary if not (tag.startswith(f"{own}-{own}-") or "-abi3-" in tag)} == set()
    assert any(tag.startswith(f"{own}-") for tag in binary)


def _python_of_the_functions() -> str:
    """Where there is none, that of the tests, with a layer built for it."""
    found = shutil.which("python3.13") or ""
    works = found and subprocess.run([found, "-V"], capture_output=True, check=False).returncode == 0
    return found if works else sys.executable


@pytest.mark.skipif(platform.machine() not in MACHINES.values(), reason="no layer for this processor")
def test_the_handlers_start_with_the_layer_alone(tmp_path: Path) -> None:
    """A package that only the development environment has would break every function at its first start."""
    interpreter = _python_of_the_functions()
    said = _run(interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    here = next(name for name, machine in MACHINES.items() if machine == platform.machine())
    target = f"ARTIFACTS_DIR={tmp_path}"
    chosen = {"ARCHITECTURE": here, "PYTHON_VERSION": said}
    _run("make", "build-WormLayer", target, cwd=ROOT / "shared", environment=chosen)
    environment = {
        "AWS_DEFAULT_REGION": "eu-central-1",
        "POWERTOOLS_METRICS_NAMESPACE": "Test",
        "POWERTOOLS_SERVICE_NAME": "test",
        "WORM_BUCKET": "documents",
        "WORM_STACK": "worm",
    }
    python = (interpreter, "-I", "-S", "-B", "-c", IMPORT_EVERYTHING)
    _run(*python, tmp_path / "python", ROOT / "functions", environment=environment)
