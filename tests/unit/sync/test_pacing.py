import math
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.sync.loop import read_cpu_time
from pointsman.sync.pacing import COST_FACTOR, MAX_PAUSE_SECONDS, Pace, Pacer

PACE = Pace(min_period=1.0, sync_period=30.0)
BY_COST = Pace(min_period=0.0, sync_period=30.0)


def test_two_syncs_may_follow_at_once_and_the_third_waits() -> None:
    pacer = Pacer(PACE)
    for _ in range(2):
        assert pacer.compute_delay(0.0) == 0.0
        pacer.record_sync(0.0, 0.0)
    assert pacer.compute_delay(0.0) == 1.0
    assert pacer.compute_delay(0.75) == 0.25
    assert pacer.compute_delay(1.0) == 0.0


def test_without_a_period_the_pause_is_a_multiple_of_the_last_cost_within_bounds() -> None:
    pacer = Pacer(BY_COST)
    pauses = []
    for cost in (0.0, 0.00001, 0.001, 0.01, 10.0, 0.001):
        pacer.record_sync(100.0, cost)
        pauses.append(pacer.pause)
    assert pauses == pytest.approx([0.005, 0.005, 0.025, 0.25, 1.0, 0.025])


COST_OF_ONE_CHANGE_IN_IPTABLES_MODE = 0.098
"""CPU seconds with 1,000 Services, by bench/results/iptables.json."""
USE_CPU = "import time\nwhile time.process_time() < 0.1: pass"


def use_cpu() -> None:
    until = time.thread_time() + 0.1
    while time.thread_time() < until:
        pass


def test_the_cost_is_cpu_time_of_the_thread_and_of_the_programs_that_the_process_ran() -> None:
    before, own = read_cpu_time(), time.thread_time()
    subprocess.run([sys.executable, "-c", USE_CPU], check=True)
    assert read_cpu_time() - before - (time.thread_time() - own) >= 0.09, (
        "the program used a tenth of a second"
    )
    before = read_cpu_time()
    use_cpu()
    assert read_cpu_time() - before >= 0.09


def test_background_threads_do_not_add_to_the_cost_of_a_sync() -> None:
    before = read_cpu_time()
    background = threading.Thread(target=use_cpu)
    background.start()
    background.join()
    assert read_cpu_time() - before < 0.05


def test_iptables_mode_with_its_usual_cost_stays_at_a_second() -> None:
    pacer = Pacer(BY_COST)
    pacer.record_sync(0.0, COST_OF_ONE_CHANGE_IN_IPTABLES_MODE)
    assert pacer.pause == MAX_PAUSE_SECONDS


def test_a_cheap_sync_after_expensive_ones_waits_for_their_pauses() -> None:
    pacer = Pacer(BY_COST)
    pacer.record_sync(0.0, 0.4)
    assert pacer.compute_delay(0.4) == 0.0
    pacer.record_sync(0.4, 0.001)
    assert pacer.compute_delay(0.401) == pytest.approx(0.599)


def test_a_new_period_holds_at_once() -> None:
    pacer = Pacer(Pace(60.0, 90.0))
    for _ in range(2):
        pacer.record_sync(0.0, 0.1)
    pacer.pace = PACE
    assert pacer.compute_delay(0.0) == 0.0


def test_failures_back_off_up_to_the_sync_period_and_a_success_resets() -> None:
    pacer = Pacer(PACE)
    assert [pacer.record_failure(0.0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert pacer.compute_next_due() == 30.0
    pacer.record_success(40.0, full=True)
    assert pacer.compute_next_due() == 40.0 + PACE.full_period
    assert pacer.record_failure(41.0) == 1


def test_a_full_sync_is_due_an_hour_after_the_last_full_one_and_never_before_the_first() -> None:
    pacer = Pacer(PACE)
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
    pacer, now, starts = Pacer(Pace(period, 30.0)), 0.0, []
    for gap in gaps:
        now += gap
        now += pacer.compute_delay(now)
        pacer.record_sync(now, 0.0)
        starts.append(now)
    for index, first in enumerate(starts):
        inside = [t for t in starts[index:] if t - first < period * 3 - 1e-6]
        assert len(inside) <= 2 + 3


@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.3), st.floats(0.0, MAX_PAUSE_SECONDS / COST_FACTOR)),
        min_size=1,
        max_size=150,
    )
)
def test_syncs_take_a_bounded_share_of_any_ten_seconds(changes: list[tuple[float, float]]) -> None:
    """Beyond the cost at which the pause is a second, the share grows, as with a period of a second."""
    pacer, now = Pacer(BY_COST), 0.0
    syncs: list[tuple[float, float]] = []
    for gap, cost in changes:
        now += gap
        delay = pacer.compute_delay(now)
        assert delay <= 2 * MAX_PAUSE_SECONDS
        now += delay
        pacer.record_sync(now, cost)
        syncs.append((now, cost))
        now += cost
    for index, (first, _) in enumerate(syncs):
        spent = sum(cost for started, cost in syncs[index:] if started - first < 10.0)
        assert spent <= (10.0 + 2 * MAX_PAUSE_SECONDS) / COST_FACTOR + 1e-6
