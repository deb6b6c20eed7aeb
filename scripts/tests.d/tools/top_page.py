"""What a browser shows of `tartan top --web`: top_page.py LAB PREFIX DIRECTORY, in the network namespace of node1."""

import subprocess
import sys
import time

from browser import Browser

URL = "http://127.0.0.1:9892/"
LAB, PREFIX, DIRECTORY = sys.argv[1:4]
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


def main():
    held = True
    for name, width, height, dark in (("light", 1280, 900, False), ("dark", 1280, 900, True), ("narrow", 420, 900, False)):
        with Browser(width, height, dark) as browser:
            shows(browser)
            browser.picture("%s/%s.png" % (DIRECTORY, name))
            held &= check(name + ": the browser has nothing to complain of", browser.complaints == [])
            held &= check(name + ": nothing is wider than the screen",
                          browser.value("document.documentElement.scrollWidth <= window.innerWidth"))
            paper = browser.value("getComputedStyle(document.body).backgroundColor")
            held &= check(name + ": its colours", (paper == "rgb(15, 19, 24)") == dark)
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
    return 0 if held else 1


sys.exit(main())
