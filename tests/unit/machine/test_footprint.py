"""What settling exempts from collection is collected after all when it is garbage at the next settling."""

from __future__ import annotations

import gc
import weakref

from pointsman.machine.settings import freeze_heap


class _Ring:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.myself = self


def test_the_objects_of_an_earlier_proxy_are_freed_when_the_next_one_settles() -> None:
    try:
        ring = _Ring()
        gone = weakref.ref(ring)
        freeze_heap()
        del ring
        gc.collect()
        assert gone() is not None
        freeze_heap()
        assert gone() is None
    finally:
        gc.unfreeze()
