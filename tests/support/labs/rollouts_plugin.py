"""Writes of Argo Rollouts' Gateway API plugin (v0.15) to an HTTPRoute, as the API server receives them.

The plugin (argoproj-labs/rollouts-plugin-trafficrouter-gatewayapi, pkg/plugin/httproute.go and labels.go) reads the
route and updates it whole, with the resourceVersion that it read, and begins again after a conflict. It finds backends
by name alone: group and kind may be any. Rules that it adds for headers have a backend of the kind Service.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from labs.lab_running import Running

LABEL: Final = "rollouts.argoproj.io/gatewayapi-canary"
"""On a route whose canary has a weight; its value is ``in-progress``."""
TRIES: Final = 5
"""Number of updates in client-go's ``retry.DefaultRetry``."""
Route = dict[str, Any]


class Plugin:
    """The plugin of a Rollout in a cluster of a lab."""

    def __init__(self, lab: Running, route: str, *, stable: str, canary: str, header_route: str = "") -> None:
        """``header_route``: the name in ``spec.strategy.canary.trafficRouting.managedRoutes``."""
        self.lab = lab
        self._path = f"/apis/gateway.networking.k8s.io/v1/namespaces/demo/httproutes/{route}"
        self.stable = stable
        self.canary = canary
        self.header_route = header_route
        self.conflicts = 0

    def read(self) -> Route:
        """Read the route."""
        route: Route = json.loads(self.lab.kubectl("get", "--raw", self._path))
        return route

    def set_weight(self, weight: int, *, read: Route | None = None) -> Route:
        """Give the canary so many percent, and the stable Service the others, in every rule that has both."""

        def change(route: Route) -> None:
            found = set()
            for rule in route["spec"]["rules"]:
                if self._is_managed(rule):
                    continue
                for backend in rule.get("backendRefs", ()):
                    if backend["name"] in (self.stable, self.canary):
                        backend["weight"] = weight if backend["name"] == self.canary else 100 - weight
                        found.add(backend["name"])
            assert found == {self.stable, self.canary}, "the plugin reports an error, and writes nothing"
            labels = route["metadata"].setdefault("labels", {})
            labels.pop(LABEL, None)
            if weight:
                labels[LABEL] = "in-progress"

        return self._update(change, read)

    def set_header_route(self, header: str, value: str) -> Route:
        """Add a rule for each that has both Services: requests with the header go to the canary."""

        def change(route: Route) -> None:
            both = {self.stable, self.canary}
            rules = route["spec"]["rules"]
            split = [rule for rule in rules if both <= {each["name"] for each in rule.get("backendRefs", ())}]
            kept = [rule for rule in rules if not self._is_managed(rule, header)]
            added = [self._header_rule(rule, at, header, value) for at, rule in enumerate(split)]
            route["spec"]["rules"] = kept + added

        return self._update(change)

    def remove_managed_routes(self) -> Route:
        """Remove the rules for headers."""

        def change(route: Route) -> None:
            route["spec"]["rules"] = [rule for rule in route["spec"]["rules"] if not self._is_managed(rule)]

        return self._update(change)

    def _is_managed(self, rule: dict[str, Any], header: str = "") -> bool:
        """True if the rule is named as one of the plugin's, or has the canary alone and, if given, matches a header."""
        base, _, number = rule.get("name", "").rpartition("-")
        named = self.header_route in (rule.get("name"), base if number.isdigit() else None)
        alone = [each["name"] for each in rule.get("backendRefs", ())] == [self.canary]
        headers = {each["name"] for match in rule.get("matches", ()) for each in match.get("headers", ())}
        return named or (alone and (not header or header in headers))

    def _header_rule(self, rule: dict[str, Any], at: int, header: str, value: str) -> dict[str, Any]:
        [port] = [each.get("port") for each in rule["backendRefs"] if each["name"] == self.canary]
        extra = {"type": "Exact", "name": header, "value": value}
        filters = {"filters": rule["filters"]} if rule.get("filters") else {}
        return filters | {
            "name": f"{self.header_route}-{at}" if at else self.header_route,
            "matches": [
                {**match, "headers": [*match.get("headers", ()), extra]} for match in rule.get("matches") or [{}]
            ],
            "backendRefs": [{"group": "", "kind": "Service", "name": self.canary, "port": port}],
        }

    def _update(self, change: Callable[[Route], None], read: Route | None = None) -> Route:
        """Update the route, at first as it was ``read``, and return the stored object."""
        for _ in range(TRIES):
            route = read if read is not None else self.read()
            read = None
            change(route)
            try:
                output = self.lab.kubectl("replace", "--raw", self._path, "-f", "-", stdin=json.dumps(route))
            except AssertionError as error:
                if "the object has been modified" not in str(error):
                    raise
                self.conflicts += 1
            else:
                stored: Route = json.loads(output)
                return stored
        raise AssertionError(f"{TRIES} conflicts")
