"""A headless Chromium that shows one page: by its own protocol, over a pipe (--remote-debugging-pipe).

    with Browser(width, height, dark) as browser:
        browser.open(url)
        browser.wait("document.title != 'Tartan'", seconds)
        browser.value("an expression of JavaScript")
        browser.keys("p")
        browser.picture(file)
"""

import base64
import json
import os
import subprocess
import tempfile
import time

# Of the answer to one command.
PATIENCE = 20


class Browser:
    def __init__(self, width=1280, height=900, dark=False):
        self.size, self.dark = (width, height), dark
        self.number = 0
        # What the page wrote to the console as an error, and what it could not load.
        self.complaints = []

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()
        self.program = subprocess.Popen(
            ["/bin/sh", "-c", 'exec chromium "$@" 3<&%d 4>&%d' % (to_browser, from_browser), "-", "--headless=new", "--no-sandbox",
             "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe",
             "--user-data-dir=" + self.profile.name, "about:blank"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.rest = b""
        self.session = None
        target = next(one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log":
            self.ask(domain + ".enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=self.size[0], height=self.size[1], deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self.dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        return self

    def __exit__(self, *_):
        self.program.kill()
        self.program.wait()
        os.close(self.out)
        os.close(self.into)
        # Its children end a moment later, and write until then.
        self.profile.cleanup()

    def ask(self, method, **parameters):
        """Sends a command and returns its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError("%s: %s" % (method, answer["error"]))
                return answer["result"]
            self.note(answer)
        raise TimeoutError(method)

    def read(self):
        while b"\0" not in self.rest:
            more = os.read(self.into, 1 << 16)
            if not more:
                raise EOFError("the browser has ended")
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def note(self, event):
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(event["params"]["exceptionDetails"].get("text", "exception"))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.complaints.append(event["params"]["entry"]["text"])

    def open(self, url):
        self.ask("Page.navigate", url=url)

    def value(self, expression):
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression, seconds):
        end = time.monotonic() + seconds
        # An element has no value of its own.
        while not self.value("!!(%s)" % expression):
            if time.monotonic() > end:
                raise TimeoutError("not within %d s: %s" % (seconds, expression))
            time.sleep(0.1)

    def key(self, key):
        for kind in "keyDown", "keyUp":
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" and len(key) == 1 else "")

    def tree(self):
        """What a screen reader is told: role and name of each node."""
        nodes = self.ask("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]

    def picture(self, file):
        with open(file, "wb") as out:
            out.write(base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]))
