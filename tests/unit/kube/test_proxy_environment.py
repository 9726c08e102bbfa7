"""Proxy environment variables mean what they mean to Go programs."""

from __future__ import annotations

import pytest

from pointsman.kube.access import find_environment_proxy

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("url", "no_proxy", "direct"),
    [
        ("https://10.96.0.1:443", "", False),
        ("https://10.96.0.1:443", "10.96.0.0/12,.svc", True),
        ("https://10.96.0.1:443", "192.168.0.0/16", False),
        ("https://10.96.0.1:443", "10.96.0.1:443", True),
        ("https://10.96.0.1:443", "10.96.0.1:6443", False),
        ("https://[fd00::1]:443", "fd00::/8", True),
        ("https://[fd00::1]:443", "[fd00::1]:443", True),
        ("https://api.example.com", "example.com", True),
        ("https://api.example.com", ".example.com", True),
        ("https://example.com", ".example.com", False),
        ("https://api.example.com", "*.example.com", True),
        ("https://badexample.com", "example.com", False),
        ("https://api.example.com", "*", True),
        ("https://127.0.0.1:6443", "", True),
        ("https://[::1]:6443", "", True),
        ("https://localhost:6443", "", True),
        ("https://api.example.com", "api.example.com:44\N{SUPERSCRIPT THREE},example.org", False),
        ("https://api.example.com", "api.example.com:" + "4" * 5000, False),
    ],
)
def test_no_proxy(url: str, no_proxy: str, direct: bool) -> None:
    environ = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert find_environment_proxy(url, environ) == ("" if direct else PROXY)


def test_scheme_chooses_the_variable_and_a_bare_host_is_http() -> None:
    environ = {"http_proxy": "proxy.example:8080"}
    assert find_environment_proxy("http://10.0.0.1", environ) == "http://proxy.example:8080"
    assert find_environment_proxy("https://10.0.0.1", environ) == ""
