"""The inventory: what it says of each node, and what is refused with the place and the way out."""

import jsonschema
import pytest
from sparkbook import cluster
from sparkbook.errors import SparkbookError

PAIR = (
    "nodes: [{host: spark-1, address: 192.168.100.1}, {host: spark-2, ssh: me@spark-2, address:"
    " 192.168.100.2, env: {A: b}}]"
)


def test_a_pair():
    pair = cluster.parse(PAIR)
    assert pair.head.host == "spark-1" and pair.head.local and not pair.nodes[1].local
    assert [node.docker for node in pair.nodes] == [None, "ssh://me@spark-2"]
    assert pair.gpus == 2 and pair.link_gbit == 200
    assert pair.node("spark-2").env == {"A": "b"}
    assert cluster.parse(pair.model_dump_json()) == pair
    jsonschema.validate(pair.model_dump(), cluster.schema())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1", "is not YAML"),
        ("x", "write 'nodes:'"),
        ("nodes: []", "nodes: must have at least 1 item"),
        ("nodes: [{ssh: a@b}]", "nodes[0].host: is missing"),
        (
            "nodes: [{host: a, addres: 1}]",
            "nodes[0] (a).addres: no such key; did you mean 'address'?",
        ),
        ("nodes: [{host: a, address: 300.1.1.1}]", "'300.1.1.1' is not an IP address"),
        ("nodes: [{host: a, ssh: x y}]", "write user@host"),
        ("nodes: [{host: a}, {host: b}]", "a and b would both be this machine"),
        ("nodes: [{host: a}, {host: a, ssh: b}]", "the host a belongs to two nodes"),
        (
            "nodes: [{host: a, address: 10.0.0.1}, {host: b, ssh: b, address: 10.0.0.1}]",
            "the address 10.0.0.1 belongs to two nodes",
        ),
        ("nodes: [{host: a, ssh: b, via: [ip]}]", "give one of them"),
        ("nodes: [{host: a, gpus: 2}, {host: b, ssh: b}]", "same number on each"),
        ("nodes: [{host: a, env: {HF_TOKEN: abc}}]", "HF_TOKEN holds a secret"),
        ('nodes: [{host: a, interface: "x\\x1b"}]', "control character U+001B"),
        ("nodes: &a [*a]", "inside the value that it names"),
        ("a: &a [*a]", "inside the value that it names"),
    ],
)
def test_what_is_no_inventory(text, said):
    with pytest.raises(SparkbookError) as error:
        cluster.parse(text, "pair.yaml")
    assert (
        said in str(error.value)
        and str(error.value).startswith("pair.yaml")
        and "abc" not in str(error.value)
    )


def test_files(tmp_path):
    file = tmp_path / "pair.yaml"
    file.write_text(PAIR)
    assert cluster.read(file) == cluster.parse(PAIR)
    with pytest.raises(SparkbookError, match="can't be read: No such file"):
        cluster.read(tmp_path / "none.yaml")
    file.write_bytes(b"\xff")
    with pytest.raises(SparkbookError, match="is not UTF-8 text"):
        cluster.read(file)


def test_an_unknown_node_is_told_the_known_ones():
    with pytest.raises(SparkbookError, match="there are spark-1, spark-2"):
        cluster.parse(PAIR).node("spark-3")


def test_a_layout_counts_gpus():
    assert cluster.Layout(tensor=2, data=2).gpus == 4
    assert (
        str(cluster.Layout(tensor=2, pipeline=2)) == "TP=2 PP=2"
        and str(cluster.Layout()) == "one GPU"
    )
