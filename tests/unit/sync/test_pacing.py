import math

from hypothesis import given
from hypothesis import strategies as st

from pointsman.sync.pacing import BURST, Pace, Pacer

PACE = Pace(min_period=1.0, sync_period=30.0)


def test_two_syncs_may_follow_at_once_and_the_third_waits() -> None:
    pacer = Pacer(PACE, 0.0)
    for _ in range(BURST):
        assert pacer.compute_delay(0.0) == 0.0
        pacer.record_start(0.0)
    assert pacer.compute_delay(0.0) == 1.0
    assert pacer.compute_delay(0.75) == 0.25
    assert pacer.compute_delay(1.0) == 0.0


def test_no_min_period_means_no_waiting() -> None:
    pacer = Pacer(Pace(0.0, 30.0), 0.0)
    for _ in range(5):
        assert pacer.compute_delay(0.0) == 0.0
        pacer.record_start(0.0)


def test_failures_back_off_up_to_the_sync_period_and_a_success_resets() -> None:
    pacer = Pacer(PACE, 0.0)
    assert [pacer.record_failure(0.0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert pacer.compute_next_due() == 30.0
    pacer.record_success(40.0, full=True)
    assert pacer.compute_next_due() == 40.0 + PACE.full_period
    assert pacer.record_failure(41.0) == 1


def test_a_full_sync_is_due_an_hour_after_the_last_full_one_and_never_before_the_first() -> None:
    pacer = Pacer(PACE, 0.0)
    assert pacer.compute_next_due() == math.inf
    pacer.record_success(0.0, full=True)
    assert not pacer.is_full_due(3599.0)
    assert pacer.is_full_due(3600.0)
    pacer.record_success(50.0, full=False)
    assert pacer.compute_next_due() == 3600.0
    pacer.record_success(100.0, full=True)
    assert pacer.compute_next_due() == 3700.0


@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=40), st.floats(0.1, 3.0))
def test_never_more_than_the_rate_plus_the_burst(gaps: list[float], period: float) -> None:
    pacer, now, starts = Pacer(Pace(period, 30.0), 0.0), 0.0, []
    for gap in gaps:
        now += gap
        now += pacer.compute_delay(now)
        pacer.record_start(now)
        starts.append(now)
    for index, first in enumerate(starts):
        inside = [t for t in starts[index:] if t - first < period * 3 - 1e-6]
        assert len(inside) <= BURST + 3
