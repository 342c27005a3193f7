"""`worm dlq`: list, show, redrive and drop messages that the workers, rules and schedules could not process."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from worm.cli.options import DEFAULT_URL, Target
from worm.cli.output import RowFormat, Rows, cell, count, echo, echo_rows, printable
from worm.errors import Invalid, WormError
from worm.formats import JsonValue
from worm.upkeep import Aws, Stack, dead_letters

COLUMNS = ("queue", "sent", "kind", "model", "key", "reason", "id")
RESULT_COLUMNS = ("queue", "id", "key", "result", "problem")
ID_SHOWN = 8

QueueName = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Dead letters of this worker; of all if you name none.")
]
StackName = Annotated[
    str | None, typer.Option("--stack", metavar="STACK", envvar="WORM_STACK", help="The stack that owns the queues.")
]
QueueUrl = Annotated[
    str | None, typer.Option("--queue", metavar="URL", help="Use this queue instead of a stack's queues.")
]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only those about this key; * matches any characters.")
]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only those whose reason contains this text.")
]
MessageId = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="Only this message; the start of its id is enough.")
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


def list_letters(
    target: Target,
    name: QueueName = None,
    stack: StackName = None,
    queue: QueueUrl = None,
    key: Key = None,
    reason: Reason = None,
    format: Rows = RowFormat.table,
) -> None:
    """List dead letters: when each arrived, its kind, its subject and its reason. They stay in the queue."""
    place = _Place(target, stack, queue, name)
    found = place.letters(dead_letters.LetterChoice(key, reason))
    rows: list[dict[str, JsonValue]] = [{**one.shape(), "model": place.model(one)} for one in found]
    if format is not RowFormat.table:
        echo_rows(COLUMNS, rows, format)
        return
    if rows:
        echo_rows(COLUMNS, [row | {"id": str(row["id"])[:ID_SHOWN]} for row in rows], format)
    for line in _grouped(found) or [place.nothing()]:
        echo(line)
    place.note_more()


def show(
    target: Target,
    name: QueueName = None,
    stack: StackName = None,
    queue: QueueUrl = None,
    key: Key = None,
    reason: Reason = None,
    id: MessageId = None,
    format: Annotated[RowFormat, typer.Option("--format", help="How to show it.")] = RowFormat.table,
) -> None:
    """Show complete dead letters: attributes and body. They stay in the queue."""
    place = _Place(target, stack, queue, name)
    found = place.letters(dead_letters.LetterChoice(key, reason, id))
    if format is not RowFormat.table:
        rows = [_whole(one, place.model(one)) for one in found]
        echo_rows([*COLUMNS, "attributes", "body"], rows, format, raw_csv=True)
        return
    for number, one in enumerate(found):
        if number:
            echo()
        for label, value in _whole(one, place.model(one)).items():
            if label != "body" and value is not None:
                echo(f"{label + ':':12}{printable(cell(value))}")
        echo(_readable(one.body))
    if not found:
        echo(place.nothing())
    place.note_more()


def redrive(
    target: Target,
    name: QueueName = None,
    stack: StackName = None,
    queue: QueueUrl = None,
    key: Key = None,
    reason: Reason = None,
    id: MessageId = None,
    all: All = False,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Send them to this queue instead of where they came from.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    format: Rows = RowFormat.table,
) -> None:
    """Send dead letters back where they came from, and then remove them. A failed run of a function or a Spark job
    starts again.

    Safe at any time: processing a message twice gives the same result. If one cannot be sent, the exit code is that of
    the first failure.
    """
    place, choice = _Place(target, stack, queue, name), _choice(key, reason, id, all)

    def act(found: dead_letters.DeadLetterQueue, letter: dead_letters.Letter) -> str:
        done = found.redrive(letter, to, dry_run=dry_run)
        return f"would be {done}" if dry_run else done

    _show_results(place, place.each(choice, act), format)


def drop(
    target: Target,
    name: QueueName = None,
    stack: StackName = None,
    queue: QueueUrl = None,
    key: Key = None,
    reason: Reason = None,
    id: MessageId = None,
    all: All = False,
    yes: Annotated[bool, typer.Option("--yes", help="Really drop them.")] = False,
    format: Rows = RowFormat.table,
) -> None:
    """Delete dead letters permanently. Without --yes it only shows which.

    Documents, history and tables stay as they are: the sweep still finds what a dropped event was about.
    """
    place, choice = _Place(target, stack, queue, name), _choice(key, reason, id, all)

    def act(found: dead_letters.DeadLetterQueue, letter: dead_letters.Letter) -> str:
        if yes:
            found.drop(letter)
        return "dropped" if yes else "would be dropped"

    results = place.each(choice, act)
    _show_results(place, results, format)
    if results and not yes:
        echo("worm: nothing was dropped; pass --yes to drop them", err=True)


class _Place:
    """The queues that a command works on, and the names of models, if the schema can be read."""

    def __init__(self, target: Target, stack: str | None, queue: str | None, name: str | None) -> None:
        if queue is not None and name is not None:
            raise Invalid(
                "--queue and a NAME are both given", hint="a NAME is for the queues of a stack; pass only one of them"
            )
        aws = Aws(target.endpoint_url)
        self._url = target.url if target.url != DEFAULT_URL else None
        if queue is not None:
            self.queues = [dead_letters.DeadLetterQueue(aws, queue.rpartition("/")[2], queue)]
        else:
            found = Stack.read(aws, stack or "")
            self.queues = dead_letters.queues_of(aws, found, name)
            self._url = self._url or found.url
        self._target = target
        self.seen = 0
        """How many letters were received, selected or not."""
        self._models: Callable[[str], str | None] | None = None

    def letters(self, choice: dead_letters.LetterChoice) -> list[dead_letters.Letter]:
        found: list[dead_letters.Letter] = []
        for queue in self.queues:
            with queue.letters() as letters:
                for one in letters:
                    self.seen += 1
                    found += [one] if choice.has(one) else []
        return sorted(found, key=lambda one: (one.queue, one.sent, one.id))

    def each(
        self, choice: dead_letters.LetterChoice, act: Callable[[dead_letters.DeadLetterQueue, dead_letters.Letter], str]
    ) -> list[tuple[dead_letters.Letter, str, WormError | None]]:
        """Act on each as it is received, so that none is held for long."""
        results: list[tuple[dead_letters.Letter, str, WormError | None]] = []
        for queue in self.queues:
            with queue.letters() as letters:
                for one in letters:
                    self.seen += 1
                    if not choice.has(one):
                        continue
                    try:
                        results.append((one, act(queue, one), None))
                    except WormError as error:
                        results.append((one, "failed", error))
        return results

    def model(self, letter: dead_letters.Letter) -> str | None:
        if letter.key is None or self._url is None or not self._url.startswith("s3://"):
            return None
        if self._models is None:
            self._models = _models(self._target.overridden(url=self._url))
        return self._models(letter.key)

    def nothing(self) -> str:
        """The message if no letter matches."""
        return f"none of {count(self.seen, 'dead letter')} matches" if self.seen else "no dead letters"

    def note_more(self) -> None:
        for queue in self.queues:
            if queue.more:
                more = f"{queue.more:,} more of {queue.name}"
                echo(
                    f"worm: note: about {more} were not received: other readers hold them, or there are too many",
                    err=True,
                )


def _models(target: Target) -> Callable[[str], str | None]:
    """The model of a key in the bucket. Always None if the schema cannot be read."""
    try:
        session = target.connect()
        resolver, prefix = session.resolver, session.store.url.partition("://")[2].partition("/")[2]
    except WormError:
        return lambda key: None  # listing dead letters must not depend on a bucket that may be the problem
    below = f"{prefix}/" if prefix else ""
    return lambda key: resolver.parse(key[len(below) :]).model if key.startswith(below) else None


def _choice(key: str | None, reason: str | None, id: str | None, all: bool) -> dead_letters.LetterChoice:
    is_narrow = any(one is not None for one in (key, reason, id))
    if all == is_narrow:
        raise Invalid("choose the dead letters", hint="pass --all, or --key, --reason or --id")
    return dead_letters.LetterChoice(key, reason, id)


def _grouped(letters: Sequence[dead_letters.Letter]) -> list[str]:
    """`capture: 3 (2 rejected, 1 failed)`."""
    found: list[str] = []
    for queue in sorted({one.queue for one in letters}):
        kinds = Counter(one.kind.value for one in letters if one.queue == queue)
        told = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
        found.append(f"{printable(queue)}: {count(kinds.total(), 'dead letter')} ({told})")
    return found


def _whole(letter: dead_letters.Letter, model: str | None) -> dict[str, JsonValue]:
    attributes: JsonValue = dict(letter.attributes)
    return {**letter.shape(), "model": model, "attributes": attributes, "body": letter.body}


def _readable(body: str) -> str:
    """JSON indented, anything else as it is."""
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except ValueError:
        return body


def _show_results(
    place: _Place, results: Sequence[tuple[dead_letters.Letter, str, WormError | None]], format: RowFormat
) -> None:
    rows: list[dict[str, JsonValue]] = []
    for letter, result, error in results:
        problem = None if error is None else " ".join(error.for_shell().split())
        rows.append({"queue": letter.queue, "id": letter.id, "key": letter.key, "result": result, "problem": problem})
    failures = [error for _, _, error in results if error is not None]
    if format is RowFormat.table:
        rows = [row | {"id": str(row["id"])[:ID_SHOWN], "key": row["key"] or "--"} for row in rows]
    if rows or format is not RowFormat.table:
        echo_rows(RESULT_COLUMNS if failures else RESULT_COLUMNS[:4], rows, format)
    else:
        echo(place.nothing())
    place.note_more()
    if failures:
        echo(f"worm: {len(failures):,} of {count(len(results), 'message')} failed", err=True)
        raise typer.Exit(failures[0].exit_code)
