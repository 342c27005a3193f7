"""`worm serve` as a process on sample data, and the console in a browser tab as tests use it.

Everything that a test writes has an id of its own, so that tests share one server and do not meet.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import worm

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-browser-tests"
START_SECONDS = 90.0
PATIENCE_MILLISECONDS = 20_000
"""How long a test waits for what should be there at once: on a busy machine that can take a while."""
READINGS = 1_200
MINUS = "\N{MINUS SIGN}"
"""Before what is gone, in differences."""

SCHEMA: dict[str, Any] = {
    "version": "1.0",
    "models": {
        "Customer": {
            "path": "#org/@customers/(id:string)",
            "fields": {
                "name": {"type": "string", "required": True, "description": "Company name"},
                "email": {"type": "string"},
                "status": {"type": "string", "enum": ["lead", "active", "churned"], "default": "lead"},
                "score": {"type": "integer"},
                "isPartner": {"type": "boolean"},
                "tags": {"type": "array", "items": "string"},
                "address": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
                },
                "signedAt": {"type": "datetime"},
            },
            "oplog": True,
            "softDelete": True,
            "trashTtlDays": 30,
            "manifest": {"enabled": True},
            "indexes": {
                "byStatus": {"field": "status"},
                "byEmail": {"field": "email", "unique": True},
                "byTags": {"field": "tags", "type": "multiValue"},
            },
        },
        "Account": {
            "path": "#bank/@accounts/(id:string)",
            "space": "bank",
            "fields": {"owner": {"type": "string", "required": True}, "balance": {"type": "integer"}},
            "oplog": True,
            "softDelete": True,
            "manifest": {"enabled": True},
        },
        "Reading": {
            "path": "#plant/@readings/(id:string)",
            "fields": {"sensor": {"type": "string"}, "value": {"type": "number"}},
            "manifest": {"enabled": True},
        },
        "Order": {
            "path": "#shop/@orders/(id:string)",
            "fields": {
                "customer": {"type": "ref", "model": "Customer"},
                "also": {"type": "array", "items": {"type": "ref", "model": "Customer"}},
                "address": {"type": "object"},
                "note": {"type": "string"},
                "amount": {"type": "integer"},
            },
            "oplog": True,
            "softDelete": True,
            "manifest": {"enabled": True},
            "indexes": {"byCustomer": {"field": "customer"}},
        },
        "Archive": {
            "path": "#org/@archive/(id:string)",
            "mode": "readonly",
            "fields": {"note": {"type": "string"}},
        },
    },
}

_NAMES = (
    "Acme",
    "Nordwind",
    "Helios",
    "Café Blau",
    "Zürich Re",
    "Kōbe Steel",
    "Baltic",
    "Iron Gate",
    "Maple",
    "Sierra",
)
_TRADES = ("Tools", "Logistics", "Foods", "Robotics", "Textiles", "Energy", "Paper", "Optics")
_CITIES = (("Hamburg", "DE"), ("Oslo", "NO"), ("Leeds", "UK"), ("Portland", "US"), ("Zürich", "CH"))


def customer(number: int) -> dict[str, Any]:
    """The same one for the same number."""
    city, country = _CITIES[number * 7 % len(_CITIES)]
    return {
        "id": f"c{number:03d}",
        "name": f"{_NAMES[number % len(_NAMES)]} {_TRADES[number * 3 % len(_TRADES)]}",
        "email": f"info{number}@example.com",
        "status": ("active", "active", "lead", "churned")[number * 5 % 4],
        "score": number * 37 % 100,
        "tags": [tag for at, tag in enumerate(("vip", "eu", "beta")) if number >> at & 1],
        "address": {"city": city, "country": country},
    }


def fill(url: str) -> None:
    """Sixty customers, some with a past; two accounts and a branch; readings for paging."""
    with worm.connect(url, schema=SCHEMA, actor="user:ann") as db:
        db.push()
        customers = db.model("Customer")
        customers.insert_many([customer(number) for number in range(60)], reason="first import")
        for score, actor, reason in (
            (10, "bob", "a quiet quarter"),
            (55, "import:nightly", None),
            (80, "user:ann", "renewed"),
        ):
            customers.patch("c003", {"score": score}, actor=actor, reason=reason)
        customers.delete("c059", reason="a duplicate of c058")
        accounts = db.model("Account")
        for owner in ("Ann", "Bob"):
            accounts.insert({"id": owner.lower(), "owner": owner, "balance": 100})
        note = "Leave it with the neighbour, not at the door. " * 6
        db.model("Order").insert_many(
            [
                {"id": f"o{at}", "customer": f"c00{at}", "address": {"city": "Oslo", "floor": at}, "note": note}
                for at in range(3)
            ]
        )
        readings = [{"id": f"r{at:05d}", "sensor": f"s{at % 7}", "value": at / 2} for at in range(READINGS)]
        db.model("Reading").insert_many(readings)


@dataclass(frozen=True)
class Served:
    """A running `worm serve`."""

    url: str
    origin: str

    def address(self, *parts: str, **query: str) -> str:
        """Of a view of the console."""
        text = "/".join(quote(part, safe="") for part in parts)
        return f"{self.origin}/console/{text}" + (f"?{urlencode(query)}" if query else "")

    def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Another client of the API."""
        data = None if body is None else json.dumps(body).encode()
        known = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.origin + path, data, known, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return (json.loads(text) if text else {}), dict(answer.headers)

    def get(self, path: str) -> dict[str, Any]:
        return self.call("GET", path)[0]

    def create(self, model: str, document: Mapping[str, object]) -> None:
        self.call("POST", f"/v1/models/{model}/documents", document)

    def document(self, model: str, id: str, branch: str | None = None) -> dict[str, Any]:
        suffix = "" if branch is None else f"?branch={quote(branch)}"
        found: dict[str, Any] = self.get(f"/v1/models/{model}/documents/{quote(id, safe='')}{suffix}")["document"]
        return found

    def patch(self, model: str, id: str, changes: Mapping[str, object], branch: str | None = None) -> None:
        suffix = "" if branch is None else f"?branch={quote(branch)}"
        kind = {"Content-Type": "application/merge-patch+json"}
        self.call("PATCH", f"/v1/models/{model}/documents/{quote(id, safe='')}{suffix}", changes, kind)


