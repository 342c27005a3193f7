"""A forked child whose answer is waited for only so long: a hang is a failure, not a stop. And threads that are busy
while it is made."""

from __future__ import annotations

import faulthandler
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TypeVar, cast

AnswerT = TypeVar("AnswerT")
SECONDS = 20.0
FORK = multiprocessing.get_context("fork")


@contextmanager
def busy_threads(work: Callable[[int, int], None], threads: int, pause: float) -> Iterator[None]:
    """Threads that do this work again and again, so that a fork finds them in the middle of something. `work` gets the
    number of its thread, and how often that has done it. What fails in one fails here."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def repeat(number: int) -> None:
        try:
            for count in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
                work(number, count)
                ended.wait(pause)
        except BaseException as error:  # noqa: BLE001 - looked at below, in the thread of the test
            failures.append(error)

    workers = [threading.Thread(target=repeat, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        ended.set()
        for worker in workers:
            worker.join(3 * SECONDS)
        assert not any(worker.is_alive() for worker in workers), "a thread of the parent hangs"
    assert failures == []


def in_forked_child(work: Callable[[], AnswerT], seconds: float = SECONDS) -> AnswerT:
    """What `work` returns in a child of this process; its exception is raised here."""
    here, there = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_answer, args=(work, there))
    child.start()
    there.close()
    try:
        if not here.poll(seconds):
            assert child.pid is not None
            os.kill(child.pid, signal.SIGUSR1)  # it says on stderr where it hangs
            raise AssertionError(f"the child gave no answer in {seconds:g} s")
        answer = here.recv()
    finally:
        child.join(1.0)
        if child.is_alive():
            child.kill()
            child.join()
        here.close()
    if isinstance(answer, Exception):
        raise answer
    return cast("AnswerT", answer)


def _answer(work: Callable[[], object], there: Connection) -> None:
    faulthandler.register(signal.SIGUSR1)
    try:
        there.send(work())
    except Exception as error:  # noqa: BLE001 - raised again in the parent
        try:
            there.send(error)
        except Exception:  # noqa: BLE001 - cannot be pickled
            there.send(RuntimeError(repr(error)))
