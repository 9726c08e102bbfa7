"""What connections made from here add to an explanation, in text and in JSON."""

from __future__ import annotations

import msgspec
import pytest
from tests import factory
from tests.unit.explain.explaining import asked, codes, view_of

from pointsman.explain.probes import add_probes, find_places
from pointsman.explain.service_port import Explanation
from pointsman.explain.text import render_explanation
from pointsman.machine.reach import Attempt, Reached
from pointsman.model.decision import State


def probed(reached: Reached) -> Explanation:
    explanation = asked(view_of(factory.service(), factory.endpoint_slice("10.244.1.5")), "web")
    return add_probes(explanation, dict.fromkeys(find_places(explanation), Attempt(reached)))


def test_connections_that_all_succeed_settle_the_verdict() -> None:
    explanation = probed(Reached.CONNECTED)
    assert explanation.is_healthy
    assert "all probes from this node connected" in render_explanation(explanation)


@pytest.mark.parametrize("reached", [Reached.REFUSED, Reached.SILENT, Reached.UNREACHABLE, Reached.BLOCKED])
def test_an_endpoint_that_does_not_answer_is_a_cause(reached: Reached) -> None:
    explanation = probed(reached)
    assert not explanation.is_healthy
    assert codes(explanation) == {f"Endpoint{reached.value.capitalize()}"}
    text = render_explanation(explanation)
    assert "sent to 1 endpoint, which failed the probe" in text
    assert "delivered" not in text
    assert explanation.ports[0].state is State.DOWN


def test_an_endpoint_of_two_that_fails_leaves_the_service_partial() -> None:
    explanation = asked(view_of(factory.service(), factory.endpoint_slice("10.244.1.5", "10.244.1.6")), "web")
    attempts = {place: Attempt(Reached.CONNECTED) for place in find_places(explanation)}
    attempts[find_places(explanation)[-1]] = Attempt(Reached.REFUSED)
    probed = add_probes(explanation, attempts)
    assert probed.ports[0].state is State.PARTIAL
    assert "sent to one of 2 endpoints, of which 1 failed the probe" in render_explanation(probed)


def test_without_an_endpoint_the_result_says_that_no_client_is_answered() -> None:
    text = render_explanation(asked(view_of(factory.service(), factory.endpoint_slice()), "web"))
    assert "Result: all connections fail: no usable endpoint; see above." in text


def test_states_are_plain_words_in_json() -> None:
    (port,) = msgspec.to_builtins(probed(Reached.SILENT))["ports"]
    assert port["endpoints"][0]["probe"]["outcome"] == "silent"
    assert (port["kernel"]["state"], port["host"]["state"]) == ("not checked", "not checked")
