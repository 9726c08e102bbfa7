"""From a kubeconfig file, a pod's service account or `--master` to an `Access`.

One file, never a merge of several: kube-proxy reads exactly the file it is given. Parsing is pure; only
`load_access` and `access_in_cluster` look at the file system. Every error names the file, the context and the
entry at fault, and never quotes a value that may be secret.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from pointsman.errors import ConfigError
from pointsman.files import read_file
from pointsman.kube.access import Access, ExecPlugin, Material
from pointsman.yamltext import YamlError, load_documents

SERVICE_ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_KUBECONFIG_BYTES = 16 << 20
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_ADVICE_FOR_THE_SERVICE = (
    "this is the address of the Service kubernetes, which works only where a proxy already serves it: give the API server's "
    "own address with --master=https://HOST:PORT (Helm: apiServer.host; kustomize: deploy/overlays/first-proxy)"
)
_ADVICE_FOR_MASTER = "is --master the API server's own address, and reachable from this node?"


class _Cluster(msgspec.Struct, rename="kebab"):
    """clusters[].cluster"""

    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None
    disable_compression: bool | None = None


class _EnvVar(msgspec.Struct):
    """users[].user.exec.env[]"""

    name: str
    value: str = ""


class _Exec(msgspec.Struct, rename="camel"):
    """users[].user.exec"""

    command: str
    api_version: str | None = None
    args: list[str] | None = None
    env: list[_EnvVar] | None = None
    install_hint: str | None = None
    interactive_mode: str | None = None
    provide_cluster_info: bool | None = None


class _User(msgspec.Struct, rename="kebab"):
    """users[].user"""

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    as_user: str | None = msgspec.field(default=None, name="as")
    as_uid: str | None = None
    as_groups: list[str] | None = None
    exec_plugin: _Exec | None = msgspec.field(default=None, name="exec")
    auth_provider: msgspec.UnsetType | Any = msgspec.UNSET


class _Context(msgspec.Struct):
    """contexts[].context"""

    cluster: str | None = None
    user: str | None = None


class _NamedCluster(msgspec.Struct):
    """clusters[]"""

    name: str
    cluster: _Cluster | None = None


class _NamedUser(msgspec.Struct):
    """users[]"""

    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct):
    """contexts[]"""

    name: str
    context: _Context | None = None


class _File(msgspec.Struct, rename="kebab"):
    """The part of a kubeconfig that matters to a client."""

    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = None


def load_access(
    kubeconfig: str = "",
    master: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT_DIRECTORY,
) -> Access:
    """Return the access for `--kubeconfig` and `--master`; with neither, that of the pod we run in.

    Raises ConfigError.
    """
    environment = os.environ if environ is None else environ
    if not kubeconfig and not master:
        return access_in_cluster(environment, service_account)
    if not kubeconfig:
        return _build_master_access(master, environment, service_account)
    path = Path(kubeconfig)
    return access_from_kubeconfig(read_kubeconfig(path), path, master=master)


def read_kubeconfig(path: Path) -> bytes:
    """Return the content of the file. Raises ConfigError."""
    try:
        return read_file(path, _MAX_KUBECONFIG_BYTES)
    except OSError as error:
        raise ConfigError([f"kubeconfig {path}: cannot be read: {error.strerror}"]) from error


def access_in_cluster(
    environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT_DIRECTORY
) -> Access:
    """Return the access of a pod: its service account, and the Service of the API server. Raises ConfigError."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        problem = (
            "no API server: not inside a pod (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not "
            "both set), and neither --kubeconfig nor --master is given; --manifests works without one"
        )
        raise ConfigError([problem])
    if not _get_token_file(service_account).is_file():
        problem = (
            f"in-cluster configuration: {_get_token_file(service_account)} is missing; "
            "set automountServiceAccountToken or give --kubeconfig"
        )
        raise ConfigError([problem])
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    origin = f"service account in {service_account}"
    return _as_service_account(f"https://{authority}", origin, _ADVICE_FOR_THE_SERVICE, service_account)


