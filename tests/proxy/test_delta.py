"""The protocol as state, against a model of Envoy: whatever happens in between, both come to the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.model.xds import Resource, ResourceKey
from isthmus.proxy.delta import Request, Resources, Response, Stream
from isthmus.proxy.resources import resource

BAD = "bad"
NAMES = ["a", "b", "c", "d"]


def row(kind: str, name: str, version: str) -> Resource:
    return Resource(type="cluster" if kind == "cluster" else "endpoints", name=name, version=version, body=b"")


class Sent:
    """Resources without the rules of Envoy's messages, which these rows are not."""

    def __init__(self) -> None:
        self.resources = Resources()

    def put(self, each: Resource) -> None:
        self.resources._in_force[each.type][each.name] = each
        self.resources.refused.pop((each.type, each.name), None)


class ModelEnvoy:
    """Accepts what is not bad, and asks for the endpoints of its clusters; a response with one bad row is refused."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.has: dict[ResourceKey, str] = {}
        self.responses = 0
        stream.received(Request("cluster"))

    def take(self, response: Response) -> None:
        self.responses += 1
        if any(each.version == BAD for each in response.rows):
            self.stream.received(Request(response.type, nonce=response.nonce, error="bad"))
            return
        asked = [each.name for each in response.rows if ("cluster", each.name) not in self.has]
        for each in response.rows:
            self.has[each.type, each.name] = each.version
        for name in response.removed:
            self.has.pop((response.type, name), None)
        if response.type == "cluster":
            if asked:
                self.stream.received(Request("endpoints", subscribe=asked))
            if response.removed:
                self.stream.received(Request("endpoints", unsubscribe=response.removed))
                for name in response.removed:
                    self.has.pop(("endpoints", name), None)
        self.stream.received(Request(response.type, nonce=response.nonce))

    def settle(self) -> None:
        for _ in range(200):
            response = self.stream.next()
            if response is None:
                if not self.stream.waiting:
                    return
                self.stream.overdue()
                continue
            self.take(response)
        raise AssertionError(f"no end: {self.stream!r}")


changes = st.lists(
    st.tuples(st.sampled_from(["cluster", "endpoints"]), st.sampled_from(NAMES), st.sampled_from(["1", "2", BAD, ""])),
    max_size=30,
)


@given(changes, st.sets(st.integers(0, 30)))
def test_envoy_comes_to_have_the_last_good_of_every_row(steps: list[tuple[str, str, str]], settled: set[int]) -> None:
    sent = Sent()
    stream = Stream(sent.resources)
    envoy = ModelEnvoy(stream)
    wanted: dict[ResourceKey, str] = {}
    for number, (kind, name, version) in enumerate(steps):
        each = row(kind, name, version)
        key = (each.type, each.name)
        if version:
            sent.put(each)
            wanted[key] = version
        else:
            sent.resources.delete(key)
            wanted.pop(key, None)
        stream.changed([key])
        if number in settled:
            envoy.settle()
    envoy.settle()
    good = {key: version for key, version in wanted.items() if version != BAD}
    asked = {key: version for key, version in good.items() if key[0] == "cluster" or ("cluster", key[1]) in envoy.has}
    assert {key: version for key, version in envoy.has.items() if wanted.get(key) != BAD} == asked
    assert set(sent.resources.refused) <= {key for key, version in wanted.items() if version == BAD}


def test_one_bad_of_a_hundred_is_found_in_few_responses() -> None:
    sent = Sent()
    for number in range(100):
        sent.put(row("cluster", f"c{number}", BAD if number == 63 else "1"))
    envoy = ModelEnvoy(Stream(sent.resources))
    envoy.settle()
    assert len(envoy.has) == 99
    assert list(sent.resources.refused) == [("cluster", "c63")]
    assert envoy.responses <= 20


def test_a_name_that_is_not_there_is_answered_so_that_envoy_does_not_wait() -> None:
    stream = Stream(Resources())
    stream.received(Request("routes", subscribe=("none",)))
    response = stream.next()
    assert response is not None
    assert (list(response.rows), list(response.removed)) == ([], ["none"])


def test_an_envoy_that_connects_again_is_sent_what_differs_and_no_more() -> None:
    sent = Sent()
    for name, version in (("a", "1"), ("b", "2"), ("d", "1")):
        sent.put(row("cluster", name, version))
    stream = Stream(sent.resources)
    stream.received(Request("cluster", initial={"a": "1", "b": "1", "c": "1"}))
    first = stream.next()
    assert first is not None
    assert [each.name for each in first.rows] == ["b", "d"]
    stream.received(Request("cluster", nonce=first.nonce))
    second = stream.next()
    assert second is not None
    assert list(second.removed) == ["c"]
    stream.received(Request("cluster", nonce=second.nonce))
    assert stream.next() is None


def test_listeners_and_routes_wait_until_the_clusters_are_taken() -> None:
    sent = Sent()
    stream = Stream(sent.resources)
    stream.received(Request("cluster"))
    first = stream.next()
    assert first is not None
    stream.received(Request("listener"))
    assert stream.next() is None
    stream.received(Request("cluster", nonce=first.nonce))
    second = stream.next()
    assert second is not None
    assert second.type == "listener"


def test_listeners_wait_for_endpoints_that_envoy_does_not_ask_for_no_longer_than_for_an_answer() -> None:
    sent = Sent()
    sent.put(row("cluster", "a", "1"))
    sent.put(row("endpoints", "a", "1"))
    stream = Stream(sent.resources)
    stream.received(Request("cluster"))
    stream.received(Request("listener"))
    first = stream.next()
    assert first is not None
    stream.received(Request("cluster", nonce=first.nonce))
    assert stream.next() is None
    stream.overdue()
    assert not stream.waiting
    second = stream.next()
    assert second is not None
    assert second.type == "listener"


def test_listeners_do_not_wait_for_endpoints_of_a_cluster_that_was_refused() -> None:
    sent = Sent()
    sent.put(row("cluster", "a", BAD))
    sent.put(row("endpoints", "a", "1"))
    stream = Stream(sent.resources)
    stream.received(Request("cluster"))
    stream.received(Request("listener"))
    first = stream.next()
    assert first is not None
    stream.received(Request("cluster", nonce=first.nonce, error="bad"))
    second = stream.next()
    assert second is not None
    assert second.type == "listener"


def routes(*rules: tuple[str, str]) -> Resource:
    """Routes by (name, prefix)."""
    found = [{"name": name, "match": {"prefix": prefix}, "direct_response": {"status": 200}} for name, prefix in rules]
    return resource("routes", "echo", virtual_hosts=[{"name": "all", "domains": ["*"], "routes": found}])


def test_a_refused_resource_does_not_bring_back_one_of_its_name_that_was_deleted() -> None:
    resources, a, b = Resources(), ("HTTPRoute demo/a, rule 1", "/"), ("HTTPRoute demo/b, rule 1", "/b")
    deleted, refused = routes(a), routes(a, b)
    assert resources.put(deleted)
    resources.accept(deleted)
    resources.delete(("routes", "echo"))
    assert resources.put(refused)
    resources.reject(refused, "no")
    assert resources.get(("routes", "echo")) is None
    assert resources.refused["routes", "echo"].changed == ()


def test_of_refused_routes_the_objects_are_named_that_differ_from_what_was_accepted() -> None:
    resources = Resources()
    a, b = ("HTTPRoute demo/a, rule 1", "/"), ("HTTPRoute demo/b, rule 1", "/b")

    def refused(row: Resource) -> tuple[str, tuple[str, ...]]:
        assert resources.put(row)
        resources.reject(row, "no")
        [found] = resources.refused.values()
        return found.owner, found.changed

    assert refused(routes(a, b)) == ("", ())  # nothing was accepted: each may be the cause
    good = routes(a)
    assert resources.put(good)
    resources.accept(good)
    assert refused(routes(a, b)) == ("HTTPRoute demo/b", ("HTTPRoute demo/b",))
    changed = ("HTTPRoute demo/a, rule 1", "/other")
    assert refused(routes(b, changed)) == ("HTTPRoute demo/b", ("HTTPRoute demo/b", "HTTPRoute demo/a"))
    unnamed = resource("routes", "echo", virtual_hosts=[{"name": "", "domains": ["*"]}])
    assert not resources.put(unnamed)  # by the rules of Envoy's API
    assert [each.changed for each in resources.refused.values()] == [()]
