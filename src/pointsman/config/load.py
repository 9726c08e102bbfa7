"""Parsing of a configuration file into a configuration with warnings, or one error that lists every problem; and back.

Pure: the caller reads the file.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import yaml

from pointsman.config.defaults import with_file_defaults
from pointsman.config.document import ProblemList, block_from_plain, format_value, plain_from_block
from pointsman.config.gates import find_gate_warnings
from pointsman.config.types import API_VERSION, KIND, KubeProxyConfiguration
from pointsman.errors import ConfigError
from pointsman.yamltext import OnDuplicate, YamlError, load_documents


class LoadedConfig(msgspec.Struct, frozen=True):
    """The contents of a file, with defaults filled in but not yet validated, with its warnings."""

    config: KubeProxyConfiguration
    warnings: tuple[str, ...]
    problems: tuple[str, ...]
    """Fields that could not be read; the rest of `config` is good, so that validation can report all problems at once."""


def load(data: bytes) -> LoadedConfig:
    """Read YAML or JSON; ConfigError when it is not a KubeProxyConfiguration at all."""
    problems = ProblemList()
    plain = _parse_document(data, problems)
    if not isinstance(plain, dict):
        raise ConfigError([f"the configuration must be an object of kind {KIND}, not {format_value(plain)}"])
    body = dict(plain)
    wrong = [
        f"{name}: Invalid value: {format_value(found)}: must be {wanted}"
        for name, found, wanted in (
            ("apiVersion", body.pop("apiVersion", ""), API_VERSION),
            ("kind", body.pop("kind", ""), KIND),
        )
        if found != wanted
    ]
    if wrong:
        raise ConfigError(wrong)
    config = with_file_defaults(block_from_plain(KubeProxyConfiguration, body, KIND, problems))
    problems.warnings += find_gate_warnings(config.feature_gates)
    return LoadedConfig(config, tuple(problems.warnings), tuple(problems.errors))


def config_to_json(config: KubeProxyConfiguration) -> bytes:
    """Return the external v1alpha1 object, as shown at /configz."""
    return msgspec.json.encode(_to_external(config))


def config_to_yaml(config: KubeProxyConfiguration) -> str:
    """Return the external v1alpha1 object as a file that reads back to the same configuration."""
    return yaml.safe_dump(_to_external(config), sort_keys=False, width=1000)


def _to_external(config: KubeProxyConfiguration) -> dict[str, object]:
    return {"apiVersion": API_VERSION, "kind": KIND, **plain_from_block(config)}


def _parse_document(data: bytes, problems: ProblemList) -> Any:
    twice: dict[str, None] = {}

    def on_duplicate(key: str) -> None:
        twice[key] = None

    try:
        text = data.decode()
        found = _parse_json(text, on_duplicate) if text.lstrip().startswith("{") else None
        documents = load_documents(data, on_duplicate) if found is None else [found]
    except YamlError as broken:
        raise ConfigError([f"the configuration is not valid YAML: {broken}"]) from broken
    except (ValueError, RecursionError) as broken:
        raise ConfigError([f"the configuration cannot be read: {_to_one_line(broken)}"]) from broken
    problems.warnings += [f'field "{key}" is given more than once; the last value is used' for key in twice]
    if len(documents) > 1:
        problems.warnings.append("the file holds more than one YAML document; only the first is used")
    return documents[0] if documents else None


def _to_one_line(problem: Exception) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__


def _parse_json(text: str, on_duplicate: OnDuplicate) -> Any:
    """Return the value of a JSON text; None when it is something else that starts with a brace."""

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                on_duplicate(key)
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=collect)
    except json.JSONDecodeError:
        return None
