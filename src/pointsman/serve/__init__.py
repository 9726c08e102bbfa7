"""What the process serves over HTTP: health, metrics, the status page, health check node ports, the control socket.

Promises: kube-proxy's paths, bodies and status codes; no client, whatever it sends, holds or leaves unread, keeps probes
from being answered, takes more than a bounded amount of memory or fills the log; pages that hold more than metrics answer
only under an address, and those with names of Services only on loopback.

Layers inside: `messages` (values, and wrappers of handlers), `connections` (limits), `server` (HTTP on sockets, over plain bytes
or those of `tls`), `listeners` (ports that follow the configuration), `authorization` (who may read metrics), then what is served.
A new port must share the `Connections` of the process; a new page that describes the node must be wrapped by `require_address`
or `require_loopback`.
"""
