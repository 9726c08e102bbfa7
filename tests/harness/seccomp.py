"""Runs a command under the shipped seccomp profile: `python -m tests.harness.seccomp ACTION COMMAND...`.

ACTION is what happens to other system calls: `shipped` as the profile says, `kill` to notice every one of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

PROFILE = Path(__file__).parents[2] / "deploy/seccomp/pointsman.json"
LIBRARY = "libseccomp.so.2"
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000


def confine(*, kill: bool) -> None:
    """Load the profile for this process; the libraries translate names as container runtimes do."""
    profile = json.loads(PROFILE.read_text())
    library = ctypes.CDLL(LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    )
    library.seccomp_load.argtypes = (ctypes.c_void_p,)
    context = library.seccomp_init(_KILL_PROCESS if kill else _ERRNO | profile["defaultErrnoRet"])
    for name in (name for group in profile["syscalls"] for name in group["names"]):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number == -1:
            raise ValueError(f"{name}: no system call has this name")
        if number >= 0 and (error := library.seccomp_rule_add_array(context, _ALLOW, number, 0, None)):
            raise OSError(-error, name)
    if error := library.seccomp_load(context):
        raise OSError(-error, "the profile cannot be loaded")


if __name__ == "__main__":
    confine(kill=sys.argv[1] == "kill")
    os.execvp(sys.argv[2], sys.argv[2:])
