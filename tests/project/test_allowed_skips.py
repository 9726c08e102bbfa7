"""Skipped tests need a listed reason."""

from __future__ import annotations

from tests.conftest import allowed_skips, forbidden_skips

LISTED = """\
# Programs
needs helm

no SCTP *
local: needs root*
"""


def test_a_reason_that_is_not_listed_is_forbidden() -> None:
    reasons = {"needs helm", "no SCTP in this kernel", "chromium is not installed"}
    assert forbidden_skips(reasons, allowed_skips(LISTED, in_ci=True)) == ["chromium is not installed"]


def test_tests_that_need_root_may_be_skipped_outside_ci_only() -> None:
    reasons = {"needs root: network namespaces"}
    assert forbidden_skips(reasons, allowed_skips(LISTED, in_ci=False)) == []
    assert forbidden_skips(reasons, allowed_skips(LISTED, in_ci=True)) == sorted(reasons)
