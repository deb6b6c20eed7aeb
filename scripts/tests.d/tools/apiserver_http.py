#!/usr/bin/env python3
"""Asks an API server about Nodes by HTTP alone, and prints what it answers, for a comparison of two servers.

    apiserver_http.py KUBECONFIG RESTRICTED COMPACT...

KUBECONFIG is the administrator's, RESTRICTED that of a user with flannel's rights. COMPACT... is a command that, with a
revision as one more argument, makes the server forget what was before; '-' leaves out what needs it. Prints a line for
each question: its name, a tab, the answer as JSON without what differs from run to run. Leaves no Node behind.
"""

import http.client
import json
import re
import ssl
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from urllib.parse import quote, urlsplit

import yaml

NODES = "/api/v1/nodes"
# The Nodes of this test, by which it lists: there may be others.
NAMES = ["oracle-a", "oracle-b", "oracle-c"]
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
# Seconds: no answer takes longer.
PATIENCE = 20


class Server:
    """An API server as a kubeconfig names it."""

    def __init__(self, kubeconfig):
        with open(kubeconfig, encoding="utf-8") as file:
            config = yaml.safe_load(file)
        context = by_name(config["contexts"], config["current-context"])["context"]
        cluster = by_name(config["clusters"], context["cluster"])["cluster"]
        user = by_name(config["users"], context["user"])["user"] or {}
        url = urlsplit(cluster["server"])
        self.address = (url.hostname, url.port)
        self.tls = tls(cluster, user) if url.scheme == "https" else None
        # Of nobody: a certificate counts more than a token.
        self.bare_tls = tls(cluster, {}) if url.scheme == "https" else None
        self.token = user.get("token")

    def connection(self, tls):
        if tls:
            return http.client.HTTPSConnection(*self.address, timeout=PATIENCE, context=tls)
        return http.client.HTTPConnection(*self.address, timeout=PATIENCE)

    def open(self, method, path, body=None, kind="application/json", token=None):
        """The answer, whose body is not read yet."""
        headers = {"Accept": "application/json"}
        if token or self.token:
            headers["Authorization"] = f"Bearer {token or self.token}"
        if body is not None:
            headers["Content-Type"] = kind
            body = body if isinstance(body, str) else json.dumps(body)
        connection = self.connection(self.bare_tls if token else self.tls)
        connection.request(method, path, body, headers)
        return connection.getresponse()

    def ask(self, *words, **named):
        """Status code, headers, body: an object if it is JSON."""
        response = self.open(*words, **named)
        text = response.read().decode()
        try:
            return response.status, response.headers, json.loads(text)
        except ValueError:
            return response.status, response.headers, text

    def watch(self, query, lines=100):
        """The events of a watch that ends by its own time, or after so many; calls itself `done` at its end."""
        response = self.open("GET", f"{NODES}?watch=true&{query}")
        events = []
        while len(events) < lines and (line := response.readline()):
            events.append(json.loads(line))
        response.close()
        return response.status, events


def by_name(items, name):
    return next(item for item in items if item["name"] == name)


def tls(cluster, user):
    context = ssl.create_default_context()
    if "certificate-authority-data" in cluster:
        context.load_verify_locations(cadata=b64decode(cluster["certificate-authority-data"]).decode())
    else:
        context.load_verify_locations(cafile=cluster["certificate-authority"])
    # The CA of a test's cluster may lack what RFC 5280 wants of one.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile() as both:
            both.write(b64decode(user["client-certificate-data"]) + b"\n" + b64decode(user["client-key-data"]))
            both.flush()
            context.load_cert_chain(both.name)
    elif "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    return context


def node(name, **metadata):
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, **metadata}}


def shape(value):
    """A Node, a Status, a list or an event without what no two servers have in common."""
    if not isinstance(value, dict):
        return value
    if "object" in value:
        return {"type": value["type"], "object": shape(value["object"])}
    if value.get("kind") == "Status":
        return {**{key: value[key] for key in value if key != "metadata"},
                "message": re.sub(r"\d+", "N", plain(value.get("message", ""))), "details": details(value.get("details")),
                "metadata": sorted(value["metadata"])}
    if "items" in value:
        metadata = value["metadata"]
        return {"kind": value["kind"], "apiVersion": value["apiVersion"], "revision": revision(metadata),
                "continue": bool(metadata.get("continue")), "left": metadata.get("remainingItemCount"),
                "items": [shape(item) for item in value["items"]]}
    metadata, spec, status = value["metadata"], value.get("spec", {}), value.get("status", {})
    return {
        "kind": value.get("kind"), "apiVersion": value.get("apiVersion"), "name": metadata.get("name"),
        "uid": bool(re.fullmatch(r"[0-9a-f-]{36}", metadata.get("uid", ""))), "revision": revision(metadata),
        "created": bool(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata.get("creationTimestamp") or "")),
        **some(metadata, "annotations", "labels"), "spec": some(spec, "podCIDR", "podCIDRs", "unschedulable"),
        "status": some(status, "addresses", "conditions"),
    }


