"""A configuration file's bytes in, a configuration with warnings out, or one error that lists every problem; and back.

Pure: reading the file is the caller's business.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import yaml

from pointsman.config.defaults import with_file_defaults
from pointsman.config.document import Findings, block_from_plain, plain_from_block, shown
from pointsman.config.gates import find_gate_warnings
from pointsman.config.types import API_VERSION, KIND, KubeProxyConfiguration
from pointsman.errors import ConfigError
from pointsman.yamltext import OnDuplicate, YamlError, load_documents


class LoadedConfig(msgspec.Struct, frozen=True):
    """What a file says, with defaults filled in but not yet validated, and what was odd about it."""

    config: KubeProxyConfiguration
    warnings: tuple[str, ...]
    problems: tuple[str, ...]
    """Fields that could not be read; the rest of `config` is good, so validation can go on and report all at once."""


def config_from_bytes(data: bytes) -> KubeProxyConfiguration:
    """The defaulted configuration, ConfigError when a field cannot be read. Warnings are dropped."""
    loaded = load(data)
    if loaded.problems:
        raise ConfigError(loaded.problems)
    return loaded.config


def load(data: bytes) -> LoadedConfig:
    """Read YAML or JSON; ConfigError when it is not a KubeProxyConfiguration at all."""
    findings = Findings()
    plain = _plain_document(data, findings)
    if not isinstance(plain, dict):
        raise ConfigError([f"the configuration must be an object of kind {KIND}, not {shown(plain)}"])
    body = dict(plain)
    wrong = [
        f"{name}: Invalid value: {shown(found)}: must be {wanted}"
        for name, found, wanted in (
            ("apiVersion", body.pop("apiVersion", ""), API_VERSION),
            ("kind", body.pop("kind", ""), KIND),
        )
        if found != wanted
    ]
    if wrong:
        raise ConfigError(wrong)
    config = with_file_defaults(block_from_plain(KubeProxyConfiguration, body, KIND, findings))
    findings.warnings += find_gate_warnings(config.feature_gates)
    return LoadedConfig(config, tuple(findings.warnings), tuple(findings.problems))


def config_to_json(config: KubeProxyConfiguration) -> bytes:
    """The external v1alpha1 object, as shown at /configz."""
    return msgspec.json.encode(_external(config))


def config_to_yaml(config: KubeProxyConfiguration) -> str:
    """The external v1alpha1 object as a file that reads back to the same configuration."""
    return yaml.safe_dump(_external(config), sort_keys=False, width=1000)


def _external(config: KubeProxyConfiguration) -> dict[str, object]:
    return {"apiVersion": API_VERSION, "kind": KIND, **plain_from_block(config)}


def _plain_document(data: bytes, findings: Findings) -> Any:
    twice: dict[str, None] = {}

    def on_duplicate(key: str) -> None:
        twice[key] = None

    try:
        text = data.decode()
        found = _json_document(text, on_duplicate) if text.lstrip().startswith("{") else None
        documents = load_documents(data, on_duplicate) if found is None else [found]
    except YamlError as broken:
        raise ConfigError([f"the configuration is not valid YAML: {broken}"]) from broken
    except (ValueError, RecursionError) as broken:
        raise ConfigError([f"the configuration cannot be read: {_one_line(broken)}"]) from broken
    findings.warnings += [f'field "{key}" is given more than once; the last value is used' for key in twice]
    if len(documents) > 1:
        findings.warnings.append("the file holds more than one YAML document; only the first is used")
    return documents[0] if documents else None


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__


def _json_document(text: str, on_duplicate: OnDuplicate) -> Any:
    """The value of a JSON text; None when it is something else that starts with a brace."""

    def noticed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                on_duplicate(key)
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=noticed)
    except json.JSONDecodeError:
        return None
