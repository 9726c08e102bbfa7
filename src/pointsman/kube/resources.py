"""The four kinds a proxy watches, with the selectors kube-proxy uses for them, and the requests for one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic

from pointsman.errors import KubeError
from pointsman.http.messages import Response
from pointsman.kube.client import ApiClient
from pointsman.kube.codec import Decoder, Page, T, TooLarge, Unreadable
from pointsman.kube.formats import JSON, Decoders
from pointsman.model.objects import (
    HEADLESS_LABEL,
    SERVICE_PROXY_NAME_LABEL,
    EndpointSlice,
    Node,
    Service,
    ServiceCIDR,
)
from pointsman.obs.log import get_log

_FORMAT_REFUSED = (406, 415)

_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """What to list and watch."""

    kind: type[T]
    path: str
    label_selector: str = ""
    field_selector: str = ""
    field_selector_required: bool = True
    """False when the selector only saves traffic, so that it may be left out for a server that refuses it."""
    required: bool = True
    """False when a server may lack this kind (404), or deny access to it (403)."""


SERVICES = Resource(
    Service,
    "/api/v1/services",
    label_selector=f"!{SERVICE_PROXY_NAME_LABEL}",
    field_selector="spec.clusterIP!=None",
    field_selector_required=False,
)
"""Headless Services are left out by the server where it can (1.30 and later), else by the model."""

ENDPOINT_SLICES = Resource(
    EndpointSlice,
    "/apis/discovery.k8s.io/v1/endpointslices",
    label_selector=f"!{HEADLESS_LABEL}",
)
"""Slices are not selected by the proxy's name: their labels are copies of the Service's, and may lag behind."""

SERVICE_CIDRS = Resource(ServiceCIDR, "/apis/networking.k8s.io/v1/servicecidrs", required=False)


def select_own_node(name: str) -> Resource[Node]:
    """Return the resource for the one Node of this name."""
    return Resource(Node, "/api/v1/nodes", field_selector=f"metadata.name={name}")


class ResourceRequests(Generic[T]):
    """Requests for one resource, in a format and with a selector that the server accepts."""

    def __init__(self, client: ApiClient, resource: Resource[T], accept: str) -> None:
        self._client = client
        self._resource = resource
        self._accept = accept
        self._decoders = Decoders(resource.kind)
        self._field_selector = resource.field_selector

    async def get_page(self, params: Mapping[str, str]) -> Page[T] | None:
        """Return one page of a list; None when it must be requested again, without a field selector."""
        try:
            response = await self._client.request(
                "GET", self._resource.path, params={**self._selectors, **params}, accept=self._accept
            )
        except KubeError as error:
            if error.status != 400 or not self._field_selector or self._resource.field_selector_required:
                raise
            kind = self._resource.kind.__name__
            _log.info("Field selector refused", kind=kind, selector=self._field_selector)
            self._field_selector = ""
            return None
        try:
            return self._decoders.for_answer(response.content_type).decode_page(response.body)
        except TooLarge:
            raise
        except Unreadable as error:
            raise Unreadable(f"unreadable list: {error}") from error

    @asynccontextmanager
    async def open_watch(
        self, params: Mapping[str, str], headers_timeout: float
    ) -> AsyncIterator[tuple[Response, Decoder[T]]]:
        """Open a watch; give the response and the decoder for its events."""
        common = {"watch": "true", "allowWatchBookmarks": "true"}
        async with self._client.stream(
            self._resource.path,
            params={**self._selectors, **common, **params},
            accept=self._accept,
            headers_timeout=headers_timeout,
        ) as response:
            yield response, self._decoders.for_answer(response.content_type)

    def fall_back_to_json(self, error: KubeError) -> bool:
        """Request JSON from now on, after a server refused another format; return whether that is a change."""
        if not is_format_refused(error) or self._accept == JSON:
            return False
        _log.info("Protobuf not available, using JSON", kind=self._resource.kind.__name__, err=error)
        self._accept = JSON
        return True

    @property
    def _selectors(self) -> dict[str, str]:
        selectors = {"labelSelector": self._resource.label_selector, "fieldSelector": self._field_selector}
        return {name: value for name, value in selectors.items() if value}


def is_format_refused(error: KubeError) -> bool:
    return error.status in _FORMAT_REFUSED
