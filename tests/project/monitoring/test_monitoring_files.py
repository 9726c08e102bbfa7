"""Alerts, dashboard and scrape recipes are what Prometheus, Grafana and the operator understand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.project.deploy.rendering import chart, needs_helm, refusal
from tests.project.monitoring.queries import (
    DASHBOARD,
    MONITORING,
    ROOT,
    RULES,
    dashboard,
    grouping_labels,
    metric_names,
    panels,
    recorded,
    rules,
)

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: run scripts/packages"
)


def promtool(*arguments: str) -> None:
    done = subprocess.run(("promtool", *arguments), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_rules_are_valid_and_every_alert_fires_and_stays_silent_as_their_tests_say() -> None:
    promtool("check", "rules", str(MONITORING / "rules.yaml"))
    promtool("test", "rules", str(MONITORING / "rules.test.yaml"))


def test_every_alert_has_a_case_for_fire_and_one_for_silence() -> None:
    firing, silent = set(), set()
    for group in yaml.safe_load((MONITORING / "rules.test.yaml").read_text())["tests"]:
        instances = set(re.findall(r'instance="(\w+)"', str(group["input_series"])))
        for case in group["alert_rule_test"]:
            fired = {alert["exp_labels"].get("instance") for alert in case.get("exp_alerts", ())}
            if fired:
                firing.add(case["alertname"])
            if instances - fired:
                silent.add(case["alertname"])
    assert firing == silent == set(rules()) - recorded()


@needs_promtool
def test_every_query_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    recording = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(dashboard().values())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recording}]}))
    promtool("check", "rules", str(file))


@needs_promtool
def test_the_scrape_recipes_are_valid(tmp_path: Path) -> None:
    """But for service discovery of Kubernetes, which Debian builds its Prometheus without."""
    recipe = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    here, elsewhere = recipe["scrape_configs"]
    assert here["static_configs"][0]["targets"] == ["127.0.0.1:10249"]
    elsewhere.pop("kubernetes_sd_configs")
    shutil.copy(MONITORING / "rules.yaml", tmp_path)
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(recipe))
    promtool("check", "config", str(tmp_path / "prometheus.yaml"))


def test_panels_are_laid_out_without_overlap_and_use_the_chosen_data_source() -> None:
    taken: set[tuple[int, int]] = set()
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        for source in (panel, *panel["targets"]):
            assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_legends_show_only_labels_that_the_query_keeps() -> None:
    for panel in panels():
        for target in panel["targets"]:
            shown = set(target["legendFormat"].replace("{{", "\0").replace("}}", "\0").split("\0")[1::2])
            kept = grouping_labels(target["expr"]) or {"instance"}
            assert shown <= kept, panel["title"]


def test_the_operators_object_holds_the_same_rules() -> None:
    made = yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text())
    assert made["spec"] == RULES, "run scripts/prometheusrule"


def test_monitors_select_the_shipped_pods() -> None:
    (daemonset,) = yaml.safe_load_all((ROOT / "deploy/kustomize/daemonset.yaml").read_text())
    template = daemonset["spec"]["template"]
    service, service_monitor = yaml.safe_load_all((MONITORING / "servicemonitor.yaml").read_text())
    (pod_monitor,) = yaml.safe_load_all((MONITORING / "podmonitor.yaml").read_text())
    labels = template["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= labels
    assert pod_monitor["spec"]["selector"]["matchLabels"].items() <= labels
    assert service_monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert service_monitor["spec"]["endpoints"][0]["port"] == port["name"]
    kept = pod_monitor["spec"]["podMetricsEndpoints"][0]["relabelings"][0]
    assert [kept["regex"]] == [container["name"] for container in template["spec"]["containers"]]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('up{job="a"} == 0', set()),
        ('sum by (le, job) (rate(a_bucket{x="b_total"}[5m])) > 3', {"a_bucket"}),
        ("a unless on (job) b and time() - c > 120", {"a", "b", "c"}),
        ("histogram_quantile(0.99, sum(a:b) or topk(3, d))", {"a:b", "d"}),
    ],
)
def test_names_are_found_in_expressions(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


@needs_helm
def test_the_chart_brings_the_same_rules_and_dashboard_when_asked() -> None:
    made = chart(
        "monitoring.enabled=true", "monitoring.labels.release=x", "config.metricsBindAddress=0.0.0.0:10249"
    )
    assert made.of_kind("PrometheusRule")["spec"] == RULES
    (text,) = [d["data"]["pointsman.json"] for d in made.documents if "pointsman.json" in d.get("data", {})]
    assert json.loads(text) == DASHBOARD
    service, monitor = made.of_kind("Service"), made.of_kind("ServiceMonitor")
    pods = made.of_kind("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= pods.items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "pointsman"
    assert monitor["metadata"]["labels"] == {"release": "x"}


@needs_helm
def test_the_chart_refuses_to_monitor_a_port_on_loopback() -> None:
    assert "set config.metricsBindAddress" in refusal("monitoring.enabled=true")