def some(found, *keys):
    """What is not there and what is null are not the same to every client."""
    return {key: found[key] for key in keys if key in found}


def plain(message):
    """Without unique names, and without what a newer version may say more."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UID", message)


def details(found):
    if found and "uid" in found:
        found = {**found, "uid": bool(found["uid"])}
    # Their messages are those of the whole, in other words from version to version.
    if found and "causes" in found:
        found = {**found, "causes": [{key: cause[key] for key in cause if key != "message"} for cause in found["causes"]]}
    return found


def revision(metadata):
    return metadata.get("resourceVersion", "").isdigit()


class Questions:
    def __init__(self, server, restricted, compact):
        self.server = server
        self.restricted = restricted
        self.compact_command = compact

    def say(self, name, answer):
        print(f"{name}\t{json.dumps(answer, sort_keys=True)}", flush=True)

    def asked(self, name, *words, **named):
        """Asks, prints what matters of the answer, and returns its body."""
        code, headers, body = self.server.ask(*words, **named)
        kind = headers.get("Content-Type", "").split(";")[0]
        self.say(name, {"code": code, "kind": kind, "retry": headers.get("Retry-After"), "body": shape(body)})
        return body

    def quiet(self, *words, **named):
        """What another question has shown already."""
        code, _, body = self.server.ask(*words, **named)
        assert code < 300, (code, body)
        return body

    def current(self):
        return self.quiet("GET", f"{NODES}?limit=1")["metadata"]["resourceVersion"]

    def clean(self):
        for name in NAMES:
            self.server.ask("DELETE", f"{NODES}/{name}")

    def all(self):
        self.clean()
        self.creations()
        self.reads()
        self.pages()
        self.selectors()
        self.merge_patches()
        self.strategic_patches()
        self.updates()
        self.subnets()
        self.methods()
        self.watches()
        self.bookmarks()
        if self.compact_command:
            self.compactions()
        self.access()
        self.deletions()
        self.clean()

    def creations(self):
        self.asked("create", "POST", NODES, node("oracle-a", annotations={"one": "1"}, labels={"two": "2"}))
        self.asked("create it again", "POST", NODES, node("oracle-a"))
        self.asked("create: empty annotations", "POST", NODES, node("oracle-b", annotations={}))
        self.asked("create: no name", "POST", NODES, {"kind": "Node", "apiVersion": "v1", "metadata": {}})
        self.asked("create: a revision", "POST", NODES, node("oracle-c", resourceVersion="1"))
        code, _, body = self.server.ask("POST", NODES, node("Upper_Case"))
        self.say("create: a wrong name", [code, body.get("reason"), [cause["field"] for cause in body["details"]["causes"]]])
        code, _, body = self.server.ask("POST", NODES, {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "x"}})
        self.say("create: a wrong kind", [code, body.get("reason")])
        code, _, body = self.server.ask("POST", NODES, "{")
        self.say("create: no JSON", [code, body.get("reason")])

    def reads(self):
        self.asked("get", "GET", f"{NODES}/oracle-a")
        self.asked("get the status", "GET", f"{NODES}/oracle-a/status")
        self.asked("get none", "GET", f"{NODES}/oracle-none")
        self.asked("get another resource", "GET", "/api/v1/oracles")
        # The real server lists its paths there.
        self.say("get no page", [self.server.ask("GET", path)[0] for path in ("/oracle", "/apis/oracle/v1")])
        for path in ("/healthz", "/readyz", "/livez"):
            self.asked(f"get {path}", "GET", path)
        version = self.quiet("GET", "/version")
        self.say("version", {key: type(value).__name__ for key, value in version.items()})
        self.say("api", self.quiet("GET", "/api")["versions"])
        self.say("apis", sorted(self.quiet("GET", "/apis")))
        resources = self.quiet("GET", "/api/v1")["resources"]
        nodes = [one for one in resources if one["name"] in ("nodes", "nodes/status")]
        for one in nodes:
            one["verbs"] = [verb for verb in one["verbs"] if verb != "deletecollection"]
            for key in ("storageVersionHash", "singularName"):
                one.pop(key, None)
        self.say("api/v1", nodes)

    def pages(self):
        self.quiet("POST", NODES, node("oracle-c"))
        every = self.quiet("GET", NODES)
        ours = [item["metadata"]["name"] for item in every["items"] if item["metadata"]["name"] in NAMES]
        self.say("list", [ours, sorted(key for key in every if key != "items"), "kind" in every["items"][0]])
        pages, go_on, revisions = [], "", set()
        while True:
            page = self.quiet("GET", f"{NODES}?limit=1&continue={quote(go_on)}")
            revisions.add(page["metadata"]["resourceVersion"])
            pages += [item["metadata"]["name"] for item in page["items"]]
            left = page["metadata"].get("remainingItemCount")
            assert left == (len(every["items"]) - len(pages) or None), page["metadata"]
            # What is written between two pages is not in them.
            self.quiet("PATCH", f"{NODES}/oracle-c", {"metadata": {"labels": {"page": f"{len(pages)}"}}}, kind=MERGE)
            if not (go_on := page["metadata"].get("continue", "")):
                break
        self.say("pages", [[name for name in pages if name in NAMES], len(pages) == len(every["items"]), len(revisions)])
        self.quiet("PATCH", f"{NODES}/oracle-c", {"metadata": {"labels": {"page": "before"}}}, kind=MERGE)
        first = self.quiet("GET", f"{NODES}?limit=1")["metadata"]
        token, now = quote(first["continue"]), first["resourceVersion"]
        self.asked("list: of a token and a revision", "GET", f"{NODES}?limit=1&continue={token}&resourceVersion={now}")
        self.asked("list: a limit that is no number", "GET", f"{NODES}?limit=x")
        for bad in ("x", "e30"):
            code, _, body = self.server.ask("GET", f"{NODES}?limit=1&continue={bad}")
            self.say(f"list: the token {bad}", [code, body.get("reason"), body["message"].split(":")[0]])
        code, _, body = self.server.ask("GET", f"{NODES}?resourceVersion=x")
        self.say("list: a revision that is no number", [code, shape(body)])
        self.asked("list: a revision to come", "GET", f"{NODES}?resourceVersion=1000000000")
        for query in ("resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan",
                      f"resourceVersionMatch=Exact&resourceVersion=0", f"resourceVersionMatch=X&resourceVersion={now}",
                      f"resourceVersionMatch=Exact&limit=1&continue={token}&resourceVersion={now}",
                      f"resourceVersionMatch=Exact&resourceVersion={now}&watch=true"):
            code, _, body = self.server.ask("GET", f"{NODES}?{query}")
            name = query.replace(now, "NOW").replace(token, "TOKEN")
            self.say(f"list: {name}", [code, body.get("reason"), [cause["field"] for cause in body["details"]["causes"]]])
        self.quiet("PATCH", f"{NODES}/oracle-c", {"metadata": {"labels": {"page": "last"}}}, kind=MERGE)
        # The cache of a server may lag behind what was just written.
        time.sleep(0.3)
        for query in ("", f"resourceVersion={now}", f"resourceVersion={now}&resourceVersionMatch=Exact",
                      f"resourceVersion={now}&limit=500", f"resourceVersion={now}&resourceVersionMatch=NotOlderThan&limit=500"):
            found = self.quiet("GET", f"{NODES}?{query}")
            page = [one["metadata"]["labels"]["page"] for one in found["items"] if one["metadata"]["name"] == "oracle-c"]
            named = self.quiet("GET", f"{NODES}?fieldSelector=metadata.name%3Doracle-c&{query}")
            self.say(f"list: {query.replace(now, 'BEFORE')}",
                     [page, found["metadata"]["resourceVersion"] == now, named["items"][0]["metadata"]["labels"]["page"]])

    def selectors(self):
        for selector in ("metadata.name=oracle-a", "metadata.name==oracle-a", "metadata.name=oracle-none",
                         "metadata.name=oracle-a,metadata.name!=oracle-a", "metadata.name=oracle-a,spec.unschedulable=false",
                         "metadata.namespace=x", "status.x=y"):
            self.asked(f"list: {selector}", "GET", f"{NODES}?fieldSelector={quote(selector)}")
        code, _, body = self.server.ask("GET", f"{NODES}?fieldSelector=x")
        self.say("list: a selector that is none", [code, body.get("reason")])

    def merge_patches(self):
        path = f"{NODES}/oracle-a"
        before = self.quiet("GET", path)["metadata"]["resourceVersion"]
        patch = {"metadata": {"annotations": {"one": None, "three": "3"}}, "spec": {"unschedulable": True},
                 "status": {"conditions": [{"type": "Mine", "status": "True"}]}}
        after = self.asked("merge patch", "PATCH", path, patch, kind=MERGE)["metadata"]["resourceVersion"]
        again = self.asked("merge patch, again", "PATCH", path, patch, kind=MERGE)["metadata"]["resourceVersion"]
        self.say("merge patch: revisions", [int(after) > int(before), after == again])
        self.asked("merge patch: a stale revision", "PATCH", path,
                   {"metadata": {"resourceVersion": before, "labels": {"x": "y"}}}, kind=MERGE)
        self.asked("merge patch: this revision", "PATCH", path,
                   {"metadata": {"resourceVersion": after, "labels": {"x": "y"}}}, kind=MERGE)
        self.asked("merge patch: of no Node", "PATCH", f"{NODES}/oracle-none", patch, kind=MERGE)
        self.asked("merge patch: annotations null", "PATCH", path, {"metadata": {"annotations": None}}, kind=MERGE)
        # Which code it is differs between versions.
        self.say("merge patch: no JSON", self.server.ask("PATCH", path, "{", kind=MERGE)[0] >= 400)
        code, _, body = self.server.ask("PATCH", path, {}, kind="application/json")
        self.say("a patch of no kind", [code, body.get("reason")])
        code, _, body = self.server.ask("PATCH", path, {"metadata": {"name": "oracle-x"}}, kind=MERGE)
        self.say("merge patch: another name", [code, body.get("reason")])

    def strategic_patches(self):
        path = f"{NODES}/oracle-b"
        condition = {"type": "NetworkUnavailable", "status": "True", "reason": "R", "message": "M"}
        self.asked("status patch: annotations of a Node without", "PATCH", f"{path}/status",
                   {"metadata": {"annotations": {"flannel.alpha.coreos.com/backend-type": ""}}}, kind=STRATEGIC)
        self.asked("status patch: two conditions", "PATCH", f"{path}/status",
                   {"status": {"conditions": [condition, {"type": "Ready", "status": "False"}]}}, kind=STRATEGIC)
        self.asked("status patch: merged by type", "PATCH", f"{path}/status",
                   {"status": {"conditions": [{"type": "NetworkUnavailable", "status": "False", "message": None},
                                              {"type": "New", "status": "True"}]}}, kind=STRATEGIC)
        self.asked("status patch: an order", "PATCH", f"{path}/status",
                   {"status": {"$setElementOrder/conditions": [{"type": "New"}, {"type": "Ready"}, {"type": "NetworkUnavailable"}],
                               "conditions": [{"type": "New", "status": "False"}]}}, kind=STRATEGIC)
        self.asked("status patch: one deleted", "PATCH", f"{path}/status",
                   {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}, kind=STRATEGIC)
        self.asked("status patch: spec is none of it", "PATCH", f"{path}/status",
                   {"spec": {"unschedulable": True}, "metadata": {"labels": {"c": "d"}}}, kind=STRATEGIC)
        self.asked("status patch: addresses", "PATCH", f"{path}/status",
                   {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}, kind=STRATEGIC)
        self.asked("status patch: all replaced", "PATCH", f"{path}/status",
                   {"status": {"conditions": [{"$patch": "replace"}, {"type": "Only", "status": "True"}]}}, kind=STRATEGIC)
        self.asked("status merge patch: the list replaced", "PATCH", f"{path}/status",
                   {"status": {"conditions": [{"type": "Last", "status": "True"}]}}, kind=MERGE)
        self.asked("patch: status is none of it", "PATCH", path,
                   {"status": {"conditions": [{"type": "Mine", "status": "True"}]},
                    "metadata": {"annotations": {"e": "f"}}}, kind=STRATEGIC)
        self.asked("patch: annotations replaced", "PATCH", path,
                   {"metadata": {"annotations": {"$patch": "replace", "g": "h"}}}, kind=STRATEGIC)
        self.asked("status patch: of no Node", "PATCH", f"{NODES}/oracle-none/status", {}, kind=STRATEGIC)

    def updates(self):
        path = f"{NODES}/oracle-b"
        old = self.quiet("GET", path)
        new = json.loads(json.dumps(old))
        new["metadata"]["annotations"] = {"i": "j"}
        new["status"]["conditions"] = []
        self.asked("update", "PUT", path, new)
        self.asked("update: a stale revision", "PUT", path, old)
        del new["metadata"]["resourceVersion"]
        new["metadata"]["annotations"] = {"k": "l"}
        self.asked("update: no revision", "PUT", path, new)
        self.asked("update: another name", "PUT", f"{NODES}/oracle-a", new)
        self.asked("update: of no Node", "PUT", f"{NODES}/oracle-none", node("oracle-none"))
        new["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000"
        code, _, body = self.server.ask("PUT", path, new)
        self.say("update: another uid", [code, body.get("reason"), body["details"]])
        new["metadata"]["uid"] = old["metadata"]["uid"]
        new["spec"]["unschedulable"] = True
        new["status"]["conditions"] = [{"type": "Put", "status": "True"}]
        self.asked("update the status", "PUT", f"{path}/status", new)

    def subnets(self):
        path = f"{NODES}/oracle-a"
        self.asked("podCIDR", "PATCH", path, {"spec": {"podCIDR": "10.1.2.0/24"}}, kind=STRATEGIC)
        change = {"spec": {"podCIDR": "10.1.3.0/24", "podCIDRs": ["10.1.3.0/24"]}}
        code, _, body = self.server.ask("PATCH", path, change, kind=MERGE)
        self.say("podCIDR changed", [code, body.get("reason"), body["details"]["causes"][0]["field"]])
        # Old servers keep the first one alone.
        both = {"spec": {"podCIDRs": ["10.1.4.0/24", "fd00:1:2:3::/64"]}}
        found = self.quiet("PATCH", f"{NODES}/oracle-c", both, kind=STRATEGIC)
        self.say("podCIDRs of two families", found["spec"]["podCIDR"])

    def methods(self):
        for method, path in (("POST", f"{NODES}/oracle-a"), ("PUT", NODES), ("PATCH", NODES),
                             ("DELETE", f"{NODES}/oracle-a/status"), ("POST", f"{NODES}/oracle-a/status")):
            self.asked(f"{method} {path}", method, path, {})

    def watches(self):
        before = self.current()
        response = self.server.open("GET", f"{NODES}?watch=1&resourceVersion={before}&timeoutSeconds=5")
        self.say("watch", [response.status, response.headers.get("Content-Type").split(";")[0]])
        self.quiet("POST", NODES, node("oracle-w"))
        self.quiet("PATCH", f"{NODES}/oracle-w", {"metadata": {"annotations": {"a": "1"}}}, kind=MERGE)
        self.quiet("PATCH", f"{NODES}/oracle-w", {"metadata": {"annotations": {"a": "1"}}}, kind=MERGE)
        self.quiet("DELETE", f"{NODES}/oracle-w")
        began, events = time.monotonic(), []
        while line := response.readline():
            events.append(json.loads(line))
        self.say("watch: its end", 2 < time.monotonic() - began < 8)
        ours = [event for event in events if event["object"]["metadata"]["name"] == "oracle-w"]
        for event in ours:
            self.say(f"watch: {event['type']}", shape(event))
        revisions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
        self.say("watch: revisions grow", revisions == sorted(set(revisions)) and revisions[0] > int(before))
        for asked in ("", "&resourceVersion=0"):
            _, events = self.server.watch(f"timeoutSeconds=1&fieldSelector=metadata.name%3Doracle-a{asked}")
            self.say(f"watch: one Node{asked}", [shape(event) for event in events])
        _, events = self.server.watch(f"timeoutSeconds=1&fieldSelector=metadata.name%3Doracle-w&resourceVersion={before}")
        self.say("watch: what was missed", [event["type"] for event in events])
        _, events = self.server.watch(f"timeoutSeconds=1&fieldSelector=metadata.name%3Doracle-a&resourceVersion={before}")
        self.say("watch: nothing was missed", events)
        code, _, body = self.server.ask("GET", f"{NODES}?watch=true&resourceVersion=x")
        self.say("watch: a revision that is no number", [code, shape(body)])

    def bookmarks(self):
        for asked in ("true", "false"):
            now = self.current()
            response = self.server.open(
                "GET", f"{NODES}?watch=true&allowWatchBookmarks={asked}&resourceVersion={now}&timeoutSeconds=5")
            written = self.quiet("PATCH", f"{NODES}/oracle-a", {"metadata": {"labels": {"bookmarks": asked}}}, kind=MERGE)
            events = []
            while line := response.readline():
                events.append(json.loads(line))
            found = [event for event in events if event["type"] == "BOOKMARK"]
            self.say(f"bookmarks {asked}", bool(found))
            for event in found[:1]:
                same = int(event["object"]["metadata"]["resourceVersion"]) >= int(written["metadata"]["resourceVersion"])
                self.say("a bookmark", [sorted(event["object"]), same, event["object"]["kind"]])

    def compactions(self):
        first = self.quiet("GET", f"{NODES}?limit=1")["metadata"]
        for label in ("1", "2"):
            self.quiet("PATCH", f"{NODES}/oracle-a", {"metadata": {"labels": {"compacted": label}}}, kind=MERGE)
        subprocess.run([*self.compact_command, self.current()], check=True, stdout=subprocess.DEVNULL)
        old = first["resourceVersion"]
        body = self.asked("compacted: the next page", "GET", f"{NODES}?limit=1&continue={quote(first['continue'])}")
        token = quote(body["metadata"].get("continue", ""))
        code, _, body = self.server.ask("GET", f"{NODES}?limit=100&continue={token}")
        names = [item["metadata"]["name"] for item in body["items"]]
        now = self.current()
        self.say("compacted: the token of the error", [code, names[-2:], body["metadata"]["resourceVersion"] == now])
        self.asked("compacted: exactly this list", "GET", f"{NODES}?resourceVersion={old}&resourceVersionMatch=Exact")
        self.asked("compacted: a page of this list", "GET", f"{NODES}?resourceVersion={old}&limit=1")
        code, _, body = self.server.ask("GET", f"{NODES}?resourceVersion={old}")
        self.say("compacted: not older than", [code, int(body["metadata"]["resourceVersion"]) > int(old)])
        code, events = self.server.watch(f"resourceVersion={old}&timeoutSeconds=3")
        self.say("compacted: a watch", [code, [shape(event) for event in events]])

    def access(self):
        self.asked("a wrong token", "GET", NODES, token="wrong")
        full, self.server = self.server, self.restricted
        try:
            self.asked("rights: get", "GET", f"{NODES}/oracle-a")
            self.say("rights: list", self.server.ask("GET", NODES)[0])
            self.say("rights: watch", self.server.watch("timeoutSeconds=1")[0])
            self.asked("rights: patch the status", "PATCH", f"{NODES}/oracle-a/status",
                       {"metadata": {"annotations": {"m": "n"}}}, kind=STRATEGIC)
            self.asked("rights: patch", "PATCH", f"{NODES}/oracle-a", {"metadata": {"annotations": {"m": "o"}}}, kind=STRATEGIC)
            self.asked("rights: create", "POST", NODES, node("oracle-x"))
            self.asked("rights: update the status", "PUT", f"{NODES}/oracle-a/status", node("oracle-a"))
            self.asked("rights: delete", "DELETE", f"{NODES}/oracle-a")
            self.asked("rights: a path", "GET", "/metrics")
            self.say("rights: version", self.server.ask("GET", "/version")[0])
        finally:
            self.server = full

    def deletions(self):
        path = f"{NODES}/oracle-a"
        options = {"kind": "DeleteOptions", "apiVersion": "v1"}
        wrong = {"uid": "00000000-0000-4000-8000-000000000000"}
        self.asked("delete: another uid", "DELETE", path, {**options, "preconditions": wrong})
        self.asked("delete: a stale revision", "DELETE", path, {**options, "preconditions": {"resourceVersion": "1"}})
        self.asked("delete", "DELETE", path)
        self.asked("delete it again", "DELETE", path)
        self.asked("get what is deleted", "GET", path)


def main():
    admin, restricted, *compact = sys.argv[1:]
    questions = Questions(Server(admin), Server(restricted), [] if compact == ["-"] else compact)
    questions.all()


main()
