"""The reason why an ordinary user gets no user namespace, as a sentence with the remedy."""

from __future__ import annotations

import errno

import pytest

from isthmus_lab import privileges

APPARMOR = "kernel/apparmor_restrict_unprivileged_userns"


@pytest.mark.parametrize(
    ("code", "settings", "expected"),
    [
        (errno.ENOSPC, {"user/max_user_namespaces": "0"}, "user.max_user_namespaces=0"),
        (errno.EPERM, {"kernel/unprivileged_userns_clone": "0"}, "sysctl kernel.unprivileged_userns_clone=1"),
        (
            errno.EPERM,
            {"kernel/unprivileged_userns_clone": "1", APPARMOR: "1"},
            f"sysctl {APPARMOR.replace('/', '.')}=0",
        ),
        (
            errno.EPERM,
            {"kernel/unprivileged_userns_clone": "1", APPARMOR: "0"},
            "a container or sandbox may forbid them",
        ),
        (errno.ENOSYS, {}, "a container or sandbox may forbid them"),
    ],
)
def test_a_refusal_names_the_setting_it_comes_from(code: int, settings: dict[str, str], expected: str) -> None:
    found = privileges.sentence(code, lambda name: settings.get(name, ""))

    assert expected in found
    assert found.endswith("or run this as root")
