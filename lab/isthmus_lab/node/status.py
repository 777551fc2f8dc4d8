"""A pod's status from the states of its containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from isthmus_lab.node.environment import Addresses
from isthmus_lab.node.objects import Pod


class Waiting(Struct, frozen=True, tag=True):
    """Not started, or about to be started again."""

    reason: str = "ContainerCreating"
    message: str = ""


class Running(Struct, frozen=True, tag=True):
    """Its process runs."""

    pid: int
    started: str
    born: int = 0
    """Start time of the process in clock ticks since boot, which identifies it together with its pid."""


class Terminated(Struct, frozen=True, tag=True):
    """Its process has ended."""

    code: int
    started: str
    finished: str
    reason: str = ""
    message: str = ""


State = Waiting | Running | Terminated


class ContainerState(Struct, frozen=True):
    """State of one container."""

    name: str
    image: str
    now: State = Waiting()
    last: Terminated | None = None
    ready: bool = False
    started: bool = False
    restarts: int = 0
    unready: str = ""
    """Reason why its probes keep it unready; empty if they do not."""


Phase = Literal["Pending", "Running", "Succeeded", "Failed"]


def phase(pod: Pod, states: Sequence[ContainerState]) -> Phase:
    """Phase of the pod."""
    policy = pod.spec.restart_policy
    ended = [state.now.code for state in states if isinstance(state.now, Terminated)]
    if states and len(ended) == len(states) and policy != "Always":
        if all(code == 0 for code in ended):
            return "Succeeded"
        return "Failed" if policy == "Never" else "Running"
    started = any(not isinstance(state.now, Waiting) or state.last is not None for state in states)
    return "Running" if started else "Pending"


def body(
    pod: Pod,
    states: Sequence[ContainerState],
    *,
    inits: Sequence[ContainerState],
    addresses: Addresses,
    started: str,
    transitions: Mapping[str, str],
) -> dict[str, Any]:
    """The status to write. ``transitions`` has when each condition came into its state."""
    ready = bool(states) and all(state.ready for state in states)
    reason = "; ".join(f"{state.name}: {state.unready}" for state in states if state.unready and not state.ready)
    initialized = all(isinstance(state.now, Terminated) and state.now.code == 0 for state in inits)
    result: dict[str, Any] = {
        "phase": phase(pod, states),
        "hostIP": addresses.host[0],
        "hostIPs": [{"ip": ip} for ip in addresses.host],
        "startTime": started,
        "conditions": [
            _condition("PodScheduled", True, transitions),
            _condition("Initialized", initialized, transitions),
            _condition("ContainersReady", ready, transitions, reason),
            _condition("Ready", ready, transitions, reason),
        ],
        "containerStatuses": [_container(state) for state in states],
    }
    if inits:
        result["initContainerStatuses"] = [_container(state) for state in inits]
    result |= {"podIP": addresses.pod[0], "podIPs": [{"ip": ip} for ip in addresses.pod]}
    return result


def conditions(status: Mapping[str, Any]) -> dict[str, str]:
    """The state of each condition of a status."""
    return {each["type"]: each["status"] for each in status.get("conditions", ())}


def _condition(kind: str, holds: bool, transitions: Mapping[str, str], reason: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {"type": kind, "status": "True" if holds else "False"}
    if kind in transitions:
        result["lastTransitionTime"] = transitions[kind]
    if not holds and kind in ("Ready", "ContainersReady"):
        result |= {"reason": "ContainersNotReady", **({"message": reason} if reason else {})}
    return result


def _container(state: ContainerState) -> dict[str, Any]:
    result: dict[str, Any] = {
        "name": state.name,
        "image": state.image,
        "imageID": f"lab.isthmus.io/{state.image}",
        "ready": state.ready,
        "started": state.started,
        "restartCount": state.restarts,
        "state": _state(state.now),
        "lastState": _state(state.last) if state.last else {},
    }
    if isinstance(state.now, Running):
        result["containerID"] = f"process://{state.now.pid}"
    return result


def _state(state: State) -> dict[str, Any]:
    match state:
        case Waiting():
            return {"waiting": _reason(state.reason, state.message)}
        case Running():
            return {"running": {"startedAt": state.started}}
        case Terminated():
            reason = state.reason or ("Completed" if state.code == 0 else "Error")
            times = {"startedAt": state.started, "finishedAt": state.finished}
            return {"terminated": {"exitCode": state.code, **_reason(reason, state.message), **times}}


def _reason(reason: str, message: str) -> dict[str, str]:
    return {"reason": reason, "message": message} if message else {"reason": reason}
