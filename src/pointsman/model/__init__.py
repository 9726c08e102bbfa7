"""Pure part of the proxy: Kubernetes objects in, plans out.

Promises: no I/O, no clock, no randomness (checked by a lint contract). Bad content of an object never raises: it is
ignored and reported as a finding, and the rest of the object is used. The result never depends on the order of events.
Every value that leaves the package is immutable.

Way of the data: objects -> service ports (service.py) and endpoints (slices.py) -> states (tracker.py) -> ownership of
addresses (claims.py), selection of endpoints (topology.py), balancing (balancing.py, slots.py) -> `ServicePlan`
(planning.py).

Invariants: everything of a whole Service is parsed once and shared by its ports; slices are merged once per `take`;
contenders of an address cost a logarithm each. Work never grows with the product of two lists that one object may have.

A change that adds a field to a plan must also decide whether flows depend on it (sync/stale_flows.py) and show it in
`explain`. A change that adds an annotation must also limit what it may cost per node and report what is not granted.
"""
