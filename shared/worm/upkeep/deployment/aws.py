"""AWS clients for the resources around the bucket, with their errors converted to ours.

boto3 is imported with the first client, so commands without a stack start faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from worm.errors import Denied, NotFound, Unavailable

REFUSED = ("AccessDenied", "Unauthorized", "AuthorizationError", "InvalidClientTokenId", "ExpiredToken", "Forbidden")
MISSING = ("NonExistentQueue", "QueueDoesNotExist", "ResourceNotFound", "NoSuch", "NotFound")


class Aws:
    """One account and region, from the usual variables, profiles and roles."""

    def __init__(self, endpoint_url: str | None = None) -> None:
        self._endpoint_url = endpoint_url
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """Typed as Any: the stubs of most services are not installed. The values that are read from answers are checked
        here."""
        if service not in self._clients:
            import boto3

            with asking(f"the service {service} cannot be used"):  # no region, a profile that does not exist
                self._clients[service] = cast(Any, boto3).client(service, endpoint_url=self._endpoint_url)
        return self._clients[service]


@contextmanager
def asking(what: str, *, hint: str | None = None) -> Iterator[None]:
    """Errors of boto3 as ours: `Denied`, `NotFound`, `Unavailable`. `what` describes the request."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        told = str(error.response.get("Error", {}).get("Message", "")) or code
        if any(one in code for one in REFUSED):
            raise Denied(f"{what}: {told}", hint=hint or "check the policy of your role") from error
        if any(one in code for one in MISSING) or "does not exist" in told:
            raise NotFound(f"{what}: {told}", hint=hint) from error
        raise Unavailable(f"{what}: {told}", hint=hint) from error
    except NoCredentialsError as error:
        raise Denied(
            f"{what}: no credentials were found", hint="set AWS_PROFILE, or the variables of a role"
        ) from error
    except (BotoCoreError, ValueError) as error:
        raise Unavailable(f"{what}: {error}", hint=hint) from error
