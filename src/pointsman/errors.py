"""Every error that Pointsman raises on purpose.

PointsmanError
├── ConfigError        a list of problems, each naming a field or flag and its rule
├── KubeError          the API server or the credentials for it
│   ├── Unauthorized   401/403: names what was refused
│   ├── Gone           410: the resourceVersion is too old, list again
│   ├── Throttled      429: wait, carries retry-after
│   ├── RequestFailed  no response, or one that cannot be read (in kube/client.py)
│   ├── Unreadable     something that does not follow the protocol (in kube/codec.py)
│   │   └── TooLarge   a response beyond the limit: request less at a time
│   └── Idle           a watch without events (in kube/watch.py)
└── KernelError        the kernel or a tool refused
    ├── NotSupported   a feature is missing; names the kernel option or package
    ├── Busy           a lock is held by another process; try again
    ├── Rejected       a batch was refused; names the object at fault where known
    └── SyncFailed     a whole sync, with what the loop needs to retry (in sync/reconcile.py)
"""

from __future__ import annotations

import errno as codes
from collections.abc import Sequence

_TEMPORARY = frozenset(
    (codes.ENOMEM, codes.ENOBUFS, codes.EAGAIN, codes.EINTR, codes.EMFILE, codes.ENFILE, codes.ETIMEDOUT)
)


class PointsmanError(Exception):
    """Root of all errors raised on purpose; the message says what to do."""


class ConfigError(PointsmanError):
    """The configuration is unusable; `problems` lists every reason at once, `warnings` what else was found."""

    def __init__(self, problems: Sequence[str], warnings: Sequence[str] = ()) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.warnings = tuple(problems), tuple(warnings)


class KubeError(PointsmanError):
    """A request to the API server failed; `status` is the HTTP status, 0 when there was no response."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Unauthorized(KubeError):
    """The credentials were refused."""


class Gone(KubeError):
    """The resourceVersion to resume from is no longer kept by the server."""


class Throttled(KubeError):
    """The server requires a pause of `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message, 429)
        self.retry_after = retry_after


class KernelError(PointsmanError):
    """The kernel, or a tool that programs it, refused; `errno` where one is known."""

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno

    @property
    def is_temporary(self) -> bool:
        """Whether the cause is temporary (memory, descriptors, a timeout), so that the same request may succeed later."""
        return self.errno in _TEMPORARY


class NotSupported(KernelError):
    """The running kernel or an installed tool lacks something we need."""


class Busy(KernelError):
    """A lock is held by another process."""


class Rejected(KernelError):
    """A batch was refused as a whole; `objects` names what is at fault where that is known."""

    def __init__(self, message: str, errno: int = 0, objects: Sequence[str] = ()) -> None:
        super().__init__(message, errno)
        self.objects = tuple(objects)
