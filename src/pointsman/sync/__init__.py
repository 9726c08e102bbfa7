"""From changed service ports to kernel state: when to sync, what to program, which flows to delete afterwards.

Promises: the event loop never waits for the kernel; one worker thread per IP family plans and programs, and only immutable
values cross over (`Changes` and `NodeContext` in, `SyncOutcome` or `SyncFailed` out). A change is lost neither by a failed
sync nor by an exception: the next sync is a full one, and after an internal error everything derived is built again. The
backend is kept: its full sync must be right whatever its memory holds (tests/kernel/test_internal_errors.py). Flows
are deleted on a thread of their own, after the kernel accepted the change.

Invariants: the plans of the reconciler are the desired state, whether or not the kernel accepted them; `PlanChange.old` is
what the kernel had. A sync runs neither before all objects are listed nor more often than the pacer allows.

A change that lets the reconciler or the tracker keep more state must also build it again in `build_successor` and
`restart`. A change that makes packets go elsewhere must also decide about their flows in stale_flows.py. A new callback of
`SyncListener` must be called in the event loop.
"""
