"""The certificate that a server shows: one TLS handshake and no call."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from isthmus.etcd.transport import Tls
from isthmus.reflector import Transient

TIMEOUT: Final = 5.0
"""Seconds for the connection and the handshake."""
PORT: Final = 2379


async def served_certificate(endpoint: str, tls: Tls) -> bytes:
    """The certificate that a server shows, as PEM, not verified.

    Transient if there is no handshake, as where the server refuses our certificate in it.
    """
    try:
        async with asyncio.timeout(TIMEOUT):
            return await _served_certificate(endpoint, tls)
    except (OSError, ValueError, TimeoutError) as error:  # SSLError is an OSError
        raise Transient(f"{endpoint}: no handshake: {error}") from None


async def _served_certificate(endpoint: str, tls: Tls) -> bytes:
    url = urlsplit(endpoint)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it reads no authorities, which would take long
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent to it
    context.set_alpn_protocols(["h2"])
    if tls.cert_file:
        await asyncio.to_thread(context.load_cert_chain, tls.cert_file, tls.key_file)
    name = tls.server_name or url.hostname
    _, writer = await asyncio.open_connection(url.hostname, url.port or PORT, ssl=context, server_hostname=name)
    try:
        encoded = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(encoded).encode() if encoded else b""
