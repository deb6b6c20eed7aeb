#!/usr/bin/env python3
"""Asks an API server about Nodes what a table says, and prints the table with its answers (apiserver_answers is one).

    apiserver_ask.py URL RESTRICTED TOKEN COMPACT <TABLE

URL leads to the server as its administrator, RESTRICTED without a certificate, where TOKEN is that of a user of
flannel's rights. COMPACT is a command of bash that makes the server forget what was before the revision $1.

A question is a line at the margin: [restricted|unknown] METHOD PATH [BODY]. The path is below /api/v1 unless it begins
with a slash; MERGE and STRATEGIC are PATCH; the body is YAML. The answer stands behind ' => ' or, indented, below: its
code, and what no two servers differ in. A Node's +, = or - says whether its revision is later than the last seen of
it, the same or earlier. $MARK is the revision of the last MARK, $PAGE the token of the last list or error, $LAST the
revision of the last Node. FOLLOW PATH begins a watch, EVENTS is what it told until its end. No Node is left behind.
"""

import http.client
import json
import re
import subprocess
import sys
import textwrap
from string import Template
from urllib.parse import quote, urlsplit

import yaml

KINDS = {"MERGE": "merge-patch+json", "STRATEGIC": "strategic-merge-patch+json"}
# The Nodes of the table. Others may be there; in lists they come behind.
OURS = ["a1", "a2", "a3", "a4"]
# Reasons whose messages are other words in other versions.
REWORDED = ("BadRequest", "Invalid", "UnsupportedMediaType")
# Seconds: no answer takes longer.
PATIENCE = 20
COLUMNS = 120


def words(*parts):
    return " ".join(str(part) for part in parts if part)


def some(found, *keys):
    """What is not there and what is null are not the same to every client."""
    found = {key: found[key] for key in keys if key in found}
    return found and json.dumps(found, separators=(",", ":"), sort_keys=True)


def documents(text):
    """The JSON values of a text, one behind the other, as a watch tells them."""
    while text := text.lstrip():
        value, end = json.JSONDecoder().raw_decode(text)
        yield value
        text = text[end:]


class Server:
    def __init__(self, url, restricted, token, compact):
        self.clients = {"": (url, None), "restricted": (restricted, token), "unknown": (restricted, "wrong")}
        self.compact = compact
        self.followed = None
        # Of each Node, the latest revision that was seen.
        self.seen = {}
        self.variables = {}

    def open(self, method, path, body=None, client=""):
        """The answer, whose body is not read yet."""
        url, token = self.clients[client]
        headers = {"Accept": "application/json", "Content-Type": f"application/{KINDS.get(method, 'json')}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
        path = path if path.startswith("/") else f"/api/v1/{path}"
        connection.request("PATCH" if method in KINDS else method, path, body, headers)
        return connection.getresponse()

    def answer(self, question):
        question = Template(question).safe_substitute(self.variables)
        client, method, path, body = re.fullmatch(r"([a-z]*) ?([A-Z]+) ?(\S*) ?(.*)", question).groups()
        match method:
            case "FOLLOW":
                self.followed = self.open("GET", path)
                return ""
            case "EVENTS":
                return self.read(self.followed)
            case "COMPACT":
                command = ["bash", "-c", self.compact, "compact", self.variables["LAST"]]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                return ""
            case "MARK":
                self.read(self.open("GET", "nodes?limit=1"))
                self.variables["MARK"] = self.variables["LIST"]
                return ""
        # What is no YAML is sent as it is.
        if body and body != "{":
            whole = {"kind": "Node", "apiVersion": "v1"} if method in ("POST", "PUT") else {}
            body = json.dumps(whole | yaml.safe_load(body))
        return self.read(self.open(method, path, body, client))

    def read(self, response):
        text = response.read().decode()
        retry = response.headers.get("Retry-After")
        kind = response.headers.get_content_type()
        code = words(response.status, kind != "application/json" and kind, retry and f"again after {retry} s:")
        try:
            return words(code, "; ".join(dict.fromkeys(filter(None, map(self.told, documents(text))))))
        except ValueError:
            return words(code, response.status == 200 and text)

    def told(self, value):
        """An event, or what a question is answered with."""
        if "object" in value:
            told = self.told(value["object"])
            return told and words(value["type"], told)
        if "metadata" not in value:
            return words(*sorted(value))
        if "continue" in value["metadata"]:
            self.variables["PAGE"] = quote(value["metadata"]["continue"])
        if value.get("kind") == "Status":
            return self.status(value)
        return self.listed(value) if "items" in value else self.node(value)

    def status(self, value):
        details = value.get("details") or {}
        reason = value.get("reason") or value["status"]
        if reason in REWORDED:
            return words(reason, *(cause["field"] for cause in details.get("causes", [])[:1]))
        message = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b\d+", "N", value.get("message", ""))
        return words(reason, textwrap.shorten(message, 70, placeholder="..."), some(details, "kind", "name"))

    def listed(self, value):
        revision = self.variables["LIST"] = value["metadata"]["resourceVersion"]
        nodes = filter(None, map(self.node, value["items"]))
        return words(value["kind"], revision == self.variables.get("MARK") and "of the mark", *nodes,
                     "continue" in value["metadata"] and "...")

    def node(self, value):
        metadata, spec, status = value["metadata"], value["spec"], value["status"]
        name, revision = metadata.get("name"), int(metadata["resourceVersion"])
        if name and name not in OURS:
            return ""
        # A bookmark has no name: it is of all that was before.
        before = self.seen.get(name, 0) if name else max(self.seen.values())
        if name:
            assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"]), metadata
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"]), metadata
            self.seen[name] = max(before, revision)
            self.variables["LAST"] = metadata["resourceVersion"]
        return words(value.get("kind"), name, "+" if revision > before else "-" if revision < before else "=",
                     some(metadata, "annotations", "labels"), some(spec, "podCIDR", "podCIDRs", "unschedulable"),
                     *(some(one, "type", "status", "reason", "message") for one in status.get("conditions", [])))

    def clean(self):
        for name in OURS:
            self.open("DELETE", f"nodes/{name}").read()


def main():
    server = Server(*sys.argv[1:])
    server.clean()
    for line in sys.stdin.read().splitlines():
        if not line or line.startswith("#"):
            print(line)
        elif not line.startswith(" "):
            question = line.partition(" => ")[0]
            answer = server.answer(question)
            whole = f"{question} => {answer}" if answer else question
            below = textwrap.wrap(answer, COLUMNS - 4, break_long_words=False, break_on_hyphens=False)
            print(whole if len(whole) <= COLUMNS else "\n    ".join([question, *below]), flush=True)
    server.clean()


main()
