"""The recording backend keeps the contract that tests of others rely on."""

from __future__ import annotations

import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.fake.recording import RecordingBackend

from pointsman.backends.contract import SyncRequest
from pointsman.errors import KernelError

WEB = plan(service_port("web"), endpoint())
API = plan(service_port("api", cluster_ip="10.96.0.11"), endpoint())
BOTH = {WEB.name: WEB, API.name: API}


def test_a_full_sync_leads_to_the_plans_and_a_partial_one_to_the_change() -> None:
    backend = RecordingBackend()
    backend.sync(SyncRequest(context(), {WEB.name: WEB}, {}, full=True))
    backend.sync(SyncRequest(context(), BOTH, {API.name: API}))
    assert backend.programmed == BOTH
    backend.sync(SyncRequest(context(), {API.name: API}, {WEB.name: None}))
    assert backend.programmed == {API.name: API}
    assert [full for full, _ in backend.requests] == [True, False, False]


def test_a_failed_sync_changes_nothing() -> None:
    backend = RecordingBackend()
    backend.sync(SyncRequest(context(), {WEB.name: WEB}, {}, full=True))
    backend.failures = [KernelError("no")]
    with pytest.raises(KernelError):
        backend.sync(SyncRequest(context(), BOTH, {API.name: API}))
    assert backend.programmed == {WEB.name: WEB}
    assert [
        difference.owner
        for difference in backend.prepare_comparison(SyncRequest(context(), BOTH, {})).differences()
    ] == [API.name]


def test_what_is_refused_is_reported_and_left_out() -> None:
    backend = RecordingBackend()
    backend.refuse = {API.name: "EINVAL"}
    report = backend.sync(SyncRequest(context(), BOTH, {}, full=True))
    assert report.rejected == {API.name: "EINVAL"}
    assert backend.programmed == {WEB.name: WEB}
