"""The state in a list is the state in an explanation."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.app.offline import plan_objects
from pointsman.config.defaults import with_file_defaults, with_mode
from pointsman.config.mode_table import MODES
from pointsman.config.types import KubeProxyConfiguration
from pointsman.explain.answer import explain
from pointsman.explain.packets import compute_state
from pointsman.explain.target import parse_target
from pointsman.model.decision import State
from pointsman.report.labels import ServiceLabels
from pointsman.report.service_list import ListQuery, build_list
from pointsman.source.manifest_files import load_objects

RECORDED = Path(__file__).parents[2] / "golden" / "data"
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "shop"
SOURCES = (
    *(RECORDED / "everything" / "objects.json", RECORDED / "both-local-without-local" / "objects.json"),
    *(RECORDED / "lb-source-ranges" / "objects.json", EXAMPLES),
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_the_list_and_the_explanation_agree(mode: str, source: Path) -> None:
    objects, _ = load_objects(source)
    config = with_mode(
        with_file_defaults(
            KubeProxyConfiguration(
                hostname_override="node-a" if source is EXAMPLES else "n1", cluster_cidr="10.244.0.0/16"
            )
        ),
        mode,
    )
    view = plan_objects(objects, config).view
    seen: set[State] = set()
    for family in view.families:
        for name, plan in family.plans.items():
            state = compute_state(plan, family, view.mode)
            explanation = explain(view, parse_target(f"{name.key}:{name.port or plan.port.port}"))
            states = {
                port.state
                for port in explanation.ports
                if (port.family, port.port, port.protocol)
                == (family.family.value, name.port, name.protocol.name)
            }
            assert states == {state}, name
            seen.add(state)
    listed = build_list(view, ServiceLabels(), ListQuery()).ports
    assert {port.state for port in listed} >= seen
    assert len(listed) == sum(len(family.states) for family in view.families)
