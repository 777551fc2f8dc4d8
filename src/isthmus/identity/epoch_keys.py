"""Keys of the present epochs for every peer, from the files of the Secret ``isthmus-pair-keys``; no file, no clock.

The last usable content of a file stays in use while the file is not usable, and ends with its days.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Final

from msgspec import Struct

from isthmus.identity import keys, pairs
from isthmus.identity.pairs import Pair
from isthmus.identity.schedule import Schedule
from isthmus.model.names import ClusterName

NO_FILES: Final[Mapping[str, str]] = {}


class KeySet(Struct, frozen=True, gc=False, kw_only=True):
    """Keys for the kernel's maps ``sign_keys`` and ``verify_keys``, by cluster id."""

    sign: dict[tuple[int, int], bytes] = {}
    """Keys by which calls to a cluster are signed, by cluster id and number."""
    verify: dict[tuple[int, int], bytes] = {}
    """Keys by which calls of a cluster are verified, by cluster id and number."""
    epoch: int
    """The present one."""
    until: int
    """Unix time at which other keys are due."""

    def __repr__(self) -> str:
        return f"<KeySet sign {sorted(self.sign)}, verify {sorted(self.verify)}>"  # keys are in no log


class EpochKeys:
    """Derives the keys of a moment, from what :meth:`update` was last given."""

    def __init__(self) -> None:
        self._pairs: dict[ClusterName, Pair] = {}
        self._unusable: dict[str, str] = {}
        self._derived: dict[tuple[bytes, int], bytes] = {}
        """Keys that were derived last, by secret and epoch: one epoch later most are the same."""

    def __repr__(self) -> str:
        return f"<EpochKeys of {', '.join(sorted(self._pairs)) or 'no peer'}>"

    def update(self, files: Mapping[str, bytes], unreadable: Mapping[str, str] = NO_FILES) -> None:
        """Replace the secrets by those in files that are called as peers are.

        ``unreadable``: reasons why a file cannot be read, by its name.
        """
        decoded, self._unusable = {}, dict(unreadable)
        for name, content in files.items():
            try:
                decoded[ClusterName(name)] = pairs.decode(content)
            except ValueError as error:
                self._unusable[name] = str(error)
        kept = {name: pair for name, pair in self._pairs.items() if name in self._unusable}
        self._pairs = kept | decoded

    def peer_keys(self) -> dict[ClusterName, Schedule]:
        """Public keys of the peers whose secrets are known."""
        return {name: pair.peer for name, pair in self._pairs.items()}

    def current(self, now: float, ids: Mapping[ClusterName, int]) -> KeySet:
        """Keys at a Unix time, of the peers whose ids are given; a peer without secrets of the day has none."""
        epoch, epochs = keys.epoch_at(now), keys.kept_epochs(now)
        sign: dict[tuple[int, int], bytes] = {}
        verify: dict[tuple[int, int], bytes] = {}
        known, self._derived = self._derived, {}
        for name, number in ids.items():
            if (pair := self._pairs.get(name)) is None:
                continue
            for each, (secrets, found) in product(epochs, ((pair.send, sign), (pair.receive, verify))):
                if secret := secrets.get(keys.day_of(each)):
                    key = known.get((secret, each)) or keys.epoch_key(secret, each)
                    found[number, keys.number_of(each)] = self._derived[secret, each] = key
        return KeySet(sign=sign, verify=verify, epoch=epoch, until=(epoch + 1) * keys.EPOCH_SECONDS)

    def problems(self, now: float) -> list[str]:
        """Reasons why keys are missing or old, a sentence each."""
        day = keys.day_of(keys.epoch_at(now))
        ended = sorted(
            name for name, pair in self._pairs.items() if not {day} <= pair.send.keys() & pair.receive.keys()
        )
        sentences = [f"keys of signatures of {name} are not read anew: {why}" for name, why in self._unusable.items()]
        if ended:
            names = ", ".join(ended)
            sentences.append(f"keys of signatures of {names} have ended: isthmus keys has not written those of today")
        return sentences
