"""The condition board: sources own their scope, states have one time and one log line, views only read."""

from __future__ import annotations

import logging

import pytest

from pointsman.conditions import Blocks, Condition, ConditionBoard, Status

SCORE = Condition.false("OOMScore", "NotPermitted", "cannot set oom_score_adj", "use a priority class")
SYSCTL = Condition.false("SysctlRouteLocalnet", "NotWritable", "cannot set route_localnet")
LATE = Condition.false("SyncIPv4", "SyncFailed", "busy", blocks=Blocks.READINESS)


class Clock:
    """A wall clock that stands still unless it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def types_on(board: ConditionBoard) -> list[str]:
    return [condition.type for condition in board.current()]


def test_a_condition_that_its_source_no_longer_names_is_gone() -> None:
    board = ConditionBoard()
    board.replace("host settings", [SCORE, SYSCTL])
    assert types_on(board) == ["OOMScore", "SysctlRouteLocalnet"]
    board.replace("host settings", [SCORE])
    assert types_on(board) == ["OOMScore"]
    board.replace("host settings", [])
    assert board.current() == ()


def test_sources_do_not_clear_the_conditions_of_others() -> None:
    board = ConditionBoard()
    board.replace("host settings", [SCORE])
    board.replace("sync", [SYSCTL])
    board.replace("host settings", [])
    assert types_on(board) == ["SysctlRouteLocalnet"]


def test_of_two_scopes_with_one_type_the_one_that_is_not_true_counts() -> None:
    board = ConditionBoard()
    for conditions in ((Condition.true("A"), SYSCTL), (SYSCTL, Condition.true("SysctlRouteLocalnet"))):
        for number, condition in enumerate(conditions):
            board.replace(str(number), [condition])
        (found,) = [one for one in board.current() if one.type == SYSCTL.type]
        assert found.reason == SYSCTL.reason


def test_since_is_the_time_of_the_last_change_of_status() -> None:
    clock = Clock()
    board = ConditionBoard(clock)
    board.replace("sync", [Condition.true("SyncIPv4")])
    clock.now = 200.0
    board.replace("sync", [LATE])
    clock.now = 300.0
    board.replace("sync", [Condition.false("SyncIPv4", "Other", "still busy")])
    (found,) = board.current()
    assert (found.status, found.reason, found.since) == (Status.FALSE, "Other", 200.0)


def test_a_source_that_is_a_function_is_asked_for_every_view() -> None:
    found: list[Condition] = []
    board = ConditionBoard()
    board.add_source("watches", lambda: found)
    assert board.current() == ()
    found.append(LATE)
    assert types_on(board) == ["SyncIPv4"]
    assert board.blocking(Blocks.READINESS)


def test_conditions_keep_the_order_of_their_scopes() -> None:
    board = ConditionBoard()
    board.add_source("start", lambda: [Condition.true("Started")])
    board.replace("sync", [Condition.true("SyncIPv4")])
    board.replace("host settings", [SCORE])
    board.replace("sync", [LATE])
    assert types_on(board) == ["Started", "SyncIPv4", "OOMScore"]


def test_one_log_line_when_a_condition_is_raised_and_one_when_it_is_cleared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = ConditionBoard()
    rephrased = Condition.false(SYSCTL.type, SYSCTL.reason, "another message, same cause")
    with caplog.at_level(logging.INFO):
        for found in ([SYSCTL], [SYSCTL], [rephrased], [], []):
            board.replace("sync", found)
    assert [record.getMessage() for record in caplog.records] == ["Condition raised", "Condition cleared"]


def test_a_new_reason_is_a_transition_and_an_unknown_status_is_none(caplog: pytest.LogCaptureFixture) -> None:
    board = ConditionBoard()
    with caplog.at_level(logging.INFO):
        board.replace("sync", [Condition.unknown("SyncIPv4", "NotYet", "no sync yet")])
        board.replace("sync", [Condition.true("SyncIPv4")])
        assert not caplog.records
        board.replace("sync", [LATE])
        board.replace("sync", [Condition.false("SyncIPv4", "Other", "")])
    assert [record.getMessage() for record in caplog.records] == ["Condition raised"] * 2


def test_a_condition_that_is_unknown_for_a_while_is_cleared_when_it_is_true(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = ConditionBoard()
    with caplog.at_level(logging.INFO):
        board.replace("sync", [LATE])
        board.replace("sync", [Condition.unknown("SyncIPv4", "Unreachable", "cannot be determined")])
        board.replace("sync", [Condition.true("SyncIPv4")])
        board.replace("sync", [Condition.true("SyncIPv4")])
    assert [record.getMessage() for record in caplog.records] == ["Condition raised", "Condition cleared"]


def test_what_is_logged_where_it_happens_is_not_logged_again_but_its_end_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = [LATE]
    board = ConditionBoard()
    board.add_source("syncs", lambda: found, logged_elsewhere=True)
    with caplog.at_level(logging.INFO):
        board.refresh()
        assert not caplog.records
        found.clear()
        board.refresh()
    assert [record.getMessage() for record in caplog.records] == ["Condition cleared"]


def test_a_view_writes_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    board = ConditionBoard()
    board.add_source("watches", lambda: [LATE])
    board.current()
    assert not caplog.records
    board.refresh()
    assert [record.getMessage() for record in caplog.records] == ["Condition raised"]


def test_a_source_that_raises_leaves_its_scope_as_it_was_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[list[Condition] | None] = [[LATE], None, None, [], None]

    def read() -> list[Condition]:
        answer = answers.pop(0)
        if answer is None:
            raise ZeroDivisionError("a bug")
        return answer

    board = ConditionBoard()
    board.add_source("watches", read)
    board.replace("host settings", [SCORE])
    seen = [types_on(board) for _ in range(5)]
    assert seen == [["SyncIPv4", "OOMScore"]] * 3 + [["OOMScore"]] * 2
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        "Cannot determine conditions"
    ] * 2


@pytest.mark.parametrize("blocks", Blocks)
def test_what_blocks_more_blocks_all_that_comes_before(blocks: Blocks) -> None:
    order = list(Blocks)
    condition = Condition.false("A", "B", "c", blocks=blocks)
    blocked = [what for what in order if condition.does_block(what)]
    assert blocked == order[: order.index(blocks) + 1]
    assert not any(Condition.true("A", blocks).does_block(what) for what in order)


def test_the_text_is_one_line() -> None:
    assert SCORE.text == "cannot set oom_score_adj: use a priority class"
    assert Condition.false("A", "B", "two\nlines").text == "two lines"
