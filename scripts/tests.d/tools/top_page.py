"""What a browser shows of `tartan top --web`, in the network namespace of node1:

    top_page.py LAB PREFIX DIRECTORY STATE

STATE is what the node is in: empty, busy, peers (201 of them) or problem, which are looked at in light and dark, wide and narrow, with a
picture of each in DIRECTORY; or used, where keys, filter and a screen reader are tried and the agent goes away.
"""

import subprocess
import sys
import time

from browser import Browser

URL = "http://127.0.0.1:9892/"
LAB, PREFIX, DIRECTORY, STATE_OF_NODE = sys.argv[1:5]
STATE = "document.getElementById('state').textContent"


def text(selector):
    return "(document.querySelector(%r) || {textContent: ''}).textContent" % selector


def check(what, held):
    print(what if held else "FAILED: " + what)
    return held


def shows(browser):
    browser.open(URL)
    browser.wait("document.querySelector('#flows tbody tr')", 20)
    browser.wait("/[1-9].*bit/.test(%s)" % text("#chart-caption"), 20)


def at_rest(browser):
    """What the page shows does not change while it is paused."""
    browser.key("p")
    browser.wait(STATE + " === 'Paused.'", 5)
    before = browser.value(text("#strips"))
    time.sleep(2.5)
    held = browser.value(text("#strips")) == before
    # Nor by a change of what is shown.
    browser.value("document.querySelector('#peers th button').click()")
    held &= browser.value(text("#strips")) == before
    browser.key("p")
    browser.wait(STATE + " === 'Live.'", 5)
    browser.wait("%s !== %r" % (text("#strips"), before), 5)
    return held


# What a user would see: words that are cut, parts that lie on each other, text that does not stand out from its ground
# (a contrast below 4.5, WCAG 2.2).
FLAWS = r"""(() => {
  const flaws = [];
  const name = (one) => `${one.tagName} ${one.className} ${one.textContent.trim().slice(0, 40)}`;
  const isShown = (one) => one.getClientRects().length > 0 && !one.closest('.skip');
  for (const one of document.querySelectorAll('h1, h2, p, li, button, figcaption, caption, td, th, .stage, article, label')) {
    if (isShown(one) && one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1) flaws.push(`cut: ${name(one)}`);
  }
  for (const row of document.querySelectorAll('tr, .strip, .controls, nav ul, header, main, section, body')) {
    const parts = [...row.children].filter(isShown).filter((one) => one.tagName !== 'SCRIPT');
    parts.slice(1).forEach((one, before) => {
      const [a, b] = [parts[before].getBoundingClientRect(), one.getBoundingClientRect()];
      if (a.right > b.left + 1 && b.right > a.left + 1 && a.bottom > b.top + 1 && b.bottom > a.top + 1) {
        flaws.push(`overlap: ${name(parts[before])} and ${name(one)}`);
      }
    });
  }
  const light = (color) => {
    const parts = color.match(/[\d.]+/g).map(Number).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    const own = getComputedStyle(one).backgroundColor;
    return /, 0\)$/.test(own) && one.parentElement ? ground(one.parentElement) : own;
  };
  for (const one of document.querySelectorAll('body *')) {
    const hasText = [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!hasText || !isShown(one) || one.tagName === 'SCRIPT') continue;
    const [a, b] = [light(getComputedStyle(one).color), light(ground(one))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) flaws.push(`faint: ${name(one)}`);
  }
  return flaws.slice(0, 5).join('; ');
})()"""
MARK = "getComputedStyle(document.querySelector('#peers th[aria-sort] button'), '::after').content"
ROWS = "document.querySelectorAll('#peers tbody tr').length"
MORE = "document.getElementById('peers-more')"


def ready(browser):
    """Opens the page and waits for a second sample, so that there are rates, and for what the state has."""
    browser.open(URL)
    browser.wait("/[0-9] .*bit/.test(%s)" % text("#chart-caption"), 20)
    if STATE_OF_NODE == "busy":
        browser.wait("document.querySelector('#flows tbody tr') && document.querySelector('#drops td.wide')", 20)
        browser.wait("document.querySelector('.stage.loses')", 20)


