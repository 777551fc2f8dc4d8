"""``without_user_namespaces.py COMMAND…``: unshare(2) and clone(2) make it no user namespaces, as in a sandbox.

A seccomp filter: no other process sees a difference, as with the sysctls that do the same for a machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from typing import Final

CLONE_NEWUSER: Final = 0x10000000
CALLS: Final = {"x86_64": (272, 56), "aarch64": (97, 220)}
"""unshare and clone; both have flags as their first argument."""
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def program() -> bytes:
    """Instructions of seccomp(2): code, jump if true, jump if false, operand."""
    unshare, clone = CALLS[os.uname().machine]
    steps = (
        (LOAD, 0, 0, 0),  # the number of the call
        (EQUAL, 1, 0, unshare),
        (EQUAL, 0, 3, clone),
        (LOAD, 0, 0, 16),  # the low half of its first argument
        (ANY_BIT, 0, 1, CLONE_NEWUSER),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    )
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def main() -> None:
    """Install the filter, and become the command."""
    code = program()
    held = ctypes.create_string_buffer(code, len(code))
    chain = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), none, none, none) or libc.prctl(
        PR_SET_SECCOMP, ctypes.c_ulong(FILTER), ctypes.c_char_p(chain), none, none
    ):
        raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
