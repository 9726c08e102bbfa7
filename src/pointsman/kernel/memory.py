"""Memory after the first load: what lives long is taken out of the collector's sight, what is free goes back."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def settle() -> None:
    """Collect once, exempt the survivors from later collections, and return free heap pages to the system.

    The objects of a cluster live as long as the cluster; without this every full collection walks over all of them
    in the middle of some sync.
    """
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
