"""The configuration: what overrides what, and one clear line for everything a user can get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus import config
from isthmus.config import ClusterSection, Config, ConfigError, DatapathSection, EtcdSection, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "isthmus.toml"


def test_without_anything_it_is_the_defaults() -> None:
    assert load(None, environment={}) == Config()


def test_a_file_sets_fields_and_leaves_the_others(file: Path) -> None:
    file.write_text('[cluster]\nname = "c1"\nid = 7\n[etcd]\nendpoints = ["http://a:2379", "http://b:2379"]\n')
    found = load(file, environment={})
    assert found.cluster == ClusterSection(name="c1", id=7)
    assert found.etcd.endpoints == ("http://a:2379", "http://b:2379")
    assert found.datapath == DatapathSection()


def test_a_variable_overrides_the_file_and_a_flag_the_variable(file: Path) -> None:
    file.write_text('[cluster]\nname = "file"\nregion = "file"\nzone = "file"\n')
    found = load(
        file,
        environment={"ISTHMUS_CLUSTER_REGION": "variable", "ISTHMUS_CLUSTER_ZONE": "variable"},
        flags=["cluster.zone=flag"],
    )
    assert (found.cluster.name, found.cluster.region, found.cluster.zone) == ("file", "variable", "flag")


def test_text_becomes_what_the_field_is() -> None:
    found = load(
        None,
        environment={"ISTHMUS_CLUSTERSET_CACHE_LIFETIME": "2.5"},
        flags=["cluster.id=9", "etcd.endpoints=http://a:1,http://b:2", "datapath.services=all", "dns.upstream=a=b"],
    )
    assert load(None, environment={}, flags=["cluster.families=IPv6,IPv4"]).cluster.families == ("IPv6", "IPv4")
    assert not load(None, environment={"ISTHMUS_CLUSTERSET_DEFAULT_GLOBAL": "false"}).clusterset.default_global
    assert (found.clusterset.cache_lifetime, found.cluster.id) == (2.5, 9)
    assert found.etcd == EtcdSection(endpoints=("http://a:1", "http://b:2"))
    assert (found.datapath.services, found.dns.upstream) == ("all", "a=b")


def test_variables_that_only_begin_like_ours_are_left_alone() -> None:
    assert load(None, environment={"ISTHMUS_NO_SKIP": "1", "PATH": "/bin"}) == Config()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[cluster\n", "{file}: Expected ']' at the end of a table declaration (at line 1, column 9)"),
        ("cluster = 3\n", "{file}: 'cluster' stands outside a section; there are: cluster, node, kubernetes, "),
        ("[colour]\n", "{file}: no section 'colour'; there are: cluster, node, kubernetes, etcd, "),
        ("[node]\ncolour = 1\n", "{file}: no field 'colour' in section [node]; it has: name"),
        ('[cluster]\nid = "x"\n', '{file}: cluster.id = "x": Expected `int`, got `str`'),
        ("[cluster]\nid = 512\n", "{file}: cluster.id = 512: Expected `int` <= 511"),
        ("[etcd]\nendpoints = 3\n", "{file}: etcd.endpoints = 3: Expected `array`, got `int`"),
        ("[sync]\ntimeout = -1\n", "{file}: sync.timeout = -1: Expected `float` >= 0.0"),
        ('[log]\nlevel = "loud"\n', "{file}: log.level = \"loud\": Invalid enum value 'loud'"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_naming_file_section_and_field(file: Path, text: str, why: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environment={})
    assert str(caught.value).startswith(why.format(file=file))
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"isthmus.toml: cannot be read: No such file or directory"):
        load(tmp_path / "isthmus.toml", environment={})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, environment={})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary: .*can't decode"):
        load(tmp_path / "binary", environment={})


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("cluster.name", "--set cluster.name: want section.field=value"),
        ("name=c1", "--set name=c1: want section.field=value"),
        ("colour.name=c1", "--set colour.name=c1: no section 'colour'; there are: cluster, "),
        ("node.colour=c1", "--set node.colour=c1: no field 'colour' in section [node]; it has: name"),
        ("cluster.id=c1", '--set cluster.id=c1: cluster.id = "c1": Expected `int`, got `str`'),
    ],
)
def test_what_is_wrong_in_a_flag_names_the_flag(flag: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, environment={}, flags=[flag])
    assert str(caught.value).startswith(why)


def test_what_is_wrong_in_a_variable_names_the_variable_and_not_the_file(file: Path) -> None:
    file.write_text("[cluster]\nid = 1\n")
    with pytest.raises(ConfigError, match=r'^ISTHMUS_CLUSTER_ID: cluster.id = "x": Expected `int`'):
        load(file, environment={"ISTHMUS_CLUSTER_ID": "x"})
    with pytest.raises(ConfigError, match=r"^ISTHMUS_CLUSTER_COLOUR: no field 'colour' in section"):
        load(file, environment={"ISTHMUS_CLUSTER_COLOUR": "x"})


def test_a_file_has_only_what_differs_from_the_defaults() -> None:
    found = Config(cluster=ClusterSection(name="c1"), etcd=EtcdSection(endpoints=("http://a:1",)))
    assert config.to_toml(found) == '[cluster]\nname = "c1"\n\n[etcd]\nendpoints = ["http://a:1"]\n'


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@given(
    cluster=st.builds(ClusterSection, name=TEXT, id=st.integers(0, 511), zone=TEXT),
    etcd=st.builds(EtcdSection, endpoints=st.lists(TEXT).map(tuple), password_file=TEXT),
    datapath=st.builds(DatapathSection, grace=st.floats(0, 1e9), services=st.sampled_from(["multicluster", "all"])),
)
def test_what_is_written_as_a_file_reads_back(
    tmp_path_factory: pytest.TempPathFactory, cluster: ClusterSection, etcd: EtcdSection, datapath: DatapathSection
) -> None:
    wanted = Config(cluster=cluster, etcd=etcd, datapath=datapath)
    file = tmp_path_factory.mktemp("config") / "isthmus.toml"
    file.write_text(config.to_toml(wanted))
    assert load(file, environment={}) == wanted
