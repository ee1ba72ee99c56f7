"""What stands along the axes of a chart is inside it."""

from __future__ import annotations

import re

import pytest

from sentinel.daemon.web.charts import WIDTH, curve

CHARACTER = 6.5  # width of a digit of the chart's font, in its units


@pytest.mark.parametrize(("first", "last"), [(930.0, 1300.0), (930.0, 1299.0), (0.0, 25_000_000.0)])
def test_the_last_number_of_the_axis_is_not_cut(first: float, last: float) -> None:
    drawn = curve("loss", [("", [(first, 1.0), (last, 2.0)])], x_label="step", y_label="")
    ticks = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle">([\d,]+)</text>', str(drawn))
    assert len(ticks) > 2
    for x, words in ticks:
        assert float(x) + len(words) * CHARACTER / 2 <= WIDTH, (x, words)
