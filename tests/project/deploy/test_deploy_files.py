"""The deployment files agree with the program: flags exist, configuration validates, permissions suffice."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.process.node_space import shipped_environment

from pointsman.config.command_line import parse_run
from pointsman.config.load import load
from pointsman.config.validate import validation_problems
from pointsman.kube.resources import ENDPOINT_SLICES, SERVICE_CIDRS, SERVICES, own_node

DEPLOY = Path(__file__).parents[3] / "deploy"


def documents(path: Path) -> list[dict[str, Any]]:
    text = re.sub(r"^\s*{{-?.*}}\s*$", "", path.read_text(), flags=re.MULTILINE)
    text = re.sub(r"{{[^}]*}}", "x", text)
    return [document for document in yaml.safe_load_all(text) if document]


DAEMONSETS = ["kustomize/daemonset.yaml", "helm/pointsman/templates/daemonset.yaml"]


def pod(path: str) -> dict[str, Any]:
    (found,) = documents(DEPLOY / path)
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("which", ["initContainers", "containers"])
def test_every_argument_is_accepted(which: str, tmp_path: Path) -> None:
    (container,) = pod(DAEMONSETS[0])[which]
    config = tmp_path / "config.yaml"
    config.write_bytes((DEPLOY / "kustomize/config.yaml").read_bytes())
    command, *flags = [argument.replace("$(NODE_NAME)", "n1") for argument in container["args"]]
    assert command == "run"
    options = parse_run(
        [flag.replace("/etc/pointsman/config.yaml", str(config)) for flag in flags], program="pointsman"
    )
    assert options.warnings == ()
    assert options.config.mode == "nftables"


def test_the_shipped_configuration_is_valid() -> None:
    loaded = load((DEPLOY / "kustomize/config.yaml").read_bytes())
    assert loaded.problems == ()
    assert validation_problems(loaded.config) == []


@pytest.mark.parametrize("path", ["kustomize/rbac.yaml", "helm/pointsman/templates/rbac.yaml"])
def test_the_role_allows_exactly_what_is_listed_and_watched(path: str) -> None:
    (role,) = [d for d in documents(DEPLOY / path) if d["kind"] == "ClusterRole"]
    granted = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    needed: dict[tuple[str, str], set[str]] = {("events.k8s.io", "events"): {"create", "patch"}}
    for resource in (SERVICES, ENDPOINT_SLICES, SERVICE_CIDRS, own_node("n1")):
        parts = resource.path.strip("/").split("/")
        needed["" if parts[0] == "api" else parts[1], parts[-1]] = {"list", "watch"}
    assert granted == needed


@pytest.mark.parametrize("path", DAEMONSETS)
def test_no_container_is_privileged_and_each_has_the_capabilities_it_needs(path: str) -> None:
    spec = pod(path)
    (before,), (main,) = spec["initContainers"], spec["containers"]
    for container, needed in ((before, ["NET_ADMIN"]), (main, ["NET_ADMIN", "NET_RAW"])):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": needed},
        }


@pytest.mark.parametrize("path", DAEMONSETS)
def test_pods_run_under_the_runtimes_seccomp_profile(path: str) -> None:
    assert pod(path)["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("path", DAEMONSETS)
def test_only_the_init_container_sees_the_hosts_settings(path: str) -> None:
    spec = pod(path)
    host = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
    (before,), (main,) = spec["initContainers"], spec["containers"]
    mounted = {host[mount["name"]]: mount["mountPath"] for mount in before["volumeMounts"]}
    assert mounted["/proc/sys"] == "/host/proc/sys"
    assert mounted["/sys/module"] == "/host/sys/module"
    assert not {"/proc/sys", "/sys/module"} & {host[mount["name"]] for mount in main["volumeMounts"]}
    assert "--host-root=/host" in before["args"]


def test_memory_is_limited() -> None:
    for resources in (
        *(container["resources"] for container in pod(DAEMONSETS[0])["containers"]),
        yaml.safe_load((DEPLOY / "helm/pointsman/values.yaml").read_text())["resources"],
    ):
        assert resources["limits"]["memory"] == "512Mi"


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

    chart = yaml.safe_load((DEPLOY / "helm/pointsman/Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__
    assert f"pointsman:{__version__}" in (DEPLOY / "kustomize/daemonset.yaml").read_text()


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
    from pointsman.config.flag_table import BY_NAME

    assert set(flags) <= set(BY_NAME)
