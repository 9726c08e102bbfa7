"""Reviews by the API server of clients of the metrics port: TokenReview and SubjectAccessReview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from pointsman.errors import KubeError
from pointsman.kube.client import ApiClient
from pointsman.kube.codec import check_json

_TIMEOUT_SECONDS = 5.0
T = TypeVar("T")


class User(msgspec.Struct, frozen=True):
    """An authenticated user, as the API server reports it."""

    username: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: User | None = None
    audiences: tuple[str, ...] = ()


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _SubjectAccessReview(msgspec.Struct):
    status: _AccessStatus


class ApiReviews:
    """Reviews by the API server. Every failure is a KubeError."""

    def __init__(self, client: ApiClient, audiences: Sequence[str] = ()) -> None:
        """Tokens must be meant for one of `audiences`; without any, for the API server."""
        self._client, self._audiences = client, tuple(audiences)

    async def review_token(self, token: str) -> User | None:
        """Return the user of this token; None when it is not valid here."""
        spec = {"token": token, **({"audiences": self._audiences} if self._audiences else {})}
        answer = await self._review("authentication.k8s.io", "TokenReview", spec, _TokenReview)
        status = answer.status
        is_for_us = not self._audiences or not set(self._audiences).isdisjoint(status.audiences)
        return status.user if status.authenticated and is_for_us else None

    async def review_access(self, user: User, verb: str, path: str) -> bool:
        """Return whether this user may do that to a path outside the API's resources."""
        spec = {
            "user": user.username,
            "groups": user.groups,
            "uid": user.uid,
            "extra": user.extra,
            "nonResourceAttributes": {"verb": verb, "path": path},
        }
        answer = await self._review("authorization.k8s.io", "SubjectAccessReview", spec, _SubjectAccessReview)
        return answer.status.allowed and not answer.status.denied

    async def _review(self, group: str, kind: str, spec: Mapping[str, object], answer: type[T]) -> T:
        path = f"/apis/{group}/v1/{kind.lower()}s"
        body = msgspec.json.encode({"apiVersion": f"{group}/v1", "kind": kind, "spec": spec})
        response = await self._client.request("POST", path, body=body, timeout=_TIMEOUT_SECONDS)
        check_json(response.body)
        try:
            return msgspec.json.decode(response.body, type=answer)
        except msgspec.MsgspecError as error:
            raise KubeError(f"POST {path}: not the answer to a {kind}") from error
