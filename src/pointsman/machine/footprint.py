"""Memory and file descriptors of the process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource

_M_ARENA_MAX = -8
"""mallopt's name for the number of heaps, from glibc's malloc.h."""

_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_MAX_DESCRIPTORS = 65536


def limit_arenas() -> None:
    """Use one heap for all threads, few of which allocate at the same time; call before threads start."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def raise_descriptor_limit() -> None:
    """Raise the limit of open files as far as the system allows, up to `_MAX_DESCRIPTORS`; call at start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def relax_gc() -> None:
    """Exempt imported modules from garbage collection and collect rarely; call after the imports.

    Nearly everything in the first list stays. With the interpreter's defaults, collections that find nothing take a
    third of the time of that list.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 10, 10)


def freeze_heap() -> None:
    """Collect once, exempt the survivors from later collections, and return free heap pages to the system.

    The objects of a cluster live as long as the cluster; otherwise every full collection visits all of them in the
    middle of a sync. Objects that an earlier call exempted are collected, too: after a restart inside the process
    they are garbage.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    trim_heap()


def trim_heap() -> None:
    """Return free heap pages to the system, after work that needed many of them for a moment.

    The collection empties the interpreter's free lists, whose entries keep pages in use.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
