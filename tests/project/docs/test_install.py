"""What the documents tell people to install with: charts that render, kustomizations that build, files that exist."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from tests.project.deploy.rendering import Rendering, helm, kustomized, needs_helm
from tests.project.docs.shown import BLOCKS, ROOT, shown

INSTALL = ROOT / "docs/install.md"
HELM = [one for one in shown("helm") if one[1].startswith(("install ", "upgrade "))]
KUBECTL = [one for one in shown("kubectl") if " -k " in one[1] or "--patch-file" in one[1]]


def test_there_is_something_to_check() -> None:
    assert {"README.md", "install.md", "migration.md"} <= {name for name, _ in HELM}
    assert {"README.md", "install.md", "migration.md"} <= {name for name, _ in KUBECTL}


@needs_helm
@pytest.mark.parametrize(("document", "command"), HELM)
def test_a_shown_installation_renders_what_the_program_accepts(
    document: str, command: str, tmp_path: Path
) -> None:
    _, *arguments = shlex.split(command)
    assert "--namespace" in arguments
    done = helm("template", *[str(ROOT / word) if word.startswith("deploy/") else word for word in arguments])
    assert done.returncode == 0, done.stderr
    made = Rendering(yaml.safe_load_all(done.stdout))
    for container in (made.init, made.proxy):
        options = made.options(container, tmp_path)
        assert options.warnings == ()
    asked = [word.partition("=")[2] for word in arguments if word.startswith("apiServer.host=")]
    assert [host for host in asked if host not in options.master] == []


@pytest.mark.parametrize(("document", "command"), KUBECTL)
def test_a_shown_kubectl_command_names_files_that_work(document: str, command: str) -> None:
    words = shlex.split(command)
    if "-k" in words:
        directory = words[words.index("-k") + 1]
        assert (ROOT / directory / "kustomization.yaml").is_file()
        if "overlays" in directory:
            assert kustomized(directory.removeprefix("deploy/")).proxy["args"][0] == "run"
    else:
        patch = yaml.safe_load((ROOT / words[words.index("--patch-file") + 1]).read_text())
        assert patch["spec"]["template"]["spec"]["affinity"]


def test_the_line_to_edit_is_in_the_overlay() -> None:
    (edit,) = [
        line
        for _, block in BLOCKS.findall(INSTALL.read_text())
        for line in block.splitlines()
        if "sed -i" in line
    ]
    _, _, expression, file = shlex.split(edit)
    assert expression.split("/")[1] in (ROOT / file).read_text()


def test_the_configuration_for_kind_switches_kube_proxy_off() -> None:
    (block,) = [block for _, block in BLOCKS.findall(INSTALL.read_text()) if "kind.yaml" in block]
    document = yaml.safe_load(block.partition("<<'END'\n")[2].partition("END\n")[0])
    assert document["networking"] == {"kubeProxyMode": "none"}
