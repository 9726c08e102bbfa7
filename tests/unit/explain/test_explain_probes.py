"""What connections made from here add to an explanation, in text and in JSON."""

from __future__ import annotations

import msgspec
import pytest
from tests import factory
from tests.unit.explain.explaining import asked, codes, view_of

from pointsman.explain.probes import add_probes, find_places
from pointsman.explain.service_port import Explanation
from pointsman.explain.text import explanation_text
from pointsman.machine.reach import Attempt, Reached


def probed(reached: Reached) -> Explanation:
    explanation = asked(view_of(factory.service(), factory.endpoint_slice("10.244.1.5")), "web")
    return add_probes(explanation, dict.fromkeys(find_places(explanation), Attempt(reached)))


def test_connections_that_all_succeed_settle_the_verdict() -> None:
    explanation = probed(Reached.CONNECTED)
    assert explanation.is_healthy
    assert "all probes from this node connected" in explanation_text(explanation)


@pytest.mark.parametrize("reached", [Reached.REFUSED, Reached.SILENT, Reached.UNREACHABLE, Reached.BLOCKED])
def test_an_endpoint_that_does_not_answer_is_a_cause(reached: Reached) -> None:
    explanation = probed(reached)
    assert not explanation.is_healthy
    assert codes(explanation) == {f"Endpoint{reached.value.capitalize()}"}


def test_states_are_plain_words_in_json() -> None:
    (port,) = msgspec.to_builtins(probed(Reached.SILENT))["ports"]
    assert port["endpoints"][0]["probe"]["outcome"] == "silent"
    assert (port["kernel"]["state"], port["host"]["state"]) == ("not checked", "not checked")
