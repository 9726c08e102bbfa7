"""kubeconfig files, pods and flags: what they mean, and what is said when they mean nothing."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.errors import ConfigError
from pointsman.kube.access import Access
from pointsman.kube.kubeconfig import access_from_kubeconfig, access_in_cluster, load_access

FILE = Path("/etc/proxy/kubeconfig.conf")


def config(
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    *,
    current_context: str = "x",
    **top: Any,
) -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443"} | (cluster or {})}],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": current_context,
        }
        | top
    )


def access(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **top: Any) -> Access:
    return access_from_kubeconfig(config(cluster, user, **top), FILE)


def test_every_cluster_field_is_read() -> None:
    result = access(
        {
            "server": "https://api.example:6443/k8s/clusters/c-1/",
            "certificate-authority": "pki/ca.crt",
            "tls-server-name": "kubernetes",
            "proxy-url": "http://proxy.example:3128",
            "disable-compression": True,
        }
    )
    assert result.server == "https://api.example:6443/k8s/clusters/c-1"
    assert result.ca == Path("/etc/proxy/pki/ca.crt")
    assert result.tls_server_name == "kubernetes"
    assert result.proxy_url == "http://proxy.example:3128"
    assert result.disable_compression


def test_inline_data_wins_over_files() -> None:
    pem = base64.b64encode(b"PEM").decode()
    result = access(
        {"certificate-authority": "ca.crt", "certificate-authority-data": pem},
        {
            "client-certificate": "/c.crt",
            "client-certificate-data": pem,
            "client-key": "/c.key",
            "client-key-data": pem[:2] + "\n" + pem[2:],
        },
    )
    assert (result.ca, result.client_certificate, result.client_key) == (b"PEM", b"PEM", b"PEM")


def test_absolute_paths_stay_and_relative_ones_follow_the_file() -> None:
    result = access({}, {"client-certificate": "/abs/c.crt", "client-key": "rel/c.key", "tokenFile": "token"})
    assert result.client_certificate == Path("/abs/c.crt")
    assert result.client_key == Path("/etc/proxy/rel/c.key")
    assert result.token_file == Path("/etc/proxy/token")


def test_identity_fields_are_read() -> None:
    result = access(
        {},
        {
            "token": " t\n",
            "username": "joe",
            "password": "pw",
            "as": "ann",
            "as-uid": "7",
            "as-groups": ["a", "b"],
        },
    )
    assert (result.token, result.username, result.password) == ("t", "joe", "pw")
    assert result.impersonation == (
        ("Impersonate-User", "ann"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
    )


def test_exec_plugin_is_read_and_its_command_found_beside_the_file() -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./bin/get-token",
        "args": ["-v"],
        "env": [{"name": "A", "value": "b"}],
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": True,
        "installHint": "install get-token",
    }
    result = access({}, {"exec": plugin}).exec_plugin
    assert result is not None
    assert result.command == "/etc/proxy/bin/get-token"
    assert result.env == (("A", "b"),)
    assert result.provide_cluster_info
    assert access({}, {"exec": plugin | {"command": "get-token"}}).exec_plugin.command == "get-token"  # type: ignore[union-attr]


def test_named_context_other_than_the_current_one() -> None:
    data = config(
        clusters=[{"name": "other", "cluster": {"server": "https://other.example"}}],
        contexts=[{"name": "y", "context": {"cluster": "other"}}],
    )
    assert access_from_kubeconfig(data, FILE, context="y").server == "https://other.example"


def test_master_overrides_the_server_and_keeps_the_identity() -> None:
    result = access_from_kubeconfig(config({}, {"token": "t"}), FILE, master="https://127.0.0.1:6443")
    assert (result.server, result.token) == ("https://127.0.0.1:6443", "t")


def test_master_alone_is_anonymous_plain_http_unless_it_says_https() -> None:
    assert load_access(master="127.0.0.1:8080").server == "http://127.0.0.1:8080"
    assert load_access(master="https://127.0.0.1:6443").server == "https://127.0.0.1:6443"


def test_server_without_scheme_is_https_when_tls_is_configured() -> None:
    assert (
        access({"server": "api.example:6443", "certificate-authority": "ca"}).server
        == "https://api.example:6443"
    )
    assert access({"server": "api.example:8080"}).server == "http://api.example:8080"


def test_yaml_with_nulls_as_kubectl_writes_it() -> None:
    data = b"""
