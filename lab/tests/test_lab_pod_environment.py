"""Environment, image and status of a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus_lab import images
from isthmus_lab.images import Image, UnknownImage
from isthmus_lab.layout import Cluster, Lab
from isthmus_lab.node import environment, status, volumes
from isthmus_lab.node.config_data import ConfigData, ConfigRef, Missing, named
from isthmus_lab.node.objects import Container, Pod, Probe
from isthmus_lab.node.probes import eager, port_of
from isthmus_lab.node.status import ContainerState, Running, Terminated, Waiting


def pod(**spec: Any) -> Pod:
    meta = {"name": "web-0", "namespace": "demo", "uid": "u1", "labels": {"app": "web"}}
    body = {
        "metadata": meta,
        "spec": {"containers": [{"name": "main", "image": "busybox"}], "nodeName": "c1-n1", **spec},
    }
    return msgspec.convert(body, Pod)


ADDRESSES = environment.Addresses(("10.1.1.2", "fd00:10:1:1::2"), ("172.30.1.11", "fd00:172:30:1::11"))

BAGS: ConfigData = {
    ConfigRef("configmap", "settings"): {"COLOUR": b"blue", "MOTTO": b"go"},
    ConfigRef("secret", "keys"): {"password": b"hunter2"},
}


def container_env(container: dict[str, Any], **spec: Any) -> dict[str, str]:
    made = msgspec.convert({"name": "main", **container}, Container)
    return environment.variables(pod(**spec), made, image={"PATH": "/bin"}, data=BAGS, addresses=ADDRESSES)


def field(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web-0"),
        ("metadata.namespace", "demo"),
        ("metadata.labels['app']", "web"),
        ("spec.nodeName", "c1-n1"),
        ("status.podIP", "10.1.1.2"),
        ("status.podIPs", "10.1.1.2,fd00:10:1:1::2"),
        ("status.hostIP", "172.30.1.11"),
        ("status.hostIPs", "172.30.1.11,fd00:172:30:1::11"),
    ],
)
def test_a_variable_can_be_a_field_of_the_pod(path: str, value: str) -> None:
    assert container_env({"env": [field(path)]})["X"] == value


def test_a_field_that_is_not_known_is_named() -> None:
    with pytest.raises(environment.UnknownField, match=r"env X: fieldRef 'spec\.secret'"):
        container_env({"env": [field("spec.secret")]})


def test_a_variable_may_refer_to_earlier_ones() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$$(A)-$(NONE)"}]
    assert container_env({"env": env})["B"] == "1-$(A)-$(NONE)"


def test_variables_come_from_config_maps_and_secrets() -> None:
    env = [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}}]
    env += [{"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "nope", "key": "x", "optional": True}}}]
    got = container_env({"env": env, "envFrom": [{"prefix": "S_", "configMapRef": {"name": "settings"}}]})
    assert (got["PASSWORD"], got["S_COLOUR"], got["S_MOTTO"], "NONE" in got) == ("hunter2", "blue", "go", False)


def test_a_key_that_is_missing_is_named() -> None:
    env = [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "SIZE"}}}]
    with pytest.raises(Missing, match="env X: configmap settings has no key SIZE"):
        container_env({"env": env})


def with_volumes(*given: dict[str, Any], **container: Any) -> Pod:
    main = {"name": "main", "image": "busybox", "volumeMounts": [{"name": "v", "mountPath": "/v"}], **container}
    return pod(containers=[main], volumes=list(given))


def content(*given: dict[str, Any]) -> volumes.Content:
    made = with_volumes(*given)
    fields = environment.fields(made, ADDRESSES)
    return volumes.contents(made, BAGS, fields, token="T")["v"]


def test_volumes_have_what_config_maps_secrets_and_fields_say_and_secrets_are_private() -> None:
    chosen = {"name": "v", "configMap": {"name": "settings", "items": [{"key": "COLOUR", "path": "a/colour"}]}}
    assert content(chosen) == {"a/colour": (b"blue", 0o644)}
    assert content({"name": "v", "secret": {"secretName": "keys"}}) == {"password": (b"hunter2", 0o600)}
    name = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
    sources = [
        {"secret": {"name": "keys"}},
        {"downwardAPI": {"items": [name]}},
        {"serviceAccountToken": {"path": "token"}},
    ]
    assert content({"name": "v", "projected": {"sources": sources}}) == {
        "password": (b"hunter2", 0o600),
        "name": (b"web-0", 0o644),
        "token": (b"T", 0o600),
    }


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        (
            {"name": "v", "nfs": {"server": "x", "path": "/"}},
            "volume v: of a kind that this node does not know",
        ),
        ({"name": "v", "configMap": {"name": "settings", "items": [{"key": "NO", "path": "x"}]}}, "has no key NO"),
        ({"name": "v", "configMap": {"name": "settings", "items": [{"key": "MOTTO", "path": "../x"}]}}, "leads out"),
    ],
)
def test_a_volume_that_cannot_be_made_is_named(volume: dict[str, Any], message: str) -> None:
    with pytest.raises(Missing, match=message):
        content(volume)


def test_a_volume_follows_what_it_is_made_of_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    first: dict[str, volumes.Content] = {"v": {"a": (b"1", 0o644), "b": (b"2", 0o600), "c": (b"3", 0o644)}, "empty": {}}
    volumes.write(tmp_path, first)
    (tmp_path / "empty" / "own").write_text("the pod's")
    same = (tmp_path / "v" / "c").stat().st_ino
    volumes.write(tmp_path, {"v": {"b": (b"two", 0o600), "c": (b"3", 0o644)}, "empty": {}}, before=first)
    assert {path.name: path.read_text() for path in (tmp_path / "v").iterdir()} == {"b": "two", "c": "3"}
    assert ((tmp_path / "v" / "b").stat().st_mode & 0o777, (tmp_path / "v" / "c").stat().st_ino) == (0o600, same)
    assert (tmp_path / "empty" / "own").read_text() == "the pod's"


def test_a_mount_of_a_volume_that_is_not_there_is_named() -> None:
    made = with_volumes()
    with pytest.raises(Missing, match="container main: volumeMount v: the pod has no such volume"):
        volumes.binds(made, made.spec.containers[0], Path("/x"), Cluster(Lab(), 1))


def test_a_pod_waits_for_what_it_names_unless_it_is_optional() -> None:
    made = with_volumes(
        {"name": "v", "configMap": {"name": "a", "optional": True}}, envFrom=[{"secretRef": {"name": "b"}}]
    )
    assert named(made) == {ConfigRef("configmap", "a"): True, ConfigRef("secret", "b"): False}


def test_resolv_conf_names_the_cluster_dns_as_on_any_cluster() -> None:
    assert environment.resolv_conf(pod(), "10.96.0.10") == (
        "search demo.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
    )


def test_a_pod_of_a_headless_service_knows_its_full_name() -> None:
    container_env = environment.hosts(pod(subdomain="db"), ADDRESSES.pod)
    assert "10.1.1.2\tweb-0.db.demo.svc.cluster.local\tweb-0\n" in container_env
    assert "fd00:10:1:1::2\tweb-0.db.demo.svc.cluster.local\tweb-0\n" in container_env


@pytest.mark.parametrize(
    "name", ["busybox", "busybox:1.36", "docker.io/library/busybox@sha256:00", "localhost:5000/busybox:x"]
)
def test_an_image_is_known_without_registry_tag_and_digest(name: str) -> None:
    assert images.find(name) == images.BUILT_IN["busybox"]


def test_an_image_without_a_stand_in_is_named() -> None:
    with pytest.raises(UnknownImage, match="image 'acme/shop:2' has no stand-in"):
        images.find("acme/shop:2")


def test_a_stand_in_names_the_package_it_needs() -> None:
    own = {"shop": Image(("no-such-program",), needs="no-such-program", package="shop-tools")}
    with pytest.raises(UnknownImage, match="needs no-such-program: apt-get install shop-tools"):
        images.find("shop:1", own=own)


def test_a_pattern_counts_where_no_name_does_and_the_first_that_matches_wins() -> None:
    shop, rest = Image(("shop",)), images.STAND_IN
    own = {"acme/shop*": shop, "*": rest}
    assert images.find("registry.example.com/acme/shop-api:2", own=own) == shop
    assert images.find("other/thing", own=own) == rest
    assert images.find("busybox:1.36", own=own) == images.BUILT_IN["busybox"]


def test_a_pattern_stands_in_for_a_built_in_image_whose_program_is_missing() -> None:
    own = {"shop": Image(("no-such-program",), needs="no-such-program", package="p"), "*": images.STAND_IN}
    assert images.find("shop:1", own=own) == images.STAND_IN


def test_command_and_args_replace_those_of_the_image() -> None:
    image = Image(("serve",), ("--all",))
    assert images.command(image, None, None) == ["serve", "--all"]
    assert images.command(image, None, ["--one"]) == ["serve", "--one"]
    assert images.command(image, ["sh"], None) == ["sh"]


def state(now: status.State, *, ready: bool = False, last: Terminated | None = None) -> ContainerState:
    return ContainerState("main", "busybox", now, last, ready)


ENDED = Terminated(0, "t0", "t1")
FAILED = Terminated(3, "t0", "t1")


@pytest.mark.parametrize(
    ("policy", "now", "phase"),
    [
        ("Always", Waiting(), "Pending"),
        ("Always", Running(7, "t0"), "Running"),
        ("Always", ENDED, "Running"),
        ("Never", ENDED, "Succeeded"),
        ("Never", FAILED, "Failed"),
        ("OnFailure", FAILED, "Running"),
    ],
)
def test_the_phase_follows_from_the_containers_and_the_policy(policy: str, now: status.State, phase: str) -> None:
    assert status.phase(pod(restartPolicy=policy), [state(now)]) == phase


def test_a_container_that_waits_to_be_restarted_keeps_its_pod_running() -> None:
    assert status.phase(pod(), [state(Waiting("CrashLoopBackOff"), last=FAILED)]) == "Running"


def body(*states: ContainerState) -> dict[str, Any]:
    return status.body(pod(), states, inits=[], addresses=ADDRESSES, started="t0", transitions={"Ready": "t5"})


def test_a_pod_is_ready_when_all_its_containers_are() -> None:
    up, down = state(Running(7, "t0"), ready=True), state(Running(8, "t0"))
    assert status.conditions(body(up, up))["Ready"] == "True"
    assert status.conditions(body(up, down))["Ready"] == "False"
    assert status.conditions(body())["Ready"] == "False"


def test_a_status_has_why_a_container_waits_and_how_it_ended() -> None:
    container_env = body(state(Waiting("CrashLoopBackOff", "back-off 2s"), last=FAILED))["containerStatuses"][0]
    assert container_env["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 2s"}}
    assert container_env["lastState"]["terminated"]["exitCode"] == 3
    assert container_env["lastState"]["terminated"]["reason"] == "Error"


def test_a_probe_finds_a_port_by_name_and_names_one_that_is_missing() -> None:
    container = msgspec.convert({"name": "main", "ports": [{"name": "http", "containerPort": 8080}]}, Container)
    assert port_of("http", container) == 8080
    with pytest.raises(ValueError, match="container main has no port named 'grpc'"):
        port_of("grpc", container)


def test_a_readiness_probe_is_asked_more_often_until_it_first_succeeds() -> None:
    assert eager(Probe(period_seconds=1)) == [0.05, 0.1, 0.2, 0.4, 0.8]
