#!/usr/bin/env python3
"""Fetches the console's libraries from npm into `shared/worm/api/console/vendor/`, and axe-core into `tests/browser/vendor/`.

The files are the minified builds as published. Browsers resolve no bare import without an import map, and the console's
content security policy allows no inline one, so this script makes three changes and no others:

- bare imports (`from"preact"`) become relative ones (`from"./preact.js"`);
- the comment with the name of a source map, which is not vendored, goes;
- uPlot is published minified only as a script that sets a global: `export default uPlot` is added at its end.

Blanks at the end of lines go, and each file ends with a newline. Run it again after you change a version; it needs `npm`.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSOLE = ROOT / "shared" / "worm" / "api" / "console" / "vendor"
TESTS = ROOT / "tests" / "browser" / "vendor"
IMPORTS = {
    "preact": "./preact.js",
    "preact/hooks": "./preact-hooks.js",
    "@preact/signals-core": "./signals-core.js",
}


@dataclass(frozen=True)
class Package:
    """`files` maps a path in the package to the vendored name; `sha512` is of the published archive."""

    name: str
    version: str
    licence: str
    sha512: str
    files: Mapping[str, str]
    target: Path = CONSOLE
    suffix: str = ""


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "MIT",
        "fc77c723fecdf387ba1ab581277276f34cf798b6912620dc4af8ff03ecbfe006cb9cd0ffd549461ded6c47aa18b931b021dd273fb76a0d4f4e9cbc4c3d9ef106",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js"},
    ),
    Package(
        "htm",
        "3.1.1",
        "Apache-2.0",
        "f7cdd5ca0f0dc1413b26467a3663aaa4267eb21d5b2afda2613954933956980e490f669c2a8c5de0a5716cc9b15fff399ad7dd9c399316834a720e43180bf135",
        {"dist/htm.mjs": "htm.js"},
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "MIT",
        "bdc46fec8b72cf925599e895a8896e2c5cd3fcf0d2fc09611d4a70dff6945aa71552ce9b0c620f5c4ffa4520b87af04d598be79e2a338394b27e3df76a5de092",
        {"dist/signals-core.mjs": "signals-core.js"},
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "MIT",
        "45bfb944fa3d81649a1edcc979aba11f1882f0a3ff205d8310f9073c43863a7bb2db09c9cd1ab278b45a9e450261de800eab714ba1a7586bfa21edf8dddf1a63",
        {"dist/signals.mjs": "signals.js"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "MIT",
        "2883159c6ebccefbb95d751b0b82d010f9e1c0ec41b8bc96d401eda66e882935c89a46cb824332fa369b8cb8122cc6ac36e186cd09bf7a9ded3a4c93c6989023",
        {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
        suffix="\nexport default uPlot;",
    ),
    Package(
        "axe-core",
        "4.14.0",
        "MPL-2.0",
        "f564d9c448ec67b6f5dd31fc24f99b576cfc0876e5f34ff6866dd73c41b826035d40b2bcd480515e64b11df3003a44aa41e4714ffd1dc0d0f3d863a6df3ce971",
        {"axe.min.js": "axe.min.js"},
        target=TESTS,
    ),
)


def main() -> int:
    for target in (CONSOLE, TESTS):
        target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for package in PACKAGES:
            vendor(package, fetched(package, Path(scratch)))
    for target in (CONSOLE, TESTS):
        (target / "README.md").write_text(readme(target))
    return 0


def fetched(package: Package, scratch: Path) -> Path:
    """The archive as published; SystemExit where it is another one than the pinned."""
    named = f"{package.name}@{package.version}"
    found = subprocess.run(["npm", "pack", "--json", named], cwd=scratch, check=True, capture_output=True, text=True)
    archive = scratch / str(json.loads(found.stdout)[0]["filename"]).replace("@", "").replace("/", "-")
    digest = hashlib.sha512(archive.read_bytes()).hexdigest()
    if digest != package.sha512:
        raise SystemExit(f"{named} is not the archive that was pinned: its sha512 is {digest}")
    return archive


def vendor(package: Package, archive: Path) -> None:
    with tarfile.open(archive) as tar:
        for path, name in package.files.items():
            write(package.target / name, adapted(member(tar, path), name, package.suffix))
        licence = package.name.removeprefix("@").replace("/", "-")
        write(package.target / f"LICENSE-{licence}.txt", member(tar, "LICENSE"))


def member(tar: tarfile.TarFile, path: str) -> str:
    found = tar.extractfile(f"package/{path}")
    if found is None:
        raise SystemExit(f"the archive has no file {path}")
    return found.read().decode()


def adapted(text: str, name: str, suffix: str) -> str:
    """The file as browsers can load it; see above."""
    text = re.sub(r"\n?//# sourceMappingURL=\S+\s*$", "", text)
    for bare, relative in IMPORTS.items():
        text = text.replace(f'from"{bare}"', f'from"{relative}"')
    return text.rstrip() + suffix if name.endswith(".js") else text


def write(path: Path, text: str) -> None:
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n") + "\n")


def readme(target: Path) -> str:
    lines = [
        "# Vendored libraries",
        "",
        "From npm, minified as published, each with its licence beside it. `scripts/vendor_console.py` fetches them, says what it",
        "adapts, and writes this file.",
        "",
        "| Package | Version | Licence | File | Bytes | sha256 |",
        "|---|---|---|---|---|---|",
    ]
    for package in PACKAGES:
        if package.target == target:
            for name in package.files.values():
                data = (target / name).read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                lines.append(
                    f"| {package.name} | {package.version} | {package.licence} | `{name}` | {len(data):,} | `{digest}` |"
                )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
