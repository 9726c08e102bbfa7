"""The Helm chart: what its values do, and that it refuses those that cannot be meant."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from scripts.chart_schema import FILE, TABLE, render_schema, render_table
from tests.project.deploy.rendering import CHART, POD_NETWORK, chart, helm, needs_helm, refusal

from pointsman.config.load import load
from pointsman.node.node_status import STARTUP_TAINT

pytestmark = needs_helm


def test_the_schema_is_made_from_the_programs_own_types() -> None:
    assert FILE.read_text() == render_schema(), "run: python scripts/chart_schema.py"


def test_the_table_of_values_is_up_to_date() -> None:
    assert TABLE.read_text() == render_table(), "run: python scripts/chart_schema.py"


def test_every_value_is_described() -> None:
    """A value the schema knows and values.yaml does not show would be a secret."""
    shown = yaml.safe_load((CHART / "values.yaml").read_text())
    described = set(yaml.safe_load(FILE.read_text())["properties"]) - {"global"}
    assert set(shown) == described


def test_the_chart_passes_lint() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("image.tga=1", "tga"),
        ("mode=nftable", "mode"),
        ("clusterCIDR=nonsense", "clusterCIDR"),
        ("config.mode=nftable", "config.mode"),
        ("config.clusterCIDR=nonsense", "config.clusterCIDR"),
        ("config.clusterCIDr=10.0.0.0/8", "clusterCIDr"),
        ("config.conntrack.maxPerCores=0", "maxPerCores"),
        ("config.conntrack.maxPerCore=many", "maxPerCore"),
        ("config.nodePortAddresses={everywhere}", "nodePortAddresses"),
        ("config.detectLocalMode=Cluster", "detectLocalMode"),
        ("apiServer.port=70000", "apiServer.port"),
        ("apiServer.host=https://192.0.2.10", "apiServer.host"),
        ("extraArgs={-v=2}", "extraArgs"),
        ("kubeconfig.hostPath=relative/path", "kubeconfig.hostPath"),
        ("livenessProbe.period=3", "period"),
        ("maxUnavailable=some", "maxUnavailable"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(setting: str, named: str) -> None:
    assert named in refusal(setting)


def test_the_pod_network_must_be_given_unless_something_else_distinguishes_pods() -> None:
    assert "config.clusterCIDR: give the pod network" in refusal()
    assert "config.clusterCIDR: give the pod network" in refusal("config.detectLocalMode=ClusterCIDR")
    made = chart("config.clusterCIDR=", "config.detectLocalMode=NodeCIDR")
    assert load(made.config).config.detect_local_mode == "NodeCIDR"


@pytest.mark.parametrize("mode", ["", "nftables", "iptables", "ipvs"])
def test_every_mode_can_be_chosen(mode: str) -> None:
    assert load(chart(f"config.mode={mode}").config).config.mode == mode


@pytest.mark.parametrize(
    ("host", "master"),
    [
        ("192.0.2.10", "https://192.0.2.10:6443"),
        ("k8s.example.org", "https://k8s.example.org:6443"),
        ("2001:db8::10", "https://[2001:db8::10]:6443"),
    ],
)
def test_the_api_servers_own_address_becomes_a_flag(host: str, master: str, tmp_path: Path) -> None:
    made = chart(f"apiServer.host={host}")
    options = made.options(made.proxy, tmp_path)
    assert options.master == master
    assert options.warnings == ()
    plain = chart()
    assert plain.options(plain.proxy, tmp_path).master == ""


def test_a_kubeconfig_comes_from_a_secret_or_from_the_node() -> None:
    found = {}
    for setting in (
        "kubeconfig.secret=pointsman-kubeconfig",
        "kubeconfig.hostPath=/etc/kubernetes/proxy.conf",
    ):
        made = chart(setting, "config.clientConnection.qps=50")
        connection = load(made.config).config.client_connection
        assert connection.qps == 50
        (mount,) = [one for one in made.proxy["volumeMounts"] if one["name"] == "kubeconfig"]
        (volume,) = [one for one in made.pod["volumes"] if one["name"] == "kubeconfig"]
        assert mount["readOnly"] is True
        assert connection.kubeconfig.startswith(mount["mountPath"])
        assert "kubeconfig" not in [one["name"] for one in made.init["volumeMounts"]]
        found[connection.kubeconfig] = volume
    assert found == {
        "/etc/pointsman-kubeconfig/kubeconfig": {
            "name": "kubeconfig",
            "secret": {"secretName": "pointsman-kubeconfig"},
        },
        "/etc/pointsman-kubeconfig/proxy.conf": {
            "name": "kubeconfig",
            "hostPath": {"path": "/etc/kubernetes/proxy.conf", "type": "File"},
        },
    }
    assert "not both" in refusal(
        f"config.clusterCIDR={POD_NETWORK}", "kubeconfig.secret=a", "kubeconfig.hostPath=/b"
    )


@pytest.mark.parametrize(
    ("address", "probed"),
    [
        ("0.0.0.0:10300", ("127.0.0.1", 10300)),
        ("[::]:10256", ("127.0.0.1", 10256)),
        ("[2001:db8::1]:10256", ("2001:db8::1", 10256)),
        ("192.0.2.1:10256", ("192.0.2.1", 10256)),
    ],
)
def test_probes_follow_the_health_servers_address(address: str, probed: tuple[str, int]) -> None:
    made = chart(f"config.healthzBindAddress={address}")
    for probe in (made.proxy["livenessProbe"], made.proxy["readinessProbe"]):
        assert (probe["httpGet"]["host"], probe["httpGet"]["port"]) == probed


def test_without_a_health_server_nothing_is_probed() -> None:
    assert not {"livenessProbe", "readinessProbe"} & chart("config.healthzBindAddress=").proxy.keys()


def test_secured_ports_bring_flags_rights_probes_and_a_monitor_that_sends_a_token(tmp_path: Path) -> None:
    secured = "secureServing.metrics=remote,secureServing.health=true,secureServing.secret=certificate"
    made = chart(secured)
    monitored = chart(secured, "monitoring.enabled=true,config.metricsBindAddress=0.0.0.0:10249")
    serving = made.options(made.proxy, tmp_path).serving
    assert (serving.metrics, serving.health) == ("remote", True)
    mounts = {mount["name"]: mount["mountPath"] for mount in made.proxy["volumeMounts"]}
    assert serving.certificate == Path(mounts["tls"]) / "tls.crt"
    assert serving.key == Path(mounts["tls"]) / "tls.key"
    assert {"name": "tls", "secret": {"secretName": "certificate"}} in made.pod["volumes"]
    assert made.proxy["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    (endpoint,) = monitored.of_kind("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert "bearerTokenFile" in endpoint
    rights = {
        resource: rule["verbs"]
        for rule in made.of_kind("ClusterRole")["rules"]
        for resource in rule["resources"]
    }
    assert rights["tokenreviews"] == rights["subjectaccessreviews"] == ["create"]
    plain = chart()
    assert "reviews" not in str(plain.of_kind("ClusterRole"))
    assert "scheme" not in plain.proxy["livenessProbe"]["httpGet"]


def test_what_operators_add_arrives_in_the_pod(tmp_path: Path) -> None:
    made = chart(
        "env[0].name=HTTPS_PROXY,env[0].value=http://192.0.2.1:3128",
        "podAnnotations.team=net",
        "podLabels.tier=node",
        "priorityClassName=mine",
        "imagePullSecrets[0].name=registry",
        "affinity.nodeAffinity.marker=x",
        "nodeSelector.proxy=pointsman",
        "tolerations[0].key=only",
        "extraVolumes[0].name=more",
        "extraVolumeMounts[0].name=more,extraVolumeMounts[0].mountPath=/more",
        "extraArgs={--wait-for-instance}",
        "serviceMetrics.enabled=true",
        "serviceMetrics.limit=1000000",
        "maxUnavailable=3",
        f"image.digest=sha256:{'0' * 64}",
    )
    template = made.of_kind("DaemonSet")["spec"]["template"]
    for container in (made.init, made.proxy):
        assert {"name": "HTTPS_PROXY", "value": "http://192.0.2.1:3128"} in container["env"]
        assert container["env"][0]["name"] == "NODE_NAME"
        assert container["image"] == f"pointsman@sha256:{'0' * 64}"
    assert template["metadata"]["annotations"] == {"team": "net"}
    assert template["metadata"]["labels"]["tier"] == "node"
    assert made.pod["priorityClassName"] == "mine"
    assert made.pod["imagePullSecrets"] == [{"name": "registry"}]
    assert made.pod["affinity"] == {"nodeAffinity": {"marker": "x"}}
    assert made.pod["nodeSelector"]["proxy"] == "pointsman"
    assert made.pod["tolerations"] == [{"key": "only"}]
    assert made.pod["volumes"][-1] == {"name": "more"}
    assert made.proxy["volumeMounts"][-1] == {"name": "more", "mountPath": "/more"}
    options = made.options(made.proxy, tmp_path)
    assert (options.wait_for_instance, options.service_metrics_limit) == (True, 1_000_000)
    assert made.of_kind("DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 3}


def test_tighter_profiles_of_the_nodes_can_be_chosen() -> None:
    made = chart(
        "seccompProfile.type=Localhost,seccompProfile.localhostProfile=pointsman.json",
        "appArmorProfile.type=Localhost,appArmorProfile.localhostProfile=pointsman",
    )
    assert made.pod["securityContext"] == {
        "seccompProfile": {"type": "Localhost", "localhostProfile": "pointsman.json"},
        "appArmorProfile": {"type": "Localhost", "localhostProfile": "pointsman"},
    }


def test_without_the_init_container_nobody_gets_the_hosts_settings() -> None:
    made = chart("initSysctls=false")
    assert "initContainers" not in made.pod
    assert not {"proc-sys", "module-parameters"} & {volume["name"] for volume in made.pod["volumes"]}


def test_large_numbers_of_the_configuration_stay_numbers(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    conntrack_size = "{min: 10485760, maxPerCore: 1000000}"
    values.write_text(f"config: {{clusterCIDR: {POD_NETWORK}, conntrack: {conntrack_size}}}\n")
    done = helm("template", "pointsman", str(CHART), "--values", str(values))
    (config,) = [
        one["data"]["config.yaml"]
        for one in yaml.safe_load_all(done.stdout)
        if one and one["kind"] == "ConfigMap"
    ]
    conntrack = load(config.encode()).config.conntrack
    assert (conntrack.min, conntrack.max_per_core) == (10_485_760, 1_000_000)


def test_the_notes_say_what_to_type_next(tmp_path: Path) -> None:
    """`helm template` leaves notes out, so here they are a value in an object."""
    copied = shutil.copytree(CHART, tmp_path / "pointsman")
    (copied / "templates/NOTES.txt").rename(copied / "NOTES.txt")
    wrapped = 'kind: Notes\nnotes: |\n  {{- tpl (.Files.Get "NOTES.txt") . | nindent 2 }}\n'
    (copied / "templates/notes.yaml").write_text(wrapped)

    def notes(*flags: str) -> str:
        pods = ("--set", f"config.clusterCIDR={POD_NETWORK}")
        done = helm("template", "proxy", str(copied), "--namespace", "net", *pods, *flags)
        assert done.returncode == 0, done.stderr
        return str(next(one["notes"] for one in yaml.safe_load_all(done.stdout) if one["kind"] == "Notes"))

    plain = notes()
    assert "kubectl --namespace net rollout status daemonset proxy" in plain
    assert re.search(r"exec daemonset/proxy --container pointsman -- pointsman status", plain)
    assert "set apiServer.host" in plain
    assert "asked at 192.0.2.10:6443." in notes("--set", "apiServer.host=192.0.2.10")
    assert "as the kubeconfig says" in notes("--set", "kubeconfig.secret=s")


def test_the_example_of_the_node_status_removes_the_taint_with_which_the_kubelet_registers() -> None:
    section = (CHART.parents[2] / "docs/operations.md").read_text().partition("**On the Node.**")[2]
    values, kubelet = (
        yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[:2]
    )
    settings = [f"nodeStatus.{name}={str(value).lower()}" for name, value in values["nodeStatus"].items()]
    arguments = chart(*settings).proxy["args"]
    assert {"--node-condition", "--remove-startup-taint"} <= set(arguments)
    assert [taint["key"] for taint in kubelet["registerWithTaints"]] == [STARTUP_TAINT]
