"""What a browser shows of `tartan top --web`, in the network namespace of node1:

    top_page.py LAB PREFIX STATE

STATE is what the node is in: empty, busy, peers (201 of them) or problem, which are looked at in light and dark, wide
and narrow; or used, where keys, filter and a screen reader are tried.
"""

import json
import subprocess
import sys
import time
import urllib.request

LAB, PREFIX, STATE = sys.argv[1:]
failures = []

# What a user would see. Text that does not stand out from its ground has a contrast below 4.5 (WCAG 2.2).
FLAWS = r"""(() => {
  const flaws = document.documentElement.scrollWidth > window.innerWidth ? ['wider than the screen'] : [];
  const name = (one) => `${one.tagName} ${one.className} ${one.textContent.trim().slice(0, 40)}`;
  const isShown = (one) => one.getClientRects().length > 0 && !one.closest('.skip') && one.tagName !== 'SCRIPT';
  const all = (selector) => [...document.querySelectorAll(selector)].filter(isShown);
  all('h1, h2, p, li, button, figcaption, caption, td, th, .stage, article, label').forEach((one) => {
    if (one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1) flaws.push(`cut: ${name(one)}`);
  });
  for (const row of all('tr, .strip, .controls, nav ul, header, main, section, body')) {
    [...row.children].filter(isShown).forEach((one, at, parts) => {
      const [a, b] = [parts[at - 1] || one, one].map((part) => part.getBoundingClientRect());
      if (at && a.right > b.left + 1 && b.right > a.left + 1 && a.bottom > b.top + 1 && b.bottom > a.top + 1) {
        flaws.push(`overlap: ${name(parts[at - 1])} and ${name(one)}`);
      }
    });
  }
  const light = (color) => color.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const own = (one) => getComputedStyle(one).backgroundColor;
  const ground = (one) => /, 0\)$/.test(own(one)) && one.parentElement ? ground(one.parentElement) : own(one);
  const hasText = (one) => [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  all('body *').filter(hasText).forEach((one) => {
    const [a, b] = [light(getComputedStyle(one).color), light(ground(one))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) flaws.push(`faint: ${name(one)}`);
  });
  return flaws.slice(0, 5).join('; ');
})()"""
HELPERS = """const one = (selector) => document.querySelector(selector) || {textContent: ''};
const text = (selector) => one(selector).textContent;
const rows = () => document.querySelectorAll('#peers tbody tr').length;"""
# What a state has to show: the first is waited for.
SHOWN = {
    "empty": ["text('#flows caption').startsWith('no flow between pods and peers')", "text('#problems') === ''",
              "text('#drops caption') === 'nothing was dropped'"],
    "busy": ["one('#flows tbody tr').tagName && document.querySelectorAll('.stage.loses').length === 1",
             "text('#drops td.wide').includes('no node owns the destination')"],
    "peers": ["text('#peers caption').startsWith('20 of 201 shown') && rows() === 20 && text('#peers td') === 'node2'",
              "one('#peers-more').click() || rows() === 201", f"{FLAWS} === ''",
              "one('#peers-more').click() || rows() === 20"],
    "problem": ["text('#problems strong') === 'WARNING flannel-left-over'", "document.title.startsWith('(1) node1')",
                "text('#problems article').includes('Remedy: if flannel left flannel.1')"],
}


class Browser:
    """A headless Chromium that shows the page, by chromedriver."""

    def __init__(self, width=1280, dark=False):
        self.session = "http://127.0.0.1:9515/session"
        wanted = {"goog:chromeOptions": {"args": ["--headless=new", "--no-sandbox", "--hide-scrollbars"]},
                  "goog:loggingPrefs": {"browser": "SEVERE"}}
        self.session += "/" + self.post("", capabilities={"alwaysMatch": wanted})["sessionId"]
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" * dark}])
        self.post("/url", url="http://127.0.0.1:9892/")
        # From the second sample on there are rates.
        self.wait("/[0-9] .*bit/.test(text('#chart-caption'))")

    def post(self, path, **body):
        with urllib.request.urlopen(self.session + path, json.dumps(body).encode(), timeout=60) as answer:
            return json.load(answer)["value"]

    def ask(self, command, **parameters):
        return self.post("/goog/cdp/execute", cmd=command, params=parameters)

    def value(self, expression):
        return self.post("/execute/sync", script=f"{HELPERS} return {expression};", args=[])

    def wait(self, expression):
        end = time.monotonic() + 20
        while not self.value(f"!!({expression})"):
            if time.monotonic() > end:
                return failures.append(f"{STATE}: not so: {expression}")
            time.sleep(0.1)

    def keys(self, keys):
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                self.ask("Input.dispatchKeyEvent", type=kind, key=key, text=key * (kind == "keyDown"))

    def close(self):
        failures.extend(f"{STATE}: the browser complains: {one}" for one in self.post("/se/log", type="browser"))
        urllib.request.urlopen(urllib.request.Request(self.session, method="DELETE"), timeout=60)


def looked_at():
    for name, width, dark in (("light", 1280, False), ("dark", 1280, True), ("narrow", 420, False)):
        browser = Browser(width, dark)
        browser.wait(SHOWN[STATE][0])
        failures.extend(f"{STATE}, {name}: not so: {one}" for one in SHOWN[STATE][1:] if not browser.value(one))
        if flaws := browser.value(FLAWS):
            failures.append(f"{STATE}, {name}: {flaws}")
        if browser.value("getComputedStyle(document.body).backgroundColor === 'rgb(15, 19, 24)'") != dark:
            failures.append(f"{STATE}, {name}: its colours")
        browser.close()


def used():
    browser = Browser()
    nodes = browser.ask("Accessibility.getFullAXTree")["nodes"]
    told = {f"{one['role']['value']} {one.get('name', {}).get('value')}" for one in nodes if not one["ignored"]}
    missing = {"heading node1", "button Pause", "searchbox Filter", "columnheader NODE"} - told
    failures.extend(f"a screen reader finds no {one}" for one in missing)
    # What the page shows does not change while it is paused, nor by a change of what is shown.
    browser.keys("p")
    browser.wait("text('#state') === 'Paused.'")
    strips = browser.value("text('#strips')")
    time.sleep(2.5)
    browser.value("one('#peers th button').click()")
    browser.wait(f"text('#strips') === {json.dumps(strips)}")
    browser.keys("p")
    browser.wait(f"text('#state') === 'Live.' && text('#strips') !== {json.dumps(strips)}")
    browser.keys("/")
    browser.wait("document.activeElement.id === 'filter'")
    browser.keys("nothing-has-this")
    browser.wait("rows() === 0")
    for verb, told in (("stop", "text('#state.fault').startsWith('The agent does not answer')"),
                       ("start", "text('#state') === 'Live.'")):
        subprocess.run([LAB, verb, "--prefix", PREFIX, "node1"], check=True, stdout=subprocess.DEVNULL)
        browser.wait(told)
    browser.close()


(used if STATE == "used" else looked_at)()
print("\n".join(f"FAILED: {one}" for one in failures) or f"{STATE}: the page is as it is to be")
sys.exit(1 if failures else 0)
