"""Keys of an etcd, written as its cluster's own operator would: run in a network that reaches it.

    churn_etcd.py '{"endpoint": …, "tls": [ca, certificate, key], "user": [name, password]}'

Each line of standard input is a JSON list of a key and a value in base64, or null to delete the key. Prints "ok", or
the error, for each.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

from isthmus.etcd import Credentials, EtcdError, Session, Tls
from isthmus.reflector import Transient


async def main(asked: dict[str, Any]) -> None:
    """Write what is asked for, one key after the other."""
    session = Session(
        [asked["endpoint"]], tls=Tls(*asked["tls"]), credentials=Credentials(*asked["user"]), timeout=30.0
    )
    async with session:
        while line := await asyncio.to_thread(sys.stdin.readline):
            key, value = json.loads(line)
            try:
                await (session.delete(key) if value is None else session.put(key, base64.b64decode(value)))
                print("ok", flush=True)
            except (EtcdError, Transient) as error:
                print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
