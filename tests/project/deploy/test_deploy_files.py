"""The deployment files agree with the program: flags exist, configuration validates, permissions suffice."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.harness.node import shipped_environment
from tests.project.deploy.rendering import (
    DEPLOY,
    KUSTOMIZATIONS,
    POD_NETWORK,
    Rendering,
    chart,
    kustomized,
    needs_helm,
)

from pointsman.config.load import load
from pointsman.config.validate import find_problems
from pointsman.kube.resources import ENDPOINT_SLICES, SERVICE_CIDRS, SERVICES, select_own_node

every_way = pytest.mark.parametrize(
    "rendered",
    [
        pytest.param(chart, id="helm", marks=needs_helm),
        pytest.param(lambda: chart("nodeStatus.condition=true"), id="helm-condition", marks=needs_helm),
        pytest.param(lambda: chart("nodeStatus.removeStartupTaint=true"), id="helm-taint", marks=needs_helm),
        *(pytest.param(lambda name=name: kustomized(name), id=name) for name in KUSTOMIZATIONS),
    ],
)
Rendered = Callable[[], Rendering]


@every_way
def test_every_argument_is_accepted(rendered: Rendered, tmp_path: Path) -> None:
    made = rendered()
    for container in (made.init, made.proxy):
        options = made.options(container, tmp_path)
        assert options.warnings == ()
        assert options.config.mode == "nftables"
    assert made.options(made.init, tmp_path).once.init_only


@every_way
def test_the_shipped_configuration_is_valid(rendered: Rendered) -> None:
    loaded = load(rendered().config)
    assert loaded.problems == ()
    assert loaded.warnings == ()
    assert find_problems(loaded.config) == []


@every_way
def test_the_role_allows_exactly_what_is_listed_and_watched(rendered: Rendered) -> None:
    made = rendered()
    granted = made.permissions
    needed: dict[tuple[str, str], set[str]] = {("events.k8s.io", "events"): {"create", "patch"}}
    for resource in (SERVICES, ENDPOINT_SLICES, SERVICE_CIDRS, select_own_node("n1")):
        parts = resource.path.strip("/").split("/")
        needed["" if parts[0] == "api" else parts[1], parts[-1]] = {"list", "watch"}
    if "--node-condition" in made.proxy["args"]:
        needed["", "nodes/status"] = {"patch"}
    if "--remove-startup-taint" in made.proxy["args"]:
        needed["", "nodes"] |= {"patch"}
    assert granted == needed


@every_way
def test_the_role_is_given_to_the_pods(rendered: Rendered) -> None:
    made = rendered()
    account, binding = made.of_kind("ServiceAccount")["metadata"], made.of_kind("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == made.of_kind("ClusterRole")["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]
    assert made.pod["serviceAccountName"] == account["name"]
    assert made.of_kind("DaemonSet")["metadata"]["namespace"] == account["namespace"] == "kube-system"


@every_way
def test_no_container_is_privileged_and_each_has_the_capabilities_it_needs(rendered: Rendered) -> None:
    made = rendered()
    for container, needed in ((made.init, ["NET_ADMIN"]), (made.proxy, ["NET_ADMIN", "NET_RAW"])):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": needed},
        }


@every_way
def test_pods_run_under_the_runtimes_seccomp_profile(rendered: Rendered) -> None:
    assert rendered().pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


@every_way
def test_the_kubelet_spares_the_pods_when_memory_runs_out(rendered: Rendered) -> None:
    """Without CAP_SYS_RESOURCE nobody else can: see apply_oom_score."""
    assert rendered().pod["priorityClassName"] == "system-node-critical"


@every_way
def test_only_the_init_container_sees_the_hosts_settings(rendered: Rendered) -> None:
    made = rendered()
    host = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in made.pod["volumes"]}
    mounted = {host[mount["name"]]: mount["mountPath"] for mount in made.init["volumeMounts"]}
    assert mounted["/proc/sys"] == "/host/proc/sys"
    assert mounted["/sys/module"] == "/host/sys/module"
    assert not {"/proc/sys", "/sys/module"} & {host[mount["name"]] for mount in made.proxy["volumeMounts"]}
    assert "--host-root=/host" in made.init["args"]


@every_way
def test_every_container_that_runs_iptables_has_the_lock_of_the_host(rendered: Rendered) -> None:
    """iptables-legacy locks it even to look whether a table is there, as the check of the mode does before anything else."""
    made = rendered()
    for container in (made.init, made.proxy):
        assert {"name": "xtables-lock", "mountPath": "/run/xtables.lock"} in container["volumeMounts"]
    (volume,) = (one for one in made.pod["volumes"] if one["name"] == "xtables-lock")
    assert volume["hostPath"] == {"path": "/run/xtables.lock", "type": "FileOrCreate"}


@every_way
def test_memory_is_limited(rendered: Rendered) -> None:
    for container in (rendered().init, rendered().proxy):
        assert container["resources"]["limits"]["memory"] == "512Mi"


@every_way
def test_the_kubelet_asks_the_health_server(rendered: Rendered) -> None:
    made = rendered()
    address = load(made.config).config.healthz_bind_address
    probes = [made.proxy[f"{name}Probe"] for name in ("liveness", "readiness")]
    assert [probe["timeoutSeconds"] for probe in probes] == [5, 5], "a second is short on a busy node"
    asked = [probe["httpGet"] for probe in probes]
    assert [probe["path"] for probe in asked] == ["/livez", "/readyz"]
    for probe in asked:
        assert (probe["host"], address) == ("127.0.0.1", f"0.0.0.0:{probe['port']}")


@needs_helm
def test_kustomize_and_helm_install_the_same_pod() -> None:
    """Two spellings of one thing: what helm adds are labels and a policy for pulling."""

    def compared(made: Rendering) -> dict[str, object]:
        pod = copy.deepcopy(made.pod)
        for container in (*pod["initContainers"], *pod["containers"]):
            container.pop("imagePullPolicy", None)
        return pod

    assert compared(chart()) == compared(kustomized("kustomize"))
    assert load(chart().config.replace(POD_NETWORK.encode(), b'""')) == load(kustomized("kustomize").config)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("directory", KUSTOMIZATIONS)
def test_kubectl_builds_what_these_tests_look_at(directory: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / directory)], capture_output=True, text=True, check=True
    )

    def by_name(documents: list[dict[str, object]]) -> dict[str, dict[str, object]]:
        return {str(document["kind"]): document for document in documents}

    assert by_name(list(yaml.safe_load_all(done.stdout))) == by_name(kustomized(directory).documents)


def test_the_overlay_for_a_cluster_without_a_proxy_names_the_api_server(tmp_path: Path) -> None:
    made = kustomized("overlays/first-proxy")
    assert made.options(made.proxy, tmp_path).master == "https://192.0.2.10:6443"


def test_on_a_labelled_node_runs_one_of_the_two_and_elsewhere_the_other() -> None:
    selector = kustomized("overlays/node-by-node").pod["nodeSelector"]
    (label,) = selector.items() - kustomized("kustomize").pod["nodeSelector"].items()
    patch = yaml.safe_load((DEPLOY / "overlays/node-by-node/kube-proxy.yaml").read_text())
    affinity = patch["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": label[0], "operator": "NotIn", "values": [label[1]]}]}


def test_the_image_starts_from_pinned_bytes() -> None:
    containerfile = (DEPLOY / "image/Containerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", containerfile, flags=re.MULTILINE)
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.13-slim@sha256:[0-9a-f]{64}", bases[0])
    installs = re.findall(r"pip install (.*?)(?: \\)?$", containerfile, flags=re.MULTILINE)
    assert installs
    for install in installs:
        assert "--require-hashes" in install or "--no-deps" in install


def test_the_chart_and_the_package_have_one_version() -> None:
    from pointsman import __version__

    declared = yaml.safe_load((DEPLOY / "helm/pointsman/Chart.yaml").read_text())
    assert declared["appVersion"] == __version__
    assert declared["version"] == __version__.replace("rc", "-rc"), "a chart has a semantic version"
    assert kustomized("kustomize").proxy["image"] == f"pointsman:{__version__}"


def test_image_and_unit_run_the_program_alike() -> None:
    """The process tests take their environment from the unit, so that both are tested."""
    image = re.search(r"^ENV (PATH=.*)$", (DEPLOY / "image/Containerfile").read_text(), re.MULTILINE)
    unit = re.findall(
        r"^Environment=(\S+)$", (DEPLOY / "systemd/pointsman.service").read_text(), re.MULTILINE
    )
    assert image is not None
    assert dict([setting.split("=") for setting in unit]) == shipped_environment()
    assert unit == [setting for setting in image[1].split() if setting.startswith("PYTHONOPTIMIZE=")]


def test_the_unit_starts_an_existing_command() -> None:
    unit = (DEPLOY / "systemd/pointsman.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S+/pointsman run (.*)$", unit, flags=re.MULTILINE)
    flags = re.findall(r"--([a-z-]+)", command)
    from pointsman.config.flags import BY_NAME

    assert set(flags) <= set(BY_NAME)
