"""pflag's syntax, and every value type."""

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.config.command_line import parse_run
from pointsman.config.flags import FLAGS
from pointsman.config.goflags import parse_flags
from pointsman.config.types import VModuleItem
from pointsman.errors import ConfigError


def values(*argv: str) -> dict[str, Any]:
    return parse_flags(argv, FLAGS, program="kube-proxy").values


def problems(*argv: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_flags(argv, FLAGS, program="kube-proxy")
    return caught.value.problems


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--proxy-mode=ipvs"], "proxy-mode", "ipvs"),
        (["--proxy-mode", "ipvs"], "proxy-mode", "ipvs"),
        (["--proxy_mode=ipvs"], "proxy-mode", "ipvs"),
        (["--proxy-mode="], "proxy-mode", ""),
        (["--proxy-mode", "--cleanup"], "proxy-mode", "--cleanup"),
        (["--masquerade-all"], "masquerade-all", True),
        (["--masquerade-all=false"], "masquerade-all", False),
        (["--masquerade-all=T"], "masquerade-all", True),
        (["-v=2"], "v", 2),
        (["-v", "2"], "v", 2),
        (["-v2"], "v", 2),
        (["--v=2"], "v", 2),
        (["--v", "2", "--v=3"], "v", 3),
        (["--oom-score-adj", "-5"], "oom-score-adj", -5),
        (["--conntrack-min=0x10"], "conntrack-min", 16),
        (["--conntrack-min=010"], "conntrack-min", 8),
        (["--conntrack-min=1_000"], "conntrack-min", 1000),
        (["--kube-api-qps=2.5"], "kube-api-qps", 2.5),
        (["--iptables-sync-period=1h30m"], "iptables-sync-period", timedelta(minutes=90)),
        (["--nodeport-addresses=10.0.0.0/8,primary"], "nodeport-addresses", ("10.0.0.0/8", "primary")),
        (["--nodeport-addresses=a", "--nodeport-addresses", "b"], "nodeport-addresses", ("a", "b")),
        (['--nodeport-addresses="a,b",c'], "nodeport-addresses", ("a,b", "c")),
        (["--nodeport-addresses="], "nodeport-addresses", ()),
        (["--feature-gates=A=true,B=false", "--feature-gates=A=false"], "feature-gates", {"A": False, "B": False}),
        (["--feature-gates", " A = true ,"], "feature-gates", {"A": True}),
        (["--bind-address=::1"], "bind-address", "::1"),
        (["--healthz-bind-address=10.0.0.1"], "healthz-bind-address", "10.0.0.1"),
        (["--healthz-bind-address=[::]:80"], "healthz-bind-address", "[::]:80"),
        (["--metrics-bind-address="], "metrics-bind-address", ""),
        (["--vmodule=a*=3,b=1"], "vmodule", (VModuleItem(file_pattern="a*", verbosity=3), VModuleItem(file_pattern="b", verbosity=1))),
        (["--log-text-info-buffer-size=2Ki"], "log-text-info-buffer-size", 2048),
        (["--version"], "version", "true"),
        (["--version=raw"], "version", "raw"),
        (["--version=v1.37.0"], "version", "v1.37.0"),
        (["--version=false"], "version", ""),
        (["-h"], "help", True),
        (["-hv=3"], "v", 3),
        (["--cleanup", "--"], "cleanup", True),
    ],
)  # fmt: skip
def test_spelling_is_understood(argv: list[str], name: str, value: object) -> None:
    assert values(*argv)[name] == value


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--proxy-mod=ipvs"], "unknown flag: --proxy-mod, did you mean --proxy-mode?"),
        (["--zzzzzz"], "unknown flag: --zzzzzz"),
        (["-proxy-mode=ipvs"], "unknown shorthand flag: 'p' in -proxy-mode=ipvs, did you mean --proxy-mode?"),
        (["-x"], "unknown shorthand flag: 'x' in -x"),
        (["--proxy-mode"], "flag needs an argument: --proxy-mode"),
        (["-v"], "flag needs an argument: -v"),
        (["run"], "kube-proxy takes no arguments besides flags, got: run"),
        (["--", "-v=2"], "kube-proxy takes no arguments besides flags, got: -v=2"),
        (["--cleanup", "true"], "kube-proxy takes no arguments besides flags, got: true"),
        (["--cleanup=maybe"], 'invalid argument "maybe" for "--cleanup" flag: must be true or false'),
        (["-v=high"], 'invalid argument "high" for "-v" flag: must be an integer'),
        (["-v=-1"], 'invalid argument "-1" for "-v" flag: must be within the range [0, 2147483647]'),
        (["--conntrack-min=08"], 'invalid argument "08" for "--conntrack-min" flag: must be an integer'),
        (["--conntrack-min=3000000000"], 'invalid argument "3000000000" for "--conntrack-min" flag: must be within the range [-2147483648, 2147483647]'),
        (["--kube-api-qps=nan"], 'invalid argument "nan" for "--kube-api-qps" flag: must be a finite number'),
        (["--feature-gates=A"], "invalid argument \"A\" for \"--feature-gates\" flag: malformed pair 'A', expect name=true or name=false"),
        (["--bind-address=node"], 'invalid argument "node" for "--bind-address" flag: must be an IP address'),
        (["--healthz-bind-address=::1:x:"], 'invalid argument "::1:x:" for "--healthz-bind-address" flag: must be an IP address or IP:port, with brackets around IPv6'),
        (["--healthz-bind-address=node:80"], "invalid argument \"node:80\" for \"--healthz-bind-address\" flag: 'node' is not an IP address"),
        (["--healthz-bind-address=1.1.1.1:x"], "invalid argument \"1.1.1.1:x\" for \"--healthz-bind-address\" flag: 'x' is not a port"),
        (["--vmodule=a"], "invalid argument \"a\" for \"--vmodule\" flag: 'a' must have the form pattern=N"),
        (["--version=blah"], 'invalid argument "blah" for "--version" flag: must be true, raw or a version such as v1.37.0'),
        (["--iptables-sync-period=30"], "invalid argument \"30\" for \"--iptables-sync-period\" flag: invalid duration '30': write numbers with units h, m, s, ms, us, ns, such as 1h30m"),
        (['--nodeport-addresses="a'], 'invalid argument ""a" for "--nodeport-addresses" flag: must be a list separated by commas: unexpected end of data'),
    ],
)  # fmt: skip
def test_mistake_is_named(argv: list[str], problem: str) -> None:
    assert problems(*argv) == (problem,)


def test_all_mistakes_are_reported_together() -> None:
    assert len(problems("--proxy-mod", "x", "--cleanup=maybe", "extra", "-v=x")) == 4


_argument = st.one_of(
    st.text(max_size=20),
    st.sampled_from([f"--{flag.name}" for flag in FLAGS if flag.name != "config"]),
    st.builds(
        "--{}={}".format,
        st.sampled_from([flag.name for flag in FLAGS if flag.name != "config"]),
        st.text(max_size=15),
    ),
    st.builds("-v{}".format, st.text(max_size=5)),
    st.sampled_from(
        ["--config=/nonexistent", "--config=\0", "--bind-address=" + "9" * 5000, "-", "--", "--="]
    ),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(_argument, max_size=5))
def test_no_command_line_raises_anything_but_config_error(argv: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        parse_run(argv, program="kube-proxy")
