"""What the process takes from its host: few heaps, no walks over what stays, enough descriptors."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource

_M_ARENA_MAX = -8
"""mallopt's name for the number of heaps, from glibc's malloc.h."""

_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_ENOUGH_DESCRIPTORS = 65536


def economise() -> None:
    """To be called before threads start: few of them allocate at the same time, so one heap serves them all."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def raise_descriptor_limit() -> None:
    """As many descriptors as the system allows, up to more than anybody needs; to be called at start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def expect_a_long_list() -> None:
    """To be called after the imports: what they made is never garbage, and neither is nearly all of what is listed next.

    With the interpreter's own numbers, the first list is walked over again and again to find nothing: a third of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 10, 10)


def settle() -> None:
    """Collect once, exempt the survivors from later collections, and return free heap pages to the system.

    The objects of a cluster live as long as the cluster; without this every full collection walks over all of them
    in the middle of some sync. What an earlier call exempted is looked at again: after a restart inside the process
    it is garbage.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Return free heap pages to the system, after work that needed many of them for a moment."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
