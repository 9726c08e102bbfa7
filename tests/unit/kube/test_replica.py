"""What is remembered of delivered and rejected objects."""

from __future__ import annotations

from tests import factory

from pointsman.kube.codec import BadObject
from pointsman.kube.replica import MAX_REJECTED, Replica
from pointsman.kube.status import WatchStatus
from pointsman.model.findings import Finding
from pointsman.model.objects import Service


def test_errors_of_rejected_objects_are_kept_up_to_a_limit_and_all_are_counted() -> None:
    status, found = WatchStatus(), list[Finding]()
    replica = Replica(Service, status, found.append)
    keys = [f"default/{number}" for number in range(MAX_REJECTED + 500)]
    for _ in range(2):
        for key in keys:
            assert replica.upsert(BadObject(key, "1", "ports: expected a list")) is None
    assert len(status.rejected) == MAX_REJECTED
    assert status.bad_objects == len(found) == len(keys)
    replica.upsert(factory.service("0"))
    assert replica.upsert(factory.service(str(MAX_REJECTED))) is not None
    assert status.bad_objects == len(keys) - 2
    replica.delete(keys[MAX_REJECTED + 1])
    assert status.bad_objects == len(keys) - 3
    replica.finish_list({keys[1], keys[-1]})
    assert status.bad_objects == 2
    replica.finish_list(set())
    assert status.bad_objects == 0
