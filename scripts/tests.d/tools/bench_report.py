"""Whether scripts/bench judges what it measured: results that reach each bar exactly, and that just miss it."""

import sys
import tempfile
import xml.dom.minidom
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench.d"))

import bars
import chart
import report

PATHS = ("vxlan", "udp", "stateless", "auto", "kernel", "kernel-gathered", "direct", "before")
FIGURES = (*bars.SCALED, "tcp1-cpu", "tcp8-cpu", "udp64-arrived", "udp1400-arrived")
# By which share a figure misses its bar.
JUST = 0.01


def given(values, devices=()):
    result = report.Result(1, 1.0)
    result.values, result.devices = values, dict(devices)
    return result


def limit(bar, device):
    return bar.bar[device] if isinstance(bar.bar, dict) else bar.bar


def results(device):
    """Every figure of every path is 1, but what has a bar, and that just reaches the strictest of its bars."""
    values = {underlay: {path: {figure: [1.0] for figure in FIGURES} for path in PATHS} for underlay in bars.UNDERLAYS}
    for bar in bars.all_bars():
        place = values[bar.underlay][bar.path]
        place[bar.figure] = [(min if bar.figure in bars.LESS else max)(place[bar.figure][0], limit(bar, device))]
    return given(values, {underlay: {"vxlan": device, "auto": device} for underlay in bars.UNDERLAYS})


def judged_alone(values, is_missed):
    """One thing beside the table is judged, as missed or not."""
    result = given({"wire": values})
    judged = list(bars.others(result))
    assert len(judged) == 1 and bool(bars.missed(result)) == is_missed, f"{values}: {judged}, missed {is_missed}"


def main():
    # A machine that is twice as fast in some rounds: each round is judged by itself; at scale the medians are, and what
    # cannot be paired because a measurement is missing.
    for ours, theirs, paired, at_scale in (([4.0, 2, 2], [4.0, 4, 2], 1.0, 0.5), ([4.0, 2], [4.0, 4, 2], 0.75, 0.75),
                                           ([4.0, 2], [4.0, 0], 1.0, 1.5), ([4.0, 2], [0.0, 0], None, None)):
        paths = {"auto": {"tcp1": ours}, "kernel": {"tcp1": theirs}}
        result = given({"wire": paths, "wire" + report.SCALE_LABEL: paths})
        assert result.against("wire", "auto", "kernel", "tcp1") == paired
        assert result.against("wire" + report.SCALE_LABEL, "auto", "kernel", "tcp1") == at_scale
    for device in ("tun", "tap"):
        reached, every = results(device), list(bars.all_bars())
        judged = list(bars.judged(reached))
        assert [bar for bar, _, met in judged if met] == every, f"missed, or not judged: {judged}"
        for bar in every:
            worse = results(device)
            value = limit(bar, device) * (1 + JUST if bar.figure in bars.LESS else 1 - JUST)
            worse.values[bar.underlay][bar.path][bar.figure] = [value]
            assert bar in [one for one, _, met in bars.judged(worse) if not met], f"{bar} is said to be reached"
            assert "**missed**" in worse.table(), "the table does not say so"
    # What watching costs, udp beside vxlan, and many flows: a path that costs a little more than it may, or less.
    for path, beside, figures, share, _ in bars.BESIDES:
        for figure in figures:
            for more in (share - JUST / 2, share + JUST / 2):
                value = 100 * (1 + more if figure in bars.LESS else 1 - more)
                judged_alone({beside: {figure: [100.0]}, path: {figure: [value]}}, more > share)
    for figure, most, _, unjudged, others in bars.LIMITS:
        assert figure in report.TITLES, f"the table has no {figure}"
        for path in ("vxlan", *others):
            for more in (0, JUST):
                judged_alone({path: {figure: [others.get(path, most) + more]}}, more > 0)
        assert not list(bars.others(given({"wire": {path: {figure: [1000.0]} for path in unjudged}})))
    with tempfile.NamedTemporaryFile(suffix=".svg") as file:
        chart.write(file.name, reached, "wire")
        texts = [node.firstChild.data for node in xml.dom.minidom.parse(file.name).getElementsByTagName("text")]
    for path in PATHS:
        shown = texts.count(chart.PATHS.get(path, ("", path))[1])
        assert shown == (0 if path in chart.HIDDEN else len(chart.PANELS)), f"the chart shows {path} {shown} times"
    print(f"{len(every)} bars, two devices")


if __name__ == "__main__":
    main()
