"""The API on this machine: a session, its credentials, and the server. `worm serve` and `worm dev` run it."""

from __future__ import annotations

import re
from threading import Thread
from types import TracebackType
from typing import Self

from worm.api.app import Api
from worm.api.call import ApiSettings
from worm.api.credentials import LocalCallers
from worm.api.server import Server
from worm.errors import Invalid
from worm.sdk import Worm

TOKEN_LENGTH_MIN = 8
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
ACTOR = "local"


class LocalApi:
    """Listens from the start. `serve` answers requests; `with` does so in a thread. Closing it closes the session."""

    def __init__(
        self,
        session: Worm,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        is_readonly: bool = False,
    ) -> None:
        self.token = f"{session.ids.rng.getrandbits(192):048x}" if token is None else checked_token(token)
        callers = LocalCallers(self.token, actor=session.settings.actor or ACTOR, is_readonly=is_readonly)
        self._api = Api(lambda: session, ApiSettings(is_readonly=is_readonly), callers)
        self._session = session
        self._server = Server(self._api, clock=session.clock, ids=session.ids, host=host, port=port)
        self._thread: Thread | None = None

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def link(self) -> str:
        """The address of the console. The part after # stays in the browser: no request and no log contains it."""
        return f"{self.url}/#token={self.token}"

    def serve(self) -> None:
        """Serves until `close`, or an interrupt."""
        self._server.serve()

    def close(self) -> None:
        """Finishes open requests, then folds pending changes and releases the store."""
        self._server.close()
        self._api.close()
        self._session.close()

    def __enter__(self) -> Self:
        self._thread = Thread(target=self.serve, name="worm-serve", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self._thread is not None:
            self._thread.join()


def checked_token(token: str) -> str:
    """A token that fits into a header and a URL, and that is hard to guess."""
    if len(token) < TOKEN_LENGTH_MIN or not _TOKEN.fullmatch(token):
        hint = f"use at least {TOKEN_LENGTH_MIN} letters, digits and . _ ~ + / -, or leave it out for a random one"
        raise Invalid("the token is too short, or has characters that are not allowed in a header", hint=hint)
    return token
