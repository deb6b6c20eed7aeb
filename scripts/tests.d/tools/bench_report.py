"""Whether scripts/bench judges what it measured: results that reach each bar of the goals exactly, and results that just miss
it; the table and the chart of both. Ends with code 1 and says which bar was not seen."""

import os
import sys
import tempfile
import xml.dom.minidom

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "bench.d"))

import bars
import chart
import report

PATHS = ("vxlan", "udp", "stateless", "auto", "kernel", "kernel-gathered", "direct", "before")
FIGURES = bars.SCALED + ("tcp1-cpu", "tcp8-cpu", "udp64-arrived", "udp1400-arrived")
# By which share a figure misses its bar.
JUST = 0.01


def given(values):
    result = report.Result(1, 1.0)
    result.values = values
    return result


def results(device):
    """Every figure of every path is 1, but what has a bar, and that just reaches the strictest of its bars."""
    result = given({underlay: {path: {figure: [1.0] for figure in FIGURES} for path in PATHS} for underlay in bars.UNDERLAYS})
    result.devices = {underlay: {"vxlan": device, "auto": device} for underlay in bars.UNDERLAYS}
    for bar in bars.all_bars():
        place = result.values[bar.underlay][bar.path]
        better = min if bar.sense == "≤" else max
        place[bar.figure] = [better(place[bar.figure][0], limit(bar, device))]
    return result


def limit(bar, device):
    return bar.bar[device] if isinstance(bar.bar, dict) else bar.bar


def judged_once(values, is_missed):
    """One bar alone is judged, as missed or not."""
    result = given(values)
    judged = bars.others(result)
    assert len(judged) == 1 and bool(bars.missed(result)) == is_missed, "%s: %s, missed %s" % (values, judged, is_missed)
    return result


def observed():
    """Each bar of --observe: one path that costs a little more than it may, beside the same that costs what it may."""
    promised = {("top", 0.03), ("capture", 0.10), ("scraped", 0.10), ("followed", 0.10), ("vxlan", 0.10)}
    assert {(path, share) for path, _, _, share in bars.WATCHED} == promised, "what watching may cost"
    for path, beside, figures, share in bars.WATCHED:
        for figure in figures:
            for more in (share - JUST / 2, share + JUST / 2):
                worse = 100 * (1 + more if figure in bars.LESS else 1 - more)
                judged_once({"wire": {beside: {figure: [100.0]}, path: {figure: [worse]}}}, more > share)
    limits = (("listed", "idle", bars.PROBING), ("scraped", "scrape", bars.SCRAPE), ("scraped", "scrape-failed", 0),
              ("capture", "capture-off", 0), ("followed", "followed-off", 0), ("vxlan", "idle", bars.IDLE), ("vxlan", "rss", bars.RESIDENT))
    for path, figure, most in limits:
        for value in (most, most + JUST):
            result = judged_once({"wire": {path: {figure: [value]}}}, value > most)
            assert report.TITLES[figure] in result.table(), "the table has no %s" % figure
    # A watcher asks all the time.
    for path in bars.UNLIMITED:
        assert not bars.others(given({"wire": {path: {"idle": [100.0], "rss": [1000.0]}}})), "%s is judged idle" % path


def pairs():
    """A machine that is twice as fast in some rounds: each round is judged by itself, and at scale the medians; so is what cannot be
    paired because a measurement is missing."""
    for ours, theirs, paired, at_scale in (([4.0, 2.0, 2.0], [4.0, 4.0, 2.0], 1.0, 0.5), ([4.0, 2.0], [4.0, 4.0, 2.0], 0.75, 0.75),
                                           ([4.0, 2.0], [4.0, 0.0], 1.0, 1.5), ([4.0, 2.0], [0.0, 0.0], None, None)):
        paths = {"auto": {"tcp1": ours}, "kernel": {"tcp1": theirs}}
        result = given({"wire": paths, "wire" + report.SCALE_LABEL: paths})
        assert result.against("wire", "auto", "kernel", "tcp1") == paired
        assert result.against("wire" + report.SCALE_LABEL, "auto", "kernel", "tcp1") == at_scale
        assert result.against("wire", "auto", "direct", "tcp1") is None


def main():
    pairs()
    for device in ("tun", "tap"):
        reached = results(device)
        judged = bars.judged(reached)
        every = list(bars.all_bars())
        assert [one.bar for one in judged] == every, "not every bar was judged"
        for one in judged:
            assert one.met, "%s is reached and said to be missed" % (one,)
        for bar in every:
            missed = results(device)
            value = limit(bar, device) * (1 + JUST if bar.sense == "≤" else 1 - JUST)
            missed.values[bar.underlay][bar.path][bar.figure] = [value]
            found = [one.bar for one in bars.judged(missed) if not one.met]
            assert bar in found, "%s is missed and said to be reached" % (bar,)
            assert "**missed**" in missed.table(), "the table does not say so"
    # At scale: a figure that is 11 % worse.
    label = "wire at scale"
    for figure in bars.SCALED:
        reached.values[label] = {"auto": {figure: [100.0]}, "auto-scale": {figure: [110.9 if figure in bars.LESS else 89.1]}}
        assert any(text.startswith(label) for text in bars.missed(reached)), "at scale %s may be worse" % figure
        reached.values[label]["auto-scale"][figure] = [100.0]
        assert not any(text.startswith(label) for text in bars.missed(reached)), "at scale %s may not stay" % figure
        # The kernel's own loss is said, and changes nothing.
        reached.values[label] |= {"kernel": {figure: [100.0]}, "kernel-scale": {figure: [150.0 if figure in bars.LESS else 50.0]}}
        said = [(text, met) for text, met in bars.others(reached) if text.startswith(label)]
        assert said and all(met and text.endswith("the kernel's VXLAN by 50 %") for text, met in said), said
    observed()
    with tempfile.NamedTemporaryFile(suffix=".svg") as file:
        chart.write(file.name, reached, "wire")
        texts = [node.firstChild.data for node in xml.dom.minidom.parse(file.name).getElementsByTagName("text")]
    for path in PATHS:
        shown = texts.count(chart.PATHS.get(path, ("", path))[1])
        assert shown == (0 if path in chart.HIDDEN else len(chart.PANELS)), "the chart shows %s %d times" % (path, shown)
    print("%d bars, two devices" % len(every))


if __name__ == "__main__":
    main()