def _build_master_access(master: str, environ: Mapping[str, str], service_account: Path) -> Access:
    """Return access to the address given by flag: in a pod with its identity, elsewhere anonymous.

    The certificate must be valid for the given address and signed by the pod's CA. A token never travels without TLS.
    """
    in_pod = bool(environ.get("KUBERNETES_SERVICE_HOST")) and _get_token_file(service_account).is_file()
    server = _parse_server_url(master, "--master", tls=in_pod)
    if not in_pod or not server.startswith("https:"):
        return Access(server=server, origin="--master", advice=_ADVICE_FOR_MASTER)
    origin = f"--master and service account in {service_account}"
    return _as_service_account(server, origin, _ADVICE_FOR_MASTER, service_account)


def _get_token_file(service_account: Path) -> Path:
    return service_account / "token"


def _as_service_account(server: str, origin: str, advice: str, service_account: Path) -> Access:
    ca_file = service_account / "ca.crt"
    return Access(
        server=server,
        origin=origin,
        ca=ca_file if ca_file.is_file() else None,
        token_file=_get_token_file(service_account),
        advice=advice,
    )


def access_from_kubeconfig(data: bytes, path: Path, *, master: str = "", context: str = "") -> Access:
    """Return the access of the current (or named) context. Relative paths are relative to the directory of the file."""
    file = _parse(data, path)
    name = context or file.current_context or ""
    where = f"kubeconfig {path}"
    if not name:
        if master:
            return Access(
                server=_parse_server_url(master, "--master", tls=False),
                origin=f"--master and {where}",
                advice=_ADVICE_FOR_MASTER,
            )
        known = _format_known([entry.name for entry in file.contexts or ()])
        raise ConfigError([f"{where}: current-context is not set; contexts in the file: {known}"])
    where = f"{where}: context {name!r}"
    selected = _find(file.contexts, name, f"{where} does not exist").context or _Context()
    cluster = _Cluster()
    if selected.cluster:
        missing = f"{where}: cluster {selected.cluster!r} does not exist"
        cluster = _find(file.clusters, selected.cluster, missing).cluster or cluster
    user = _User()
    if selected.user:
        missing = f"{where}: user {selected.user!r} does not exist"
        user = _find(file.users, selected.user, missing).user or user
    result = _build_access(cluster, user, path, master, f"{where}, user {selected.user or ''!r}")
    return replace(result, kubeconfig=path, context=context, master=master)


def _build_access(cluster: _Cluster, user: _User, path: Path, master: str, origin: str) -> Access:
    base = path.parent
    ca = _decode_material(
        cluster.certificate_authority_data, cluster.certificate_authority, base, origin, "CA"
    )
    certificate = _decode_material(
        user.client_certificate_data, user.client_certificate, base, origin, "client-certificate"
    )
    key = _decode_material(user.client_key_data, user.client_key, base, origin, "client-key")
    problems = _find_conflicts(cluster, user, ca, certificate, key, origin)
    server = master or cluster.server or ""
    if not server:
        problems.append(f"{origin}: the cluster has no server; set clusters[].cluster.server")
    if problems:
        raise ConfigError(problems)
    tls = bool(ca or certificate or cluster.insecure_skip_tls_verify)
    return Access(
        server=_parse_server_url(server, "--master" if master else f"{origin}: cluster.server", tls=tls),
        origin=origin,
        ca=ca,
        insecure_skip_tls_verify=bool(cluster.insecure_skip_tls_verify),
        tls_server_name=cluster.tls_server_name or "",
        proxy_url=_check_proxy_url(cluster.proxy_url or "", origin),
        disable_compression=bool(cluster.disable_compression),
        token=(user.token or "").strip(),
        token_file=base / user.token_file if user.token_file else None,
        client_certificate=certificate,
        client_key=key,
        username=user.username or "",
        password=user.password or "",
        impersonation=_build_impersonation(user),
        exec_plugin=_build_exec_plugin(user.exec_plugin, base, origin),
        advice=_ADVICE_FOR_MASTER
        if master
        else f"is clusters[].cluster.server in {path} reachable from here?",
    )


