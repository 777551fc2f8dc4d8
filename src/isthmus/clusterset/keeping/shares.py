"""Files of the folder of keys that each role receives in a Secret of its own. Pure.

No role holds another's key, and none the authority's: whoever reads the Secrets of one role can do what that role can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isthmus.clusterset.errors import PkiError
from isthmus.kube.objects.core import decoded_files

SHARES: Final[dict[str, tuple[str, ...]]] = {
    "isthmus-etcd-server": ("ca.crt", "server.crt", "server.key"),
    "isthmus-etcd-operator": ("ca.crt", "operator.crt", "operator.key", "operator.password"),
    "isthmus-etcd-mirror": ("ca.crt", "mirror.crt", "mirror.key", "mirror.password"),
    "isthmus-gateway": ("gateway.crt", "gateway.key"),
    "isthmus-node": ("node.crt", "node.key"),
}
"""Files of each role's Secret, as docs/install.md makes them by hand."""

PUBLIC_KEY: Final = "signing.pub"
"""X25519 public key by which peers derive keys of signatures, base64; made where identities of callers are enabled."""
OPTIONAL: Final[dict[str, tuple[str, ...]]] = {"isthmus-etcd-operator": (PUBLIC_KEY,)}
"""Files of a role's Secret that a folder may lack."""


def share(files: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    """Content of one role's Secret."""
    optional = [file for file in OPTIONAL.get(name, ()) if file in files]
    return {file: files[file] for file in (*SHARES[name], *optional)}


def decoded(data: Mapping[str, str] | None) -> dict[str, bytes]:
    """Files from the data of a Secret; PkiError names the one that is not valid base64."""
    try:
        return decoded_files(data)
    except ValueError as error:
        raise PkiError(str(error)) from None
