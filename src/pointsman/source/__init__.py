"""Where objects come from: an API server or a directory of manifests.

Promise: a source yields every object once, `Synced` for each kind, then only changes. It never yields a deletion because
a server or a file cannot be read: old rules are better than none. Failures are part of `statuses`, never exceptions.

Invariants: events of one kind keep their order. Memory for events that wait is bounded: a slow consumer makes the source
wait. Manifests pass `admission`, which does what an API server would have done.

A change that adds a kind must also extend `kube/resources.py`, `kube/messages.py`, `documents.py` and `admission.py`.
"""
