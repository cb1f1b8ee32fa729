"""The looks of the orders stay apart for every reader, and figures come out byte for byte the same."""

from __future__ import annotations

import itertools
import json

import matplotlib as mpl
import numpy as np
import pytest

from orderlens.errors import UserInputError
from orderlens.figures import catalogue, style

ORDER_IDS = {
    *("forced-ar", "reverse-ar", "random", "max-prob", "top-margin", "entropy"),
    *("oracle-max-q", "oracle-margin", "oracle-min-q"),
}

# Full protanopia, deuteranopia and tritanopia in linear RGB (Machado, Oliveira and Fernandes 2009), and none.
DEFICIENCIES = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
    "none": np.eye(3),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


STYLES = [style.order_style(order) for order in sorted(ORDER_IDS)]


def linear_rgb(color: str) -> np.ndarray:
    c = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_every_order_has_a_style_of_its_own() -> None:
    looks = STYLES
    assert len({look.marker for look in looks}) == len(looks)
    assert len({look.color for look in looks}) == len(looks)
    assert len({look.linestyle for look in looks}) == len(looks)


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_colours_differ_for_every_kind_of_colour_vision(deficiency: str) -> None:
    matrix = np.array(DEFICIENCIES[deficiency])
    seen = [lab(matrix @ linear_rgb(look.color)) for look in STYLES]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 20


def test_colours_differ_in_grey() -> None:
    lightness = sorted(lab(linear_rgb(look.color))[0] for look in STYLES)
    assert min(np.diff(lightness)) > 5
    assert lightness[-1] < 82  # still visible on white


def test_seeds_share_the_look_of_their_order() -> None:
    assert style.order_style("random:7") == style.order_style("random")


def test_an_unknown_order_gets_a_stable_spare_look() -> None:
    spare = style.order_style("my-rule")
    assert spare == style.order_style("my-rule")
    assert spare.label == "my-rule"
    assert spare.marker not in {look.marker for look in STYLES}


def test_look_leaves_matplotlib_as_it_was() -> None:
    before = dict(mpl.rcParams)
    with style.look():
        assert mpl.rcParams["axes.spines.top"] is False
    assert dict(mpl.rcParams) == before


def test_ramp_goes_from_dark_to_light() -> None:
    lightness = [lab(linear_rgb(color))[0] for color, _ in style.ramp(5)]
    assert lightness == sorted(lightness)


def drawn() -> mpl.figure.Figure:
    with style.look():
        figure, (left, right) = style.new_figure(1, 2)
        left.plot([0, 1], [0, 1], **style.order_style("max-prob").line())
        left.set_title("one")
        right.scatter([0, 1], [1, 0], **style.order_style("random").points())
        style.panel_letters([left, right])
    return figure


def test_saved_files_are_the_same_bytes_twice(tmp_path) -> None:
    first = catalogue.save_figure(drawn(), {"x": [1]}, tmp_path / "a", "fig")
    second = catalogue.save_figure(drawn(), {"x": [1]}, tmp_path / "b", "fig")
    assert [path.name for path in first] == ["fig.svg", "fig.png", "fig.pdf", "fig.json"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_the_sidecar_is_plain_json(tmp_path) -> None:
    data = {
        "q": np.array([0.1, np.nan]),
        "n": np.int64(3),
        "deep": {"inf": [float("inf")], "none": None},
        4: "x",
    }
    path = catalogue.save_data(data, tmp_path / "d.json")
    assert json.loads(path.read_text()) == {
        "q": [0.1, None],
        "n": 3,
        "deep": {"inf": [None], "none": None},
        "4": "x",
    }


def test_only_asked_formats_are_written(tmp_path) -> None:
    catalogue.save_figure(drawn(), {}, tmp_path, "fig", ["png"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig.json", "fig.png"]


def test_an_unknown_format_is_named(tmp_path) -> None:
    with pytest.raises(UserInputError, match="'gif'; allowed: svg, png, pdf"):
        catalogue.save_figure(drawn(), {}, tmp_path, "fig", ["gif"])


def test_a_file_is_no_folder(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserInputError, match=r"fig\.svg: a part of the path is a file"):
        catalogue.save_figure(drawn(), {}, tmp_path / "file", "fig")


def test_a_panel_without_rows_is_empty_and_no_warning():
    from orderlens.figures.style import rows

    with style.look():
        _, (panel,) = style.new_figure()
        rows(panel, [], [], [])
    assert panel.get_ylim() == (0.5, -0.5)


def test_a_letter_is_a_marker():
    """All plain markers of matplotlib are in use."""
    with style.look():
        _, (panel,) = style.new_figure()
        style.point(panel, style.OrderStyle("#000000", "-", "$h$", "hesitant"), 0.0, 1.0)
        assert panel.lines[0].get_marker() == "$h$"
        assert panel.lines[0].get_linestyle() == "None"


def test_policies_of_one_order_share_its_colour_and_differ_by_marker():
    looks = [
        style.order_style(f"max-prob{rule}") for rule in ("", "+top=4", "+threshold=0.9", ":select=argmax")
    ]
    assert {look.color for look in looks} == {looks[0].color}
    assert len({look.marker for look in looks}) == len(looks)
    assert not style.is_variant("random:7")


TOPS = [f"max-prob+top={k}" for k in (2, 3, 4, 8, 16)]


def test_policies_of_one_figure_never_look_alike():
    assert len({style.order_style(order).marker for order in TOPS}) < len(TOPS)  # why a figure must ask
    labels = ["random", "max-prob", *TOPS, "forced-ar+top=2", "forced-ar+top=8"]
    looks = style.order_styles(labels)
    assert set(looks) == set(labels)
    assert len({(look.color, look.marker) for look in looks.values()}) == len(labels)
    assert len({looks[order].marker for order in TOPS}) == len(TOPS)
    assert {looks[order].color for order in TOPS} == {looks["max-prob"].color}
    assert looks["random"] == style.order_style("random")
    assert style.order_styles(reversed(labels)) == looks


def test_more_policies_than_markers_take_other_colours():
    labels = [f"max-prob+threshold=0.{k}" for k in range(10, 50)]
    looks = style.order_styles(labels).values()
    assert len({(look.color, look.marker) for look in looks}) == len(labels)
    many = style.order_styles(f"max-prob+top={k}" for k in range(2, 100))  # beyond that looks repeat
    assert len(many) == 98


def test_seeds_of_one_order_share_its_look_in_a_figure():
    looks = style.order_styles(["random:0", "random:1", "random"])
    assert len({(look.color, look.marker) for look in looks.values()}) == 1


def test_small_numbers_are_powers_of_ten_and_zero_is_zero():
    assert [style.power_of_ten(value) for value in (0.0018, -2e-7, 0.0)] == ["1.8 × 10⁻³", "−2.0 × 10⁻⁷", "0"]
