"""A configuration file's bytes in, a configuration with warnings out, or one error that lists every problem; and back.

Pure: reading the file is the caller's business.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from typing import Any

import msgspec
import yaml

from pointsman.config.defaults import with_file_defaults
from pointsman.config.document import Findings, block_from_plain, plain_from_block, shown
from pointsman.config.gates import gate_warnings
from pointsman.config.types import API_VERSION, KIND, KubeProxyConfiguration
from pointsman.errors import ConfigError

_NOTHING = object()


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
    findings.warnings += gate_warnings(config.feature_gates)
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
    try:
        text = data.decode()
        if text.lstrip().startswith("{"):
            try:
                return json.loads(text, object_pairs_hook=lambda pairs: _without_duplicates(pairs, findings))
            except json.JSONDecodeError:
                pass
        return _yaml_document(text, findings)
    except yaml.YAMLError as broken:
        raise ConfigError([f"the configuration is not valid YAML: {_one_line(broken)}"]) from broken
    except (ValueError, RecursionError, OverflowError, AttributeError, KeyError) as broken:
        raise ConfigError([f"the configuration cannot be read: {_one_line(broken)}"]) from broken


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__


def _yaml_document(text: str, findings: Findings) -> Any:
    documents = yaml.load_all(text, _loader_noting(findings))
    first = next(documents, None)
    if next(documents, _NOTHING) is not _NOTHING:
        findings.warnings.append("the file holds more than one YAML document; only the first is used")
    return first


def _loader_noting(findings: Findings) -> type[_Loader]:
    return type("_NotingLoader", (_Loader,), {"findings": findings})


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: dates stay text, duplicate keys are noticed."""

    findings: Findings

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        pairs = ((self.construct_object(key, deep=True), value) for key, value in node.value)
        plain = [(key if isinstance(key, str) else str(key), value) for key, value in pairs]
        return {
            key: self.construct_object(value, deep=deep) for key, value in _last_of_each(plain, self.findings)
        }


def _without_duplicates(pairs: list[tuple[str, Any]], findings: Findings) -> dict[str, Any]:
    return dict(_last_of_each(pairs, findings))


def _last_of_each(pairs: list[tuple[str, Any]], findings: Findings) -> Iterator[tuple[str, Any]]:
    last = dict(pairs)
    if len(last) < len(pairs):
        keys = [key for key, _ in pairs]
        for key in last:
            if keys.count(key) > 1:
                findings.warnings.append(f'field "{key}" is given more than once; the last value is used')
    yield from last.items()


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
