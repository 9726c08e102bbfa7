"""Metrics of requests to the API server, named as by every Kubernetes component."""

from __future__ import annotations

from pointsman.obs.registry import Metrics


class RequestListener:
    """Callbacks about requests; these do nothing."""

    def on_rate_limited(self, method: str, seconds: float) -> None:
        """A request waited so long for the rate limit."""

    def on_response(self, method: str, status: int | None) -> None:
        """A response came, with that status; None when none did."""

    def on_complete(self, method: str, seconds: float, sent: int, received: int | None) -> None:
        """A request and its response are complete, or failed; `received` is None when there was no complete body.

        Streams are not reported: their duration is no measure of the server.
        """

    def on_plugin_run(self, outcome: str, code: int) -> None:
        """A credential plugin was run, with that exit status."""


class ClientMetrics(RequestListener):
    """Fills the metrics `rest_client_*`."""

    def __init__(self, metrics: Metrics, host: str) -> None:
        self._metrics, self._host = metrics, host

    def on_rate_limited(self, method: str, seconds: float) -> None:
        self._metrics.rest.wait_seconds.labels(verb=method, host=self._host).observe(seconds)

    def on_response(self, method: str, status: int | None) -> None:
        code = "<error>" if status is None else str(status)
        self._metrics.rest.requests.labels(code=code, method=method, host=self._host).inc()

    def on_complete(self, method: str, seconds: float, sent: int, received: int | None) -> None:
        labels = {"verb": method, "host": self._host}
        self._metrics.rest.seconds.labels(**labels).observe(seconds)
        self._metrics.rest.sent_bytes.labels(**labels).observe(sent)
        if received is not None:
            self._metrics.rest.received_bytes.labels(**labels).observe(received)

    def on_plugin_run(self, outcome: str, code: int) -> None:
        self._metrics.rest.plugin_calls.labels(code=str(code), call_status=outcome).inc()