@contextlib.contextmanager
def serve(url: str, *options: str, **variables: str) -> Iterator[Served]:
    """`worm serve` on a free port, until the block ends."""
    command = [sys.executable, "-m", "worm.cli.main", "serve", "--url", url, "--token", TOKEN, *options]
    paths = os.pathsep.join([str(ROOT / "shared"), str(ROOT)])
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, text=True, env={**os.environ, "PYTHONPATH": paths, **variables}
        )
        try:
            yield Served(url, _origin(process, log))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _origin(process: subprocess.Popen[str], log: Any) -> str:
    """Where it says that it listens."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        log.seek(0)
        said = log.read()
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        if found:
            return found[0]
        if process.poll() is not None:
            raise AssertionError(f"worm serve ended with {process.returncode}: {said}")
        time.sleep(0.05)
    raise AssertionError(f"worm serve did not start within {START_SECONDS:g} s")


@dataclass
class Tab:
    """A tab with the console. What the browser complains about is collected: at the end of a test there is nothing."""

    page: Page
    served: Served
    complaints: list[str] = field(default_factory=list)
    allowed: set[int] = field(default_factory=set)
    """Statuses that the test provokes; the browser reports each as an error."""
    has_token: bool = False

    @classmethod
    def of(cls, context: BrowserContext, served: Served) -> Tab:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        tab = cls(page, served)
        page.on("console", tab._heard)
        page.on("pageerror", lambda error: tab.complaints.append(f"uncaught: {error}"))
        page.add_init_script(
            "document.addEventListener('securitypolicyviolation', (event) =>"
            " console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`))"
        )
        return tab

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        status = re.search(r"status of (\d+)", message.text)
        if status is None or int(status[1]) not in self.allowed:
            self.complaints.append(f"{message.type}: {message.text}")

    def enter(self) -> Tab:
        """By the link that `worm serve` prints."""
        self.page.goto(f"{self.served.origin}/#token={TOKEN}")
        self.page.get_by_role("heading", level=1, name="Collections").wait_for()
        self.has_token = True
        return self

    def open(self, *parts: str, **query: str) -> Tab:
        """A view by its address, the first one with the token."""
        self.page.goto(self.served.address(*parts, **query) + ("" if self.has_token else f"#token={TOKEN}"))
        self.page.locator("main h1").first.wait_for()
        self.has_token = True
        return self

    def button(self, name: str | re.Pattern[str], *, exact: bool = True) -> Locator:
        return self.page.get_by_role("button", name=name, exact=exact)

    def field(self, pointer: str) -> Locator:
        """The control of a member in the form of a document."""
        return self.page.locator(f'[data-pointer="{pointer}"]').locator("input, select, textarea").first

    def dialog(self) -> Locator:
        return self.page.locator("dialog[open]")

    def announced(self, text: str) -> None:
        """What screen readers say, with its capitals."""
        self.page.locator('[role="status"].unseen', has_text=re.compile(re.escape(text))).wait_for(state="attached")
