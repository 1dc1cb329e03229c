"""The tables of the landscape, and the pictures made of them."""

from __future__ import annotations

import pytest
from packaging.version import Version
from sparkbook import recipes
from sparkbook.checkpoint.bandwidth import published_points
from sparkbook.checkpoint.store import Disk
from sparkbook.host import REPORTED, spark
from sparkbook.plots import hardware as plots
from sparkbook.site.landscape import RELEASES, RESOURCES, TRACKS
from sparkbook.util.tables import table


def test_versions_only_go_up_with_time():
    for track in ("vLLM", "NGC"):
        mine = sorted(
            (release for release in RELEASES if release.track == track),
            key=lambda release: release.date,
        )
        versions = [Version(release.vllm) for release in mine]
        assert versions == sorted(versions)


def test_a_container_is_never_ahead_of_the_release_it_holds():
    out = {
        release.vllm: release.date
        for release in RELEASES
        if release.track == "vLLM" and release.precision == "day"
    }
    held = [release for release in RELEASES if release.track == "NGC" and release.vllm in out]
    assert all(out[release.vllm] <= release.date for release in held)


def test_every_row_has_evidence():
    assert all(resource.url.startswith("https://") for resource in RESOURCES)
    assert all(track.source.startswith("https://") for track in TRACKS)
    assert len({resource.name for resource in RESOURCES}) == len(RESOURCES)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.timeline(RELEASES),
        lambda: plots.memory_of(REPORTED, [0.5, 0.92]),
        lambda: plots.ceilings(published_points(recipes.all(), spark.BANDWIDTH_GB_S)),
        lambda: plots.experts_touched({"a": (8, 2)}, 16),
        lambda: plots.disk_needed([Disk("a/b", 10.0, False, None), Disk("c/d", 20.0, True, 1.0)]),
    ],
)
def test_a_picture_has_a_text_and_is_the_same_each_time(draw):
    data, metadata = draw()._repr_svg_()
    assert data.startswith("<svg ")
    assert len(metadata["alt"]) > 20
    assert draw().svg == data


def test_a_table_aligns_numbers_and_keeps_unknown_apart_from_zero():
    shown = table(
        ["name", "GB", "fits"], [["a|b", 0, True], ["c", None, False], ["d", 1234.56, None]]
    ).data.splitlines()
    rows = ["| a\\|b | 0 | yes |", "| c | – | no |", "| d | 1,234.6 | – |"]
    assert shown == ["| name | GB | fits |", "| --- | --: | --- |", *rows]


def test_long_whole_numbers_are_grouped_and_years_are_not():
    assert table(["n"], [[262144], [-10000], [2026]]).data.splitlines()[2:] == [
        "| 262,144 |",
        "| -10,000 |",
        "| 2026 |",
    ]


def test_a_column_without_a_name_is_refused():
    with pytest.raises(ValueError, match="no name"):
        table(["a", " "], [])


def test_a_ragged_table_is_refused():
    with pytest.raises(ValueError, match="2 cells"):
        table(["a"], [["b", "c"]])
