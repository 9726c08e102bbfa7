"""One running proxy on one node: from the objects of a source to the syncs of each IP family, and the views of them.

Promises:
- Nothing is programmed before every kind of object was listed and the Node is known (`start`).
- A bug met in one object, one sync or one check never ends the proxy; bad objects affect themselves only.
- Closing a proxy leaves every rule in the kernel; the next one takes over without a gap.
- Views (`inspector`, `/healthz`, `/metrics`) never wait for a worker thread that hangs.

Modules, in the order of an event:
- `objects` passes what a source delivers to the trackers and to `state`; `start` delays the first sync until the lists are complete.
- `family` has tracker, sync loop and backend of one IP family; `proxy` connects the families with all others.
- Listeners of syncs: `reporter`, `health`, `history` (with `service_changes`), `health_check_ports`, `cleanup`, `loopback_node_ports`.
- Beside the syncs: `host_checks` (with `host_conditions` and `endpoint_groups`), `datapath_probe`, `share_adjuster`,
  `service_metrics`, `traffic_sampler`, `node_status`.
- Views: `inspector`, and `watches` for the state of the source.

Invariants: everything here lives in the event loop, except what a `FamilyProxy` runs on its worker thread and `cleanup` on its
background threads; values that cross over are immutable. `ProxyHealth.on_worker_busy` and `on_worker_idle` are the exception.

A change that adds a part which can fail must also give it a `conditions` method and add that to the board (`proxy`). One that reacts to
syncs must be a `SyncListener` and must not block. One that adds a condition type must add it to the table in `wording/conditions.py`.
"""
