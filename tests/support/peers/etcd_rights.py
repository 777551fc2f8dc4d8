"""What somebody may do in an etcd: run in a network that reaches it.

    etcd_rights.py '{"endpoint": …, "tls": [ca, certificate, key], "user": [name, password], "prefixes": […]}'

Prints for each prefix what a read and a write came to: "ok", or the kind of the error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

from isthmus.etcd import Compare, Credentials, EtcdError, Put, Session, Tls
from isthmus.reflector import Transient


async def main(asked: dict[str, Any]) -> dict[str, list[str]]:
    """Try them all."""
    tls = Tls(*asked["tls"])
    credentials = Credentials(*asked["user"]) if asked["user"] else None
    async with Session([asked["endpoint"]], tls=tls, credentials=credentials, timeout=60.0) as session:
        return {
            prefix: [await outcome(session.list(prefix)), await outcome(write(session, f"{prefix}test"))]
            for prefix in asked["prefixes"]
        }


async def write(session: Session, key: str) -> None:
    """Ask for it in a transaction whose condition does not hold: etcd checks the right, and writes nothing."""
    await session.txn([Compare(key, "version", "==", 1 << 40)], [Put(key, b"")])


async def outcome(call: Awaitable[Any]) -> str:
    try:
        await call
    except (EtcdError, Transient) as why:
        return type(why).__name__
    return "ok"


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