def _find_conflicts(
    cluster: _Cluster, user: _User, ca: Material, certificate: Material, key: Material, origin: str
) -> list[str]:
    problems = []
    if cluster.insecure_skip_tls_verify and ca is not None:
        problems.append(
            f"{origin}: insecure-skip-tls-verify and a certificate authority exclude each other; remove one"
        )
    if (certificate is None) != (key is None):
        absent = "client-key" if key is None else "client-certificate"
        problems.append(f"{origin}: {absent} is missing; a client certificate needs both")
    if user.auth_provider is not msgspec.UNSET and user.auth_provider is not None:
        problems.append(
            f"{origin}: auth-provider was removed from Kubernetes in 1.26; use an exec plugin instead"
        )
    return problems


def _build_impersonation(user: _User) -> tuple[tuple[str, str], ...]:
    headers = []
    if user.as_user:
        headers.append(("Impersonate-User", user.as_user))
    if user.as_uid:
        headers.append(("Impersonate-Uid", user.as_uid))
    headers.extend(("Impersonate-Group", group) for group in user.as_groups or ())
    return tuple(headers)


def _build_exec_plugin(plugin: _Exec | None, base: Path, origin: str) -> ExecPlugin | None:
    if plugin is None:
        return None
    if plugin.api_version not in _EXEC_VERSIONS:
        raise ConfigError(
            [f"{origin}: exec.apiVersion {plugin.api_version!r}: use {' or '.join(_EXEC_VERSIONS)}"]
        )
    if not plugin.command:
        raise ConfigError([f"{origin}: exec.command is empty"])
    if plugin.interactive_mode == "Always":
        raise ConfigError(
            [f"{origin}: exec.interactiveMode Always: there is no terminal here; use Never or IfAvailable"]
        )
    command = plugin.command
    if "/" in command:
        command = str(base / command)
    return ExecPlugin(
        command=command,
        api_version=plugin.api_version,
        args=tuple(plugin.args or ()),
        env=tuple((entry.name, entry.value) for entry in plugin.env or ()),
        provide_cluster_info=bool(plugin.provide_cluster_info),
        install_hint=plugin.install_hint or "",
    )


def _decode_material(inline: str | None, file: str | None, base: Path, origin: str, field: str) -> Material:
    if inline:
        try:
            return base64.b64decode("".join(inline.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigError([f"{origin}: {field} data is not valid base64"]) from error
    return base / file if file else None


def _parse_server_url(text: str, origin: str, *, tls: bool) -> str:
    """Return the URL without a trailing slash; a bare host gets the scheme that client-go would choose."""
    url = text if "://" in text else f"{'https' if tls else 'http'}://{text}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None or parts.query or parts.fragment:
        raise ConfigError([f"{origin}: the server must be http(s)://HOST[:PORT][/PATH]"])
    return url.rstrip("/")


def _check_proxy_url(text: str, origin: str) -> str:
    try:
        usable = not text or urlsplit(text).scheme in ("http", "https")
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError([f"{origin}: proxy-url: only http:// and https:// proxies are supported"])
    return text


_Named = TypeVar("_Named", _NamedCluster, _NamedUser, _NamedContext)


def _find(entries: Sequence[_Named] | None, name: str, missing: str) -> _Named:
    for entry in entries or ():
        if entry.name == name:
            return entry
    raise ConfigError([f"{missing}; the file has: {_format_known([entry.name for entry in entries or ()])}"])


def _format_known(names: list[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _parse(data: bytes, path: Path) -> _File:
    try:
        documents = load_documents(data)
    except YamlError as error:
        raise ConfigError([f"kubeconfig {path}: {error}"]) from None
    content = documents[0] if documents else None
    try:
        return msgspec.convert({} if content is None else content, _File)
    except msgspec.ValidationError as error:
        raise ConfigError([f"kubeconfig {path}: {error}"]) from error
