"""TLS and authentication of the served ports, imported only where flags ask for them."""

from __future__ import annotations

from pointsman.app.servers import Security
from pointsman.conditions import ConditionBoard
from pointsman.config.options import SecureServing
from pointsman.errors import ConfigError
from pointsman.kube.client import ApiClient
from pointsman.kube.reviews import ApiReviews
from pointsman.serve.authorization import Authorizer
from pointsman.serve.tls import ServerTls


def build_security(
    options: SecureServing, client: ApiClient | None, node_name: str, board: ConditionBoard
) -> Security:
    """Return what protects the ports; `client` asks the API server about clients of the metrics port."""
    health = metrics = authorizer = None
    if options.health:
        health = ServerTls(options.certificate, options.key, None, node_name)
        board.add_source("certificate of the health port", health.conditions)
    if options.metrics:
        if client is None:
            raise ConfigError(["--secure-metrics: needs an API server, which --manifests replaces"])
        metrics = ServerTls(options.certificate, options.key, options.client_ca, node_name)
        board.add_source("certificate of the metrics port", metrics.conditions)
        reviews = ApiReviews(client, options.audiences)
        authorizer = Authorizer(reviews, exempts_loopback=options.metrics == "remote")
        board.add_source("clients of the metrics port", authorizer.conditions)
    return Security(metrics, health, authorizer)
