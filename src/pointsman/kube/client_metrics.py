"""Requests to the API server as numbers, named as by every Kubernetes component."""

from __future__ import annotations

from pointsman.obs.registry import Metrics


class RequestListener:
    """Hears of every request; this one does not care."""

    def waited(self, method: str, seconds: float) -> None:
        """The rate limit let a request go after so long."""

    def answered(self, method: str, status: int | None) -> None:
        """A server answered with that status; None when none did."""

    def ended(self, method: str, seconds: float, sent: int, received: int | None) -> None:
        """A whole exchange is over, well or not; `received` is None when there was no complete body.

        Streams are not reported: their duration says nothing.
        """

    def plugin_called(self, outcome: str, code: int) -> None:
        """A credential plugin was run, with that exit status."""


class ClientMetrics(RequestListener):
    """Feeds the families `rest_client_*`."""

    def __init__(self, metrics: Metrics, host: str) -> None:
        self._metrics, self._host = metrics, host

    def waited(self, method: str, seconds: float) -> None:
        self._metrics.rest.wait_seconds.labels(verb=method, host=self._host).observe(seconds)

    def answered(self, method: str, status: int | None) -> None:
        code = "<error>" if status is None else str(status)
        self._metrics.rest.requests.labels(code=code, method=method, host=self._host).inc()

    def ended(self, method: str, seconds: float, sent: int, received: int | None) -> None:
        labels = {"verb": method, "host": self._host}
        self._metrics.rest.seconds.labels(**labels).observe(seconds)
        self._metrics.rest.sent_bytes.labels(**labels).observe(sent)
        if received is not None:
            self._metrics.rest.received_bytes.labels(**labels).observe(received)

    def plugin_called(self, outcome: str, code: int) -> None:
        self._metrics.rest.plugin_calls.labels(code=str(code), call_status=outcome).inc()
