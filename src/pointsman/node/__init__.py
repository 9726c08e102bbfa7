"""One running proxy on one node: from the objects of a source to the syncs of each IP family, and the views of them.

Promises:
- Nothing is programmed before every kind of object was listed and the Node is known (`start`).
- A bug met in one object, one sync or one check never ends the proxy; bad objects affect themselves only.
- Closing a proxy leaves every rule in the kernel; the next one takes over without a gap.
- Views (`inspector`, `/healthz`, `/metrics`) never wait for a worker thread that hangs.

Invariants: everything here lives in the event loop, except what a `FamilyProxy` runs on its worker thread and `cleanup` on its
background threads; values that cross over are immutable. `ProxyHealth.on_worker_busy` and `on_worker_idle` are the exception.

A change that adds a part which can fail must also give it a `conditions` method and add that to the board (`proxy`). One that reacts to
syncs must be a `SyncListener` and must not block. One that adds a condition type must add it to the table in `wording/conditions.py`.
"""
