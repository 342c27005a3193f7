#!/usr/bin/env python3
"""Fetches the console's libraries from npm into `shared/worm/api/console/vendor/`, and axe-core for its tests.

The files are the minified builds as published. Browsers cannot resolve bare imports without an import map, and the
console's content security policy allows no inline one. So this script makes exactly three changes:

- bare imports (`from"preact"`) become relative ones (`from"./preact.js"`);
- the comment with the name of a source map, which is not vendored, is removed;
- uPlot is published minified only as a script that sets a global: `export default uPlot` is added at its end.

Trailing blanks are removed, and each file ends with a newline. To change a version, edit `PACKAGES` and run it again.
It needs `npm`.
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
    """`files` maps a path in the package to the vendored name; `sha256` is of the published archive."""

    name: str
    version: str
    licence: str
    sha256: str
    files: Mapping[str, str]
    target: Path = CONSOLE
    suffix: str = ""


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "MIT",
        "3c4456766bd32b6b534d52bf4e9c2a29b33e7eedf6e96ed479300ba1a7888ebf",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js"},
    ),
    Package(
        "htm",
        "3.1.1",
        "Apache-2.0",
        "2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90",
        {"dist/htm.mjs": "htm.js"},
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "MIT",
        "94c421ac996214c94f532fb4c43d8ede048a16df0cd9538ffb965174dbe8daba",
        {"dist/signals-core.mjs": "signals-core.js"},
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "MIT",
        "66ea8221dd8aaa0da2365d49c3f116b071d56cfb63b2e16c072c6b4e08a928b7",
        {"dist/signals.mjs": "signals.js"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "MIT",
        "4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
        {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
        suffix="\nexport default uPlot;",
    ),
    Package(
        "axe-core",
        "4.14.0",
        "MPL-2.0",
        "2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af",
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
    """The archive as published; SystemExit if it is not the pinned one."""
    named = f"{package.name}@{package.version}"
    found = subprocess.run(["npm", "pack", "--json", named], cwd=scratch, check=True, capture_output=True, text=True)
    archive = scratch / str(json.loads(found.stdout)[0]["filename"]).replace("@", "").replace("/", "-")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise SystemExit(f"{named} is not the archive that was pinned: its sha256 is {digest}")
    return archive


def vendor(package: Package, archive: Path) -> None:
    with tarfile.open(archive) as tar:
        for path, name in package.files.items():
            write(package.target / name, adapted(member(tar, path), name, package.suffix))
        licence = f"LICENSE-{package.name.removeprefix('@').replace('/', '-')}"
        write(package.target / f"{licence}.txt", member(tar, "LICENSE"))
        if "package/LICENSE-3RD-PARTY.txt" in tar.getnames():
            write(package.target / f"{licence}-3rd-party.txt", member(tar, "LICENSE-3RD-PARTY.txt"))


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
        "From npm, minified as published, each with its license. `scripts/vendor_console.py` fetches them, says what",
        "it adapts, and writes this file.",
        "",
        "| Package | Version | License | File | Bytes | sha256 |",
        "|---|---|---|---|---|---|",
    ]
    for package in PACKAGES:
        if package.target == target:
            for name in package.files.values():
                data = (target / name).read_bytes()
                named = f"{package.name} | {package.version} | {package.licence}"
                lines.append(f"| {named} | `{name}` | {len(data):,} | `{hashlib.sha256(data).hexdigest()}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
