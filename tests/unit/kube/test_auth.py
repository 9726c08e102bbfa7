"""Credentials follow their files and plugins, and never show."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pointsman.errors import ConfigError, KubeError
from pointsman.kube.access import Access, ExecPlugin
from pointsman.kube.auth import Credentials
from pointsman.kube.exec_plugin import ExecCredential, credential_from_output, run_plugin
from pointsman.kube.kubeconfig import load_access

V1 = "client.authentication.k8s.io/v1"


def headers(credentials: Credentials) -> dict[str, str]:
    return dict(asyncio.run(credentials.present()).headers)


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        + ["-keyout", key, "-out", certificate, "-days", "2", "-subj", f"/CN={name}"],
        check=True,
        capture_output=True,
    )
    return certificate, key


def test_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n", encoding="utf-8")
    credentials = Credentials(Access("http://x", "test", token="ignored", token_file=token))
    assert headers(credentials) == {"Authorization": "Bearer first"}
    (tmp_path / "new").write_text("second", encoding="utf-8")
    (tmp_path / "new").replace(token)
    assert headers(credentials) == {"Authorization": "Bearer second"}


def test_token_file_that_vanishes_or_empties_keeps_the_last_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first", encoding="utf-8")
    credentials = Credentials(Access("http://x", "test", token_file=token))
    headers(credentials)
    token.write_text("", encoding="utf-8")
    assert headers(credentials) == {"Authorization": "Bearer first"}
    token.unlink()
    assert headers(credentials) == {"Authorization": "Bearer first"}


UNUSABLE_TOKENS = {
    "two lines": b"hunter\ntwo",
    "a null byte": b"hunter\0two",
    "no UTF-8": b"\xff\xfe",
    "not ASCII": "t\u00f6ken".encode(),
    "more than a token": b"Bearer hunter",
    "a megabyte and more": b"x" * (2 << 20),
}


@pytest.mark.parametrize("content", UNUSABLE_TOKENS.values(), ids=UNUSABLE_TOKENS)
def test_a_token_file_that_holds_no_token_is_named_and_the_last_token_kept(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    credentials = Credentials(Access("http://x", "context 'c'", token_file=token))
    with pytest.raises(KubeError, match=r"token file .*/token \(context 'c'\)") as caught:
        headers(credentials)
    assert "hunter" not in str(caught.value)
    token.write_bytes(b"good")
    assert headers(credentials) == {"Authorization": "Bearer good"}
    token.write_bytes(content)
    for _ in range(3):
        assert headers(credentials) == {"Authorization": "Bearer good"}
    assert len(caplog.records) == 1


def test_a_token_file_that_is_a_pipe_or_a_device_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token")
    for path in (tmp_path / "token", Path("/dev/zero"), tmp_path):
        with pytest.raises(KubeError, match="not a regular file"):
            headers(Credentials(Access("http://x", "test", token_file=path)))


def test_tls_material_that_is_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "client")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    materials: tuple[dict[str, Any], ...] = (
        {"ca": pipe},
        {"ca": certificate, "client_certificate": pipe, "client_key": key},
        {"ca": certificate, "client_certificate": certificate, "client_key": pipe},
    )
    for material in materials:
        with pytest.raises(KubeError, match="pipe: not a regular file"):
            headers(Credentials(Access("https://x", "test", **material)))


def test_token_file_that_never_existed_is_an_error_naming_it(tmp_path: Path) -> None:
    credentials = Credentials(Access("http://x", "context 'c'", token_file=tmp_path / "token"))
    with pytest.raises(KubeError, match=r"token file .*/token \(context 'c'\)"):
        headers(credentials)


def kubeconfig(token: str, server: str = "http://api.example", **cluster: object) -> str:
    return json.dumps(
        {
            "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )


def test_changed_kubeconfig_brings_new_credentials(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig("first"), encoding="utf-8")
    credentials = Credentials(load_access(str(path)))
    assert headers(credentials) == {"Authorization": "Bearer first"}
    path.write_text(kubeconfig("second"), encoding="utf-8")
    assert headers(credentials) == {"Authorization": "Bearer second"}


@pytest.mark.parametrize("change", ["{ broken", kubeconfig("stolen", server="http://elsewhere.example")])
def test_unusable_kubeconfig_or_one_for_another_server_changes_nothing(tmp_path: Path, change: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig("first"), encoding="utf-8")
    credentials = Credentials(load_access(str(path)))
    path.write_text(change, encoding="utf-8")
    assert headers(credentials) == {"Authorization": "Bearer first"}
    path.write_text(kubeconfig("third"), encoding="utf-8")
    assert headers(credentials) == {"Authorization": "Bearer third"}


def test_a_kubeconfig_that_asks_for_verification_again_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"

    def verification(**cluster: object) -> ssl.VerifyMode:
        path.write_text(kubeconfig("one", "https://api.example", **cluster), encoding="utf-8")
        tls = asyncio.run(credentials.present()).tls
        assert tls is not None
        return tls.verify_mode

    trusting: dict[str, object] = {"insecure-skip-tls-verify": True}
    path.write_text(kubeconfig("one", "https://api.example", **trusting), encoding="utf-8")
    credentials = Credentials(load_access(str(path)))
    assert verification(**trusting) is ssl.CERT_NONE
    assert verification() is ssl.CERT_REQUIRED
    assert verification(**trusting) is ssl.CERT_NONE
    with pytest.raises(KubeError, match="certificate-authority-data holds no PEM certificate"):
        verification(**{"certificate-authority-data": "bm90aGluZw=="})


def test_basic_authentication_and_impersonation() -> None:
    access = Access(
        "http://x", "test", username="joe", password="pw", impersonation=(("Impersonate-User", "ann"),)
    )
    assert headers(Credentials(access)) == {"Impersonate-User": "ann", "Authorization": "Basic am9lOnB3"}


def test_new_client_certificate_leads_to_a_new_tls_context(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    access = Access("https://x", "test", ca=certificate, client_certificate=certificate, client_key=key)
    credentials = Credentials(access)
    first = asyncio.run(credentials.present()).tls
    assert asyncio.run(credentials.present()).tls is first
    new_certificate, new_key = make_certificate(tmp_path, "two")
    new_certificate.replace(certificate)
    half_way = asyncio.run(credentials.present()).tls
    assert half_way is first, "a certificate without its key must not be used"
    new_key.replace(key)
    assert asyncio.run(credentials.present()).tls is not first


def test_inline_certificate_needs_no_file(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    access = Access(
        "https://x",
        "test",
        ca=certificate.read_bytes(),
        client_certificate=certificate.read_bytes(),
        client_key=key.read_bytes(),
    )
    certificate.unlink()
    key.unlink()
    assert asyncio.run(Credentials(access).present()).tls is not None


@pytest.mark.parametrize(
    ("ca", "certificate", "message"),
    [
        (b"no pem", None, "certificate-authority-data holds no PEM certificate"),
        (Path("/absent/ca.crt"), None, "certificate-authority /absent/ca.crt: No such file"),
        (None, b"no pem", "client-certificate-data and client-key-data"),
        (None, Path("/absent/c.crt"), "client-certificate /absent/c.crt: No such file"),
        (None, Path("/dev/null"), "client-certificate /dev/null: not a regular file"),
    ],
)
def test_unusable_tls_material_is_named(ca: bytes | Path, certificate: bytes | Path, message: str) -> None:
    access = Access("https://x", "context 'c'", ca=ca, client_certificate=certificate, client_key=certificate)
    with pytest.raises(KubeError) as caught:
        asyncio.run(Credentials(access).present())
    assert message in str(caught.value)
    assert "context 'c'" in str(caught.value)
    with pytest.raises(ConfigError) as refused:
        Credentials(access).check()
    assert refused.value.problems == (str(caught.value),)


def test_a_key_that_is_not_that_of_the_certificate_is_named(tmp_path: Path) -> None:
    certificate, _ = make_certificate(tmp_path, "one")
    _, key = make_certificate(tmp_path, "two")
    access = Access("https://x", "test", ca=certificate, client_certificate=certificate, client_key=key)
    with pytest.raises(ConfigError, match=r"one\.crt and .*two\.key: the key is not that of the certificate"):
        Credentials(access).check()


def test_what_files_hold_is_checked_without_asking_a_plugin_or_a_server(tmp_path: Path) -> None:
    async def plugin(_plugin: ExecPlugin, _access: Access) -> ExecCredential:
        raise AssertionError("not yet")

    certificate, key = make_certificate(tmp_path, "one")
    Credentials(
        Access("https://x", "test", ca=certificate, client_certificate=certificate, client_key=key)
    ).check()
    Credentials(Access("https://x", "test", exec_plugin=ExecPlugin("x", V1)), run=plugin).check()
    Credentials(Access("http://x", "test", ca=tmp_path / "absent")).check()
    with pytest.raises(ConfigError, match=r"token file .*absent"):
        Credentials(Access("http://x", "test", token_file=tmp_path / "absent")).check()


def test_encrypted_key_fails_instead_of_asking_on_the_terminal(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked],
        check=True,
        capture_output=True,
    )
    access = Access("https://x", "test", client_certificate=certificate, client_key=locked)
    with pytest.raises(KubeError, match=r"locked\.key"):
        asyncio.run(Credentials(access).present())


def test_exec_credentials_are_kept_until_they_expire_or_are_refused() -> None:
    now = 1000.0
    runs = 0

    async def plugin(_plugin: ExecPlugin, _access: Access) -> ExecCredential:
        nonlocal runs
        runs += 1
        return ExecCredential(token=f"t{runs}", expires=now + 100)

    access = Access("http://x", "test", exec_plugin=ExecPlugin("x", V1))
    credentials = Credentials(access, clock=lambda: now, run=plugin)
    assert headers(credentials) == headers(credentials) == {"Authorization": "Bearer t1"}
    now += 95
    assert headers(credentials) == {"Authorization": "Bearer t2"}
    assert credentials.forget()
    assert headers(credentials) == {"Authorization": "Bearer t3"}


def test_static_token_is_not_worth_another_try_after_a_refusal(tmp_path: Path) -> None:
    assert not Credentials(Access("http://x", "test", token="t")).forget()
    path = tmp_path / "token"
    path.write_text("old", encoding="utf-8")
    credentials = Credentials(Access("http://x", "test", token_file=path))
    headers(credentials)
    assert not credentials.forget()
    path.write_text("new", encoding="utf-8")
    assert credentials.forget()


def script(directory: Path, text: str) -> str:
    path = directory / "plugin"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_plugin_gets_its_environment_and_its_answer_is_used(tmp_path: Path) -> None:
    answer = {
        "kind": "ExecCredential",
        "apiVersion": V1,
        "status": {"token": "from-plugin", "expirationTimestamp": "2030-01-01T00:00:00Z"},
    }
    seen = tmp_path / "seen"
    command = script(
        tmp_path, f"""echo "$1 $EXTRA $KUBERNETES_EXEC_INFO" > {seen}; echo '{json.dumps(answer)}'"""
    )
    plugin = ExecPlugin(command, V1, args=("arg",), env=(("EXTRA", "yes"),), provide_cluster_info=True)
    access = Access("https://api.example", "test", ca=b"PEM", exec_plugin=plugin)
    granted = asyncio.run(run_plugin(plugin, access))
    assert granted.token == "from-plugin"
    assert granted.expires == 1893456000
    argument, extra, info = seen.read_text(encoding="utf-8").split(" ", 2)
    assert (argument, extra) == ("arg", "yes")
    assert json.loads(info) == {
        "kind": "ExecCredential",
        "apiVersion": V1,
        "spec": {
            "interactive": False,
            "cluster": {"server": "https://api.example", "certificate-authority-data": "UEVN"},
        },
    }


def test_failing_plugin_is_reported_with_its_last_words(tmp_path: Path) -> None:
    plugin = ExecPlugin(script(tmp_path, "echo secret; echo first >&2; echo no network >&2; exit 3"), V1)
    with pytest.raises(KubeError, match="exit status 3: no network") as caught:
        asyncio.run(run_plugin(plugin, Access("https://x", "context 'c'")))
    assert "secret" not in str(caught.value)


def test_a_plugin_whose_child_keeps_its_output_open_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    plugin = ExecPlugin(script(tmp_path, "sleep 5 & echo secret"), V1)

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def attempts() -> list[int]:
        counts = []
        for _ in range(3):
            with pytest.raises(KubeError, match="gave no answer within 0 s"):
                await run_plugin(plugin, Access("https://x", "test"), timeout=0.2)
            counts.append(descriptors())
        return counts

    assert len(set(asyncio.run(attempts()))) == 1


def test_a_plugin_that_never_ends_its_answer_is_stopped(tmp_path: Path) -> None:
    plugin = ExecPlugin(script(tmp_path, "exec yes secret"), V1)
    with pytest.raises(KubeError, match="printed more than 1 MiB"):
        asyncio.run(run_plugin(plugin, Access("https://x", "test")))


def test_of_a_long_complaint_of_a_plugin_the_end_is_told(tmp_path: Path) -> None:
    plugin = ExecPlugin(script(tmp_path, "yes | head -c 3000000 >&2; echo no network >&2; exit 3"), V1)
    with pytest.raises(KubeError, match="exit status 3: no network"):
        asyncio.run(run_plugin(plugin, Access("https://x", "test")))


def test_missing_plugin_is_reported_with_its_install_hint() -> None:
    plugin = ExecPlugin("/absent/plugin", V1, install_hint="get it from example.com")
    with pytest.raises(KubeError, match=r"/absent/plugin.*cannot be started.*get it from example.com"):
        asyncio.run(run_plugin(plugin, Access("https://x", "test")))


@pytest.mark.parametrize(
    "plugin",
    [
        ExecPlugin("true", V1, args=("a\0b",)),
        ExecPlugin("true", V1, env=(("A", "b\0c"),)),
        ExecPlugin("tr\0ue", V1),
    ],
)
def test_a_plugin_that_no_process_can_be_made_of_is_reported(plugin: ExecPlugin) -> None:
    with pytest.raises(KubeError, match="cannot be started"):
        asyncio.run(run_plugin(plugin, Access("https://x", "test")))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (b"secret", "printed no usable ExecCredential"),
        (b'{"kind":"\xff secret"}', "printed no usable ExecCredential"),
        (b'{"kind":%s' % (b"[" * 200_000), "printed no usable ExecCredential"),
        (b'{"kind":"Secret"}', "must print kind ExecCredential"),
        (
            b'{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1"}',
            f"apiVersion {V1}",
        ),
        (b'{"kind":"ExecCredential","apiVersion":"%s"}' % V1.encode(), "neither token nor"),
        (
            b'{"kind":"ExecCredential","apiVersion":"%s","status":{"clientCertificateData":"secret"}}'
            % V1.encode(),
            "must come together",
        ),
    ],
)
def test_bad_plugin_output_is_refused_without_repeating_it(output: bytes, message: str) -> None:
    with pytest.raises(KubeError) as caught:
        credential_from_output(output, V1, "exec plugin x")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
