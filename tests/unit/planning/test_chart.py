"""Curves in the terminal and in files."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from sentinel.cli.offline import chart
from sentinel.errors import FileError, Unavailable, UserError


@pytest.fixture
def figure() -> chart.Figure:
    points = tuple((float(x), float((x - 5) ** 2)) for x in range(11))
    return chart.Figure("valley", "x", "y", (("square", points),), (("lowest", 5.0, 0.0),))


def test_the_curve_is_where_its_points_are(figure: chart.Figure) -> None:
    lines = chart.terminal(figure, 60, height=9)
    rows = [line.partition("│")[2] for line in lines if "│" in line]
    assert len(rows) == 9
    assert rows[-1].index("●") == pytest.approx(max(map(len, rows)) / 2, abs=1)
    assert rows[0].lstrip("⠀ ")[0] != " " and rows[0][:2].strip() and rows[0][-2:].strip()  # both ends are high
    assert not rows[0][10:-10].strip()
    assert lines[0] == "valley" and "● lowest" in lines[-1]
    assert lines[1].strip().startswith("25") and lines[9].strip().startswith("0")


@pytest.mark.parametrize("width", [30, 80, 120])
def test_no_line_is_wider_than_the_terminal(figure: chart.Figure, width: int) -> None:
    assert max(map(len, chart.terminal(figure, width))) <= width


def test_every_mark_is_named_in_a_narrow_terminal() -> None:
    names = ("sentinel", "byterobust", "on-call", "nccl-timeout", "stock")
    title = "Simulated ETTR so far (256 nodes of 8 GPUs, 4 spares, 20 days, failures as llama3, seed 3)"
    curves = tuple((name, ((1.0, 90.0), (20.0, 90.0 + n))) for n, name in enumerate(names))
    marks = tuple((name, 20.0, 90.0 + n) for n, name in enumerate(names))
    text = "\n".join(chart.terminal(chart.Figure(title, "day", "ETTR", curves, marks), 60))
    assert all(name in text for name in names) and "…" not in text
    assert title in " ".join(text.split())


def test_terminals_without_unicode_get_ascii(figure: chart.Figure) -> None:
    text = "\n".join(chart.terminal(figure, 60, unicode=False))
    assert text.isascii() and "*" in text and "o lowest" in text


def test_a_falling_line_on_two_logarithmic_axes_is_straight() -> None:
    points = tuple((2.0**i, 2.0**-i) for i in range(9))
    log = chart.Figure("t", "x", "y", (("c", points),), x_log=True, y_log=True)
    rows = [line.partition("│")[2] for line in chart.terminal(log, 60, height=8) if "│" in line]
    starts = [len(row) - len(row.lstrip()) for row in rows]
    steps = [b - a for a, b in itertools.pairwise(starts)]
    assert min(steps) >= max(steps) - 2 > 0


def test_values_that_were_tried_are_written_where_they_lie() -> None:
    points, ticks = ((60.0, 0.98), (300.0, 0.99), (3600.0, 0.97)), ((60.0, "1min"), (300.0, "5min"), (3600.0, "1h"))
    tried = chart.Figure("t", "x", "y", (("c", points),), x_log=True, y_from_zero=False, x_ticks=ticks)
    axis = chart.terminal(tried, 70)[-2]
    assert axis.split() == ["1min", "5min", "1h"]
    assert (axis.index("5min") - axis.index("1min")) / (axis.index("1h") - axis.index("1min")) == pytest.approx(
        0.39, abs=0.05
    )


def test_flat_curves_are_drawn_too() -> None:
    flat = chart.Figure("t", "x", "y", (("c", ((1.0, 2.0), (2.0, 2.0))),), y_log=True)
    assert any("⠒" in line or "⠤" in line or "⣀" in line or "⠉" in line for line in chart.terminal(flat, 60))


def test_the_y_axis_need_not_start_at_zero() -> None:
    points = ((0.0, 90.0), (1.0, 100.0))
    assert "90" in chart.terminal(chart.Figure("t", "x", "y", (("c", points),), y_from_zero=False), 40, height=7)[7]
    assert "90" not in chart.terminal(chart.Figure("t", "x", "y", (("c", points),)), 40, height=7)[7]


def test_bars() -> None:
    rows = chart.bars([("long", 2.0, "+2"), ("half", 1.0, "+1"), ("none", 0.0, "+0")], 40)
    lengths = [row.count("█") for row in rows]
    assert lengths[0] == 2 * lengths[1] > 0 == lengths[2]
    assert chart.bars([], 40) == []
    assert chart.bars([("a", 0.0, "")], 40)[0].count("█") == 0


def test_a_long_title_is_cut_before_its_brackets_and_ends_of_curves_are_named_by_their_height(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    title = "Simulated ETTR so far (256 nodes of 8 GPUs, 4 spares, 20 days, failures as llama3, seed 3)"
    curves = tuple((name, ((1.0, 90.0), (20.0, end))) for name, end in (("us", 99.0), ("them", 91.0)))
    marks = tuple((name, points[-1][0], points[-1][1]) for name, points in curves)
    chart.write(chart.Figure(title, "day", "ETTR", curves, marks), tmp_path / "t.svg")
    told = (tmp_path / "t.svg").read_text()  # matplotlib says each text in a comment
    assert "Simulated ETTR so far -->" in told and "seed 3) -->" in told
    assert "us (99) -->" in told and "us (20" not in told


def test_plot_files_are_checked(tmp_path: Path) -> None:
    assert chart.check_file(None) is None
    assert chart.check_file(str(tmp_path / "a.PNG")) == tmp_path / "a.PNG"
    with pytest.raises(UserError, match="neither PNG nor SVG"):
        chart.check_file(str(tmp_path / "a.pdf"))
    with pytest.raises(FileError, match="does not exist"):
        chart.check_file(str(tmp_path / "no" / "a.png"))


def test_without_matplotlib_the_fix_is_said(figure: chart.Figure, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Unavailable) as caught:
        chart.write(figure, tmp_path / "a.png")
    assert "slurm-sentinel[plots]" in caught.value.fix
    assert not (tmp_path / "a.png").exists()


def test_files_are_pictures(figure: chart.Figure, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
    chart.write(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    chart.write(figure, tmp_path / "a.svg")
    first = (tmp_path / "a.svg").read_text()
    assert "<svg" in first
    chart.write(figure, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == first


def test_a_file_that_cannot_be_written_is_said(figure: chart.Figure, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
    (tmp_path / "a.png").mkdir()
    with pytest.raises(FileError, match="cannot be written"):
        chart.write(figure, tmp_path / "a.png")


def test_the_legend_of_a_file_covers_no_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``simulate --sweep spares=18,24,30,40`` draws RSC-1's seed 2, whose last interval ends in the upper right."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure as Sheet

    drawn: list[Sheet] = []
    monkeypatch.setattr(Sheet, "savefig", lambda sheet, *_, **__: drawn.append(sheet))
    spans = ((18.0, 97.17, 97.62), (24.0, 97.22, 97.72), (30.0, 97.17, 97.78), (40.0, 97.37, 97.79))
    curve = ((18.0, 97.40), (24.0, 97.47), (30.0, 97.47), (40.0, 97.58))
    figure = chart.Figure(
        "t", "spares", "ETTR", (("sentinel", curve),), y_from_zero=False, intervals=(("sentinel", spans),),
        x_ticks=tuple((x, f"{x:g}") for x, _ in curve),
    )  # fmt: skip
    chart.write(figure, tmp_path / "spares.png")
    drawn[0].draw_without_rendering()
    (axes,) = drawn[0].axes
    legend = axes.get_legend()
    assert legend is not None and [entry.get_text() for entry in legend.get_texts()] == ["sentinel", "95 % interval"]
    box = legend.get_window_extent().transformed(axes.transData.inverted())
    assert not [x for x, low, high in spans if box.x0 <= x <= box.x1 and low <= box.y1 and high >= box.y0]