apiVersion: v1
clusters:
- {name: c, cluster: {server: 'https://api.example'}}
contexts:
- {name: x, context: {cluster: c, user: ""}}
current-context: x
users: null
preferences: {}
"""
    assert access_from_kubeconfig(data, FILE).server == "https://api.example"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (config(current_context=""), "current-context is not set; contexts in the file: x"),
        (config(current_context="z"), "context 'z' does not exist; the file has: x"),
        (config(clusters=[]), "context 'x': cluster 'c' does not exist; the file has: none"),
        (config(users=[]), "context 'x': user 'u' does not exist"),
        (config({"server": ""}), "user 'u': the cluster has no server"),
        (config({"server": "ftp://x"}), "the server must be http(s)://HOST[:PORT][/PATH]"),
        (config({"server": "https://x:99999999"}), "the server must be http(s)://HOST[:PORT][/PATH]"),
        (config({"server": "https://joe:secret@x"}), "the server must be http(s)://HOST[:PORT][/PATH]"),
        (config({"certificate-authority-data": "%%%"}), "CA data is not valid base64"),
        (config({}, {"client-certificate": "c.crt"}), "client-key is missing"),
        (config({}, {"client-key": "c.key"}), "client-certificate is missing"),
        (
            config({"certificate-authority": "ca", "insecure-skip-tls-verify": True}),
            "insecure-skip-tls-verify and a certificate authority exclude each other",
        ),
        (config({"proxy-url": "socks5://x:1080"}), "proxy-url: only http:// and https://"),
        (config({}, {"auth-provider": {"name": "gcp"}}), "auth-provider was removed"),
        (config({}, {"exec": {"command": "x", "apiVersion": "v1"}}), "exec.apiVersion 'v1': use client.auth"),
        (
            config(
                {},
                {
                    "exec": {
                        "command": "x",
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "interactiveMode": "Always",
                    }
                },
            ),
            "there is no terminal here",
        ),
        (config({}, {"token": 5}), "Expected `str | null`, got `int` - at `$.users[0].user.token`"),
        (b"- a list", "Expected `object`"),
        (b"a: b: c", "line 1"),
        (b"", "current-context is not set; contexts in the file: none"),
    ],
)
def test_mistakes_are_named_with_the_file(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        access_from_kubeconfig(data, FILE)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(FILE) in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kubeconfig .*/absent: cannot be read: No such file"):
        load_access(str(tmp_path / "absent"))


def test_pod_uses_its_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t", encoding="utf-8")
    (tmp_path / "ca.crt").write_text("PEM", encoding="utf-8")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    result = load_access(environ=environ, service_account=tmp_path)
    assert result.server == "https://[fd00::1]:443"
    assert result.token_file == tmp_path / "token"
    assert result.ca == tmp_path / "ca.crt"


def test_master_in_a_pod_keeps_the_pods_token_and_ca(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t", encoding="utf-8")
    (tmp_path / "ca.crt").write_text("PEM", encoding="utf-8")
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for address in ("192.0.2.10:6443", "https://192.0.2.10:6443"):
        result = load_access(master=address, environ=environ, service_account=tmp_path)
        assert result.server == "https://192.0.2.10:6443"
        assert result.token_file == tmp_path / "token"
        assert result.ca == tmp_path / "ca.crt"
    in_clear = load_access(master="http://192.0.2.10:8080", environ=environ, service_account=tmp_path)
    assert in_clear.token_file is None
    outside = load_access(master="192.0.2.10:8080", environ={}, service_account=tmp_path)
    assert (outside.server, outside.token_file) == ("http://192.0.2.10:8080", None)


def test_every_access_says_what_to_do_when_nobody_answers(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t", encoding="utf-8")
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert "--master=https://HOST:PORT" in load_access(environ=environ, service_account=tmp_path).advice
    assert "--master" in load_access(master="h:1", environ={}, service_account=tmp_path).advice
    assert str(FILE) in access_from_kubeconfig(config({}, {}), FILE).advice


def test_outside_a_pod_without_flags_the_message_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither --kubeconfig nor --master is given"):
        access_in_cluster({}, tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ConfigError, match="token is missing; set automountServiceAccountToken"):
        access_in_cluster(environ, tmp_path)


def test_no_secret_shows_in_a_repr() -> None:
    secret = base64.b64encode(b"hunter2").decode()
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "x",
        "args": ["hunter2"],
        "env": [{"name": "P", "value": "hunter2"}],
    }
    user = {
        "token": "hunter2",
        "username": "joe",
        "password": "hunter2",
        "client-key-data": secret,
        "client-certificate-data": secret,
        "exec": plugin,
    }
    assert "hunter2" not in repr(access({"proxy-url": "http://u:hunter2@p"}, user))


@given(st.binary(max_size=100))
def test_no_bytes_lead_to_anything_but_a_config_error(data: bytes) -> None:
    with pytest.raises(ConfigError):
        access_from_kubeconfig(data, FILE)
