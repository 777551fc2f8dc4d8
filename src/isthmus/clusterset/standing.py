"""Whether a peer is heard: out of what its reflectors and the signs of life beside them tell, one state and a reason.

It is heard while everything that follows it is connected and, where copies are followed, somebody makes them and
hears the peer himself. A publisher that is silent is a remark, and no more: what it said stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from isthmus.clusterset.card import Absence, Card
from isthmus.clusterset.identity import ClusterConfig, Description
from isthmus.reflector import State

DOWN: Final = State(synced=False, connected=False, lists=0, failures=0, last_failure="")


class Standing:
    """One peer's. ``lost`` is called when it cannot be heard: nobody is to wait for it then."""

    def __init__(
        self, card: Card, *, kinds: Collection[str], lifetime: float, remark: Callable[[ClusterConfig], str],
        lost: Callable[[], None],
    ) -> None:  # fmt: skip
        self._kinds = kinds
        self._remark = remark
        self._lost = lost
        self._states: dict[str, State] = {}
        self._failures = 0
        self._description: Description | None = None
        self._uncopied = ""
        self._silence = ""
        self.card = card
        self.absence = Absence(lifetime)
        self.config: ClusterConfig | None = None
        """What the peer says of itself, while it is followed."""

    def __repr__(self) -> str:
        return f"<Standing of {self.card.row.name}: {self.card.row.state}>"

    @property
    def remark(self) -> str:
        """What people should know of a peer that is followed."""
        return self._silence or (self._remark(self.config) if self.config is not None else "")

    @property
    def unheard(self) -> str:
        """Why who copies the peer does not hear it; nothing where he does, or nobody copies."""
        said = self._description
        if self.config is None or not self.config.capabilities.cached or said is None:  # Cilium's mirror says none
            return ""
        return self._uncopied or (f"the mirror has not heard it since {said.away}" if said.away else "")

    def heard(self) -> bool:
        """Whether it is."""
        return self.card.row.state in ("listing", "ready")

    def expect(self, *names: str) -> None:
        """These reflectors follow the peer from now on."""
        self._states |= dict.fromkeys(names, DOWN)

    def dismiss(self, name: str) -> None:
        """This one does no longer."""
        self._states.pop(name, None)

    def connected(self, name: str, state: State) -> None:
        """A reflector tells how it does."""
        self._states[name] = state
        if name == "config" and state.connected != self.card.row.connected:
            self.card.say(connected=state.connected)
        if not state.connected and state.last_failure:
            self.unreachable(state.last_failure)
        else:
            self._judge()

    def copied(self, why_not: str) -> None:
        """Whether anybody copies the peer."""
        if why_not != self._uncopied:
            self._uncopied = why_not
            self._judge()

    def described(self, said: Description | None) -> None:
        """What the peer says of itself, or who copies it of both; None where there is nothing of the kind."""
        self._description = said
        said = said or Description()
        self.card.say(
            network=said.network, region=said.region, zone=said.zone, gateways=said.gateways, version=said.version
        )
        self._judge()

    def published(self, silence: str) -> None:
        """Whether its publisher is there."""
        if silence != self._silence:
            self._silence = silence
            if self.card.row.state == "ready":
                self.card.say(reason=self.remark)

    def unreachable(self, reason: str, *, ago: float = 0.0) -> None:
        """It is not heard, since so many seconds."""
        self.absence.begin(ago=ago)
        self._failures += 1
        self._lost()
        row = self.card.row
        state = row.state if row.state in ("connecting", "refused") else "stale" if row.synced else "connecting"
        self.card.fail(reason, state=state, failures=self._failures)

    def _judge(self) -> None:
        if not all(each.connected for each in self._states.values()):
            return
        if reason := self.unheard:
            if reason != self.card.row.reason:
                self.unreachable(reason, ago=self._away_for())
            return
        self.absence.end()
        if self.card.row.state in ("stale", "connecting") and self.config is not None:
            ready = len(self.card.row.synced) == len(self._kinds)
            self.card.say(state="ready" if ready else "listing", reason=self.remark)

    def _away_for(self) -> float:
        return self._description.away_for(self.card.now()) if self._description is not None else 0.0