def state_holds(browser):
    """What this state has to show, by its name."""
    if STATE_OF_NODE == "empty":
        yield "it says that there are no flows", browser.value(text("#flows caption") + ".startsWith('no flow between pods and peers')")
        yield "it says that nothing was dropped", browser.value(text("#drops caption") + " === 'nothing was dropped'")
        yield "there is no problem", browser.value(text("#problems") + " === ''")
    if STATE_OF_NODE == "busy":
        yield "a drop has its meaning", browser.value(text("#drops td.wide") + ".includes('no node owns the destination')")
        yield "where packets are lost is marked", browser.value("document.querySelectorAll('.stage.loses').length") == 1
    if STATE_OF_NODE == "peers":
        yield "20 of 201 peers are shown", browser.value(text("#peers caption") + ".startsWith('20 of 201 shown')") and browser.value(ROWS) == 20
        yield "the busiest comes first", browser.value(text("#peers td") + " === 'node2'")
        browser.value(MORE + ".click()")
        yield "all are shown on demand", browser.value(ROWS) == 201
        yield "with all of them nothing is flawed", check_flaws(browser)
        browser.value(MORE + ".click()")
        yield "and fewer again", browser.value(ROWS) == 20
        browser.value("document.querySelector('#peers th button').click()")
        up = browser.value(MARK)
        browser.value("document.querySelector('#peers th button').click()")
        yield "the sorted column has a mark of its direction", "▴" in up and "▾" in browser.value(MARK)
    if STATE_OF_NODE == "problem":
        yield "the problem is named", browser.value(text("#problems strong") + " === 'WARNING flannel-left-over'")
        yield "with its remedy", browser.value(text("#problems article") + ".includes('Remedy: if flannel left flannel.1')")
        yield "and in the title", browser.value("document.title.startsWith('(1) node1')")


def check_flaws(browser):
    flaws = browser.value(FLAWS)
    if flaws != "":
        print("FAILED: " + str(flaws))
    return flaws == ""


def looked_at():
    held = True
    for name, width, height, dark in (("light", 1280, 900, False), ("dark", 1280, 900, True), ("narrow", 420, 900, False)):
        with Browser(width, height, dark) as browser:
            ready(browser)
            name = "%s, %s" % (STATE_OF_NODE, name)
            browser.picture("%s/page-%s.png" % (DIRECTORY, name.replace(", ", "-")))
            held &= check(name + ": no word is cut, nothing overlaps, all text stands out", check_flaws(browser))
            held &= check(name + ": nothing is wider than the screen",
                          browser.value("document.documentElement.scrollWidth <= window.innerWidth"))
            paper = browser.value("getComputedStyle(document.body).backgroundColor")
            held &= check(name + ": its colours", (paper == "rgb(15, 19, 24)") == dark)
            for what, is_so in state_holds(browser):
                held &= check("%s: %s" % (name, what), is_so)
            held &= check(name + ": the browser has nothing to complain of", browser.complaints == [])
    return held


def used():
    held = True
    with Browser() as browser:
        shows(browser)
        told = browser.tree()
        for role, name in (("heading", "node1"), ("button", "Pause"), ("searchbox", "Filter"), ("columnheader", "NODE"), ("status", "")):
            held &= check("a screen reader finds %s %s" % (role, name), any(one == (role, name) or not name and one[0] == role for one in told))
        held &= check("what is paused stays", at_rest(browser))
        browser.key("/")
        held &= check("a key goes to the filter", browser.value("document.activeElement.id") == "filter")
        for key in "nothing-has-this":
            browser.key(key)
        browser.wait("!document.querySelector('#peers tbody tr')", 5)
        held &= check("the filter hides rows", True)
        subprocess.run([LAB, "stop", "--prefix", PREFIX, "node1"], check=True, stdout=subprocess.DEVNULL)
        browser.wait(STATE + ".startsWith('The agent does not answer')", 20)
        held &= check("an agent that is gone is named", browser.value("document.getElementById('state').className") == "fault")
        subprocess.run([LAB, "start", "--prefix", PREFIX, "node1"], check=True, stdout=subprocess.DEVNULL)
        browser.wait(STATE + " === 'Live.'", 20)
        held &= check("its return too", True)
    return held


sys.exit(0 if (used() if STATE_OF_NODE == "used" else looked_at()) else 1)
