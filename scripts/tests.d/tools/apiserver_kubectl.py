#!/usr/bin/env python3
"""Asks an API server about Nodes by kubectl, and prints what it answers, for a comparison of two.

    apiserver_kubectl.py KUBECONFIG RESTRICTED COMPACT...

Arguments and output are those of apiserver_http.py; the answer is kubectl's exit code, its output and its errors. The
variable KUBECTL names another kubectl than that of PATH.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

KUBECTL = os.environ.get("KUBECTL", "kubectl")
NAMES = ["kubectl-a", "kubectl-b", "kubectl-c"]
# Seconds: no command takes longer.
PATIENCE = 30
SUBNET = "{.spec.podCIDR} {.spec.podCIDRs[*]}"
CONDITIONS = '{range .status.conditions[*]}{.type}={.status} {end}'


class Kubectl:
    def __init__(self, kubeconfig, folder):
        # What it learns of one server is of no other one; and a user's settings are of no test.
        self.command = [KUBECTL, "--kubeconfig", kubeconfig, "--cache-dir", f"{folder}/{os.path.basename(kubeconfig)}",
                        "--request-timeout", "20s"]

    def run(self, *words, given=None):
        return subprocess.run([*self.command, *words], input=given, capture_output=True, text=True, timeout=PATIENCE,
                              check=False)

    def ask(self, name, *words, given=None):
        done = self.run(*words, given=given)
        say(name, {"code": done.returncode, "output": lines(done.stdout), "errors": lines(done.stderr)})

    def start(self, *words):
        return subprocess.Popen([*self.command, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def say(name, answer):
    print(f"{name}\t{json.dumps(answer, sort_keys=True)}", flush=True)


def lines(text):
    """Without other Nodes than ours, and the warnings of a kubectl of another version."""
    found = [re.sub(r"\d{4,}", "N", line) for line in text.splitlines()]
    found = [line for line in found if not re.match(r"[EIW]N ", line) and not line.startswith("Warning:")]
    return [line for line in found if "kubectl-" in line or "node/" not in line]


def node(name, **metadata):
    return json.dumps({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, **metadata}})


def changes(kubectl):
    create = ("create", "--validate=false", "-f", "-")
    for name in NAMES:
        kubectl.ask(f"create {name}", *create, given=node(name, labels={"one": "1"}))
    kubectl.ask("create again", *create, given=node("kubectl-a"))
    kubectl.ask("get none", "get", "node", "kubectl-none")
    kubectl.ask("get", "get", "node", "kubectl-a", "-o", "name")
    kubectl.ask("annotate", "annotate", "node", "kubectl-a", "flannel.alpha.coreos.com/public-ip-overwrite=192.0.2.9")
    kubectl.ask("annotate again", "annotate", "node", "kubectl-a", "flannel.alpha.coreos.com/public-ip-overwrite=192.0.2.8")
    kubectl.ask("annotate anyway", "annotate", "--overwrite", "node", "kubectl-a", "x=y")
    kubectl.ask("annotate a stale one", "annotate", "--overwrite", "--resource-version=1", "node", "kubectl-a", "x=z")
    kubectl.ask("annotations", "get", "node", "kubectl-a", "-o", "jsonpath={.metadata.annotations}")
    kubectl.ask("label", "label", "node", "kubectl-a", "tartan.io/dataplane=tartan")
    # What it says of that differs between versions.
    say("label taken away", kubectl.run("label", "node", "kubectl-a", "one-").returncode)
    kubectl.ask("labels", "get", "node", "kubectl-a", "-o", "jsonpath={.metadata.labels}")
    kubectl.ask("cordon", "cordon", "kubectl-a")
    kubectl.ask("uncordon", "uncordon", "kubectl-a")
    kubectl.ask("patch", "patch", "node", "kubectl-a", "-p", '{"spec": {"podCIDR": "10.1.2.0/24"}}')
    kubectl.ask("patch without a change", "patch", "node", "kubectl-a", "-p", '{"spec": {"podCIDR": "10.1.2.0/24"}}')
    kubectl.ask("subnets", "get", "node", "kubectl-a", "-o", f"jsonpath={SUBNET}")
    kubectl.ask("merge patch", "patch", "node", "kubectl-a", "--type=merge", "-p", '{"metadata": {"labels": {"two": "2"}}}')
    kubectl.ask("replace a stale one", "replace", "--validate=false", "-f", "-", given=node("kubectl-a", resourceVersion="1"))
    if "--subresource" in kubectl.run("patch", "--help").stdout:
        statuses(kubectl)


def statuses(kubectl):
    for status in ("False", "True"):
        patch = {"status": {"conditions": [{"type": "Ready", "status": status}, {"type": f"Was{status}", "status": "True"}]}}
        kubectl.ask(f"patch the status: {status}", "patch", "node", "kubectl-a", "--subresource=status", "-p", json.dumps(patch))
    kubectl.ask("conditions", "get", "node", "kubectl-a", "-o", f"jsonpath={CONDITIONS}")
    kubectl.ask("wait", "wait", "node/kubectl-a", "--for=condition=Ready", "--timeout=5s")
    waiting = kubectl.start("wait", "node/kubectl-b", "--for=condition=Ready", "--timeout=15s")
    time.sleep(2)
    kubectl.run("patch", "node", "kubectl-b", "--subresource=status",
                "-p", '{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}')
    say("wait for a change", [waiting.communicate(timeout=PATIENCE)[0], waiting.returncode])


def lists(kubectl):
    kubectl.ask("list", "get", "nodes", "-o", "name")
    kubectl.ask("pages", "get", "nodes", "-o", "name", "--chunk-size=1")
    kubectl.ask("one", "get", "nodes", "--field-selector=metadata.name=kubectl-b", "-o", "name")
    kubectl.ask("a wrong selector", "get", "nodes", "--field-selector=x.y=z", "-o", "name")
    kubectl.ask("another resource", "get", "oracles")
    kubectl.ask("a page of health", "get", "--raw", "/readyz")


def watches(kubectl):
    watching = kubectl.start("get", "nodes", "--watch-only", "--output-watch-events",
                             "-o", 'jsonpath={.type} {.object.metadata.name}{"\\n"}')
    time.sleep(2)
    kubectl.run("create", "--validate=false", "-f", "-", given=node("kubectl-w"))
    kubectl.run("label", "node", "kubectl-w", "three=3")
    # Waits for it to be gone, by a list and a watch of this Node.
    kubectl.ask("delete and wait", "delete", "node", "kubectl-w", "--timeout=10s")
    time.sleep(1)
    watching.terminate()
    output = watching.communicate(timeout=PATIENCE)[0]
    say("watch", [line for line in output.splitlines() if "kubectl-w" in line])


def rights(kubectl):
    kubectl.ask("rights: get", "get", "node", "kubectl-a", "-o", "name")
    kubectl.ask("rights: label", "label", "node", "kubectl-a", "four=4")
    kubectl.ask("rights: delete", "delete", "node", "kubectl-a")


def main():
    admin, restricted, *_ = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        kubectl = Kubectl(admin, folder)
        kubectl.run("delete", "node", "--ignore-not-found", *NAMES, "kubectl-w")
        changes(kubectl)
        lists(kubectl)
        watches(kubectl)
        rights(Kubectl(restricted, folder))
        kubectl.ask("delete", "delete", "node", *NAMES)
        kubectl.ask("delete again", "delete", "node", "kubectl-a")


main()
