#!/usr/bin/env python3
"""Asks an API server about Nodes by Kubernetes' Python client, and prints what it answers, for a comparison of two.

    apiserver_python.py KUBECONFIG RESTRICTED COMPACT...

Arguments and output are those of apiserver_http.py.
"""

import json
import subprocess
import sys
import threading
import time

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

NAMES = ["python-a", "python-b", "python-c"]
# Seconds: no answer takes longer.
PATIENCE = 20


def api(kubeconfig):
    return client.CoreV1Api(config.new_client_from_config(kubeconfig))


def say(name, answer):
    print(f"{name}\t{json.dumps(answer, sort_keys=True)}", flush=True)


def refused(call, *words, **named):
    """What the client raises."""
    try:
        return f"not refused: {type(call(*words, **named)).__name__}"
    except ApiException as error:
        body = json.loads(error.body) if error.body else {}
        return [error.status, error.reason, body.get("reason"), body.get("kind"), sorted(body.get("details") or {})]


def shape(node):
    metadata, status = node.metadata, node.status
    return {
        "type": type(node).__name__, "kind": node.kind, "name": metadata.name, "annotations": metadata.annotations,
        "labels": metadata.labels, "uid": bool(metadata.uid), "created": bool(metadata.creation_timestamp),
        "subnet": node.spec.pod_cidr, "unschedulable": node.spec.unschedulable,
        "conditions": [[one.type, one.status, one.reason] for one in status.conditions or []],
    }


def body(name, **metadata):
    return client.V1Node(api_version="v1", kind="Node", metadata=client.V1ObjectMeta(name=name, **metadata))


def clean(nodes):
    for name in NAMES:
        try:
            nodes.delete_node(name)
        except ApiException:
            pass


def changes(nodes):
    for name in NAMES:
        say(f"create {name}", shape(nodes.create_node(body(name, annotations={"one": "1"}))))
    say("create again", refused(nodes.create_node, body("python-a")))
    say("read none", refused(nodes.read_node, "python-none"))
    say("patch", shape(nodes.patch_node("python-a", {"metadata": {"annotations": {"one": None, "two": "2"}}})))
    condition = {"type": "NetworkUnavailable", "status": "False", "reason": "FlannelIsUp"}
    patch = {"metadata": {"annotations": {"flannel.alpha.coreos.com/backend-type": "vxlan"}},
             "status": {"conditions": [{**condition, "status": "True"}, {"type": "Ready", "status": "True"}]}}
    say("patch the status", shape(nodes.patch_node_status("python-a", patch)))
    say("patch one condition", shape(nodes.patch_node_status("python-a", {"status": {"conditions": [condition]}})))
    old = nodes.read_node("python-b")
    old.metadata.labels = {"three": "3"}
    say("replace", shape(nodes.replace_node("python-b", old)))
    say("replace a stale one", refused(nodes.replace_node, "python-b", old))
    stale = {"metadata": {"resourceVersion": old.metadata.resource_version, "labels": {"four": "4"}}}
    say("patch a stale one", refused(nodes.patch_node, "python-b", stale))


def lists(nodes):
    every = [one.metadata.name for one in nodes.list_node().items]
    pages, go_on = [], None
    while True:
        page = nodes.list_node(limit=2, _continue=go_on)
        pages += [one.metadata.name for one in page.items]
        go_on = page.metadata._continue
        if not go_on:
            break
    say("list", [name for name in every if name in NAMES])
    say("pages", pages == every)
    say("one", [shape(one) for one in nodes.list_node(field_selector="metadata.name=python-c").items])
    say("a wrong selector", refused(nodes.list_node, field_selector="x.y=z"))


def watches(nodes):
    start = nodes.list_node(limit=1).metadata.resource_version
    changer = threading.Thread(target=change, args=(nodes,))
    changer.start()
    stream = watch.Watch().stream(nodes.list_node, resource_version=start, timeout_seconds=5, allow_watch_bookmarks=True)
    events = [event for event in stream if event["type"] == "BOOKMARK" or event["object"].metadata.name == "python-w"]
    changer.join()
    say("watch", [[event["type"], shape(event["object"])] for event in events if event["type"] != "BOOKMARK"])
    say("bookmarks", any(event["type"] == "BOOKMARK" for event in events))
    revisions = [int(event["raw_object"]["metadata"]["resourceVersion"]) for event in events]
    say("revisions grow", revisions == sorted(revisions) and revisions[0] > int(start))
    stream = watch.Watch().stream(nodes.list_node, timeout_seconds=1, field_selector="metadata.name=python-a")
    say("watch from now", [[event["type"], shape(event["object"])] for event in stream])


def change(nodes):
    time.sleep(1)
    nodes.create_node(body("python-w"))
    nodes.patch_node("python-w", {"spec": {"unschedulable": True}})
    nodes.delete_node("python-w")


def compacted(nodes, command):
    first = nodes.list_node(limit=1).metadata
    nodes.patch_node("python-a", {"metadata": {"labels": {"compacted": "yes"}}})
    now = nodes.list_node(limit=1).metadata.resource_version
    subprocess.run([*command, now], check=True, stdout=subprocess.DEVNULL)
    say("compacted: the next page", refused(nodes.list_node, limit=1, _continue=first._continue))
    try:
        stream = watch.Watch().stream(nodes.list_node, resource_version=first.resource_version, timeout_seconds=2)
        say("compacted: a watch", [event["type"] for event in stream])
    except ApiException as error:
        say("compacted: a watch", [error.status, error.reason.split(":")[0]])


def rights(restricted):
    say("rights: read", shape(restricted.read_node("python-c")))
    patch = {"metadata": {"annotations": {"five": "5"}}}
    say("rights: patch the status", shape(restricted.patch_node_status("python-c", patch)))
    say("rights: patch", refused(restricted.patch_node, "python-c", patch))
    say("rights: delete", refused(restricted.delete_node, "python-c"))
    say("rights: create", refused(restricted.create_node, body("python-d")))


def main():
    admin, restricted, *command = sys.argv[1:]
    nodes = api(admin)
    clean(nodes)
    changes(nodes)
    lists(nodes)
    watches(nodes)
    if command != ["-"]:
        # A server that was started again breaks the connections of before.
        compacted(nodes, command)
        nodes = api(admin)
    rights(api(restricted))
    status = nodes.api_client.sanitize_for_serialization(nodes.delete_node("python-c"))
    say("delete", [status["kind"], status["status"], status["details"]["name"], status["details"]["kind"]])
    clean(nodes)


main()
