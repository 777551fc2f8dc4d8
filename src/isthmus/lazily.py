"""Names of a package whose modules are imported when they are used (PEP 562).

For packages some of whose modules import gRPC, aiohttp or cryptography: a command that uses a pure function of such a
package starts without them. The package writes its imports under ``TYPE_CHECKING``, which keeps types and the order of
the layers, and the modules of the names beside them::

    if TYPE_CHECKING:
        from isthmus.kube.client import Client
    else:
        __getattr__ = names(__name__, {"client": ("Client",)})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def names(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` for names by their module, relative to the package.

    A name may be a module of its own in a package: ``{"records": ("endpoints",)}``.
    """
    places = {name: module for module, group in modules.items() for name in group}

    def resolve(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{places[name]}")
        return getattr(module, name) if hasattr(module, name) else import_module(f"{module.__name__}.{name}")

    return resolve
