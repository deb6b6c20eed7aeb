"""Writes and reads the Nodes of a lab's API server, as the parts of Kubernetes and flanneld would.

    kube_nodes.py URL add NAME CIDR...       creates the Node with its podCIDRs; one that exists gets them
    kube_nodes.py URL delete NAME
    kube_nodes.py URL unassign NAME          takes its podCIDRs away: as a server refuses a change of them, by deleting the Node
                                             and creating it as it was without
    kube_nodes.py URL annotate NAME <LINES   sets flannel's annotations, each line a name and its value; without
                                             a value it is removed
    kube_nodes.py URL compact                lets the lab's server forget what was before
    kube_nodes.py URL list                   prints the list of Nodes as the server gives it
    kube_nodes.py URL leases                 prints what they say of their overlay, one a line of JSON

URL is the server's, without TLS. Needs Python 3 alone.
"""

import json
import sys
import urllib.error
import urllib.request

NODES = "/api/v1/nodes"
PREFIX = "flannel.alpha.coreos.com/"
SECONDS = 5


def ask(url, method="GET", body=None, kind="application/json"):
    """The answer's document; exits with the server's words when it refuses."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": kind}, method=method)
    with open_url(request) as answer:
        return json.load(answer)


def open_url(request):
    # The lab's addresses are behind no proxy, whatever the shell has set.
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=SECONDS)


def add(url, name, ranges):
    spec = {"podCIDR": ranges[0], "podCIDRs": ranges}
    # A Node without any annotation is what flanneld stumbles over; kubelet writes some.
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}
    try:
        ask(url + NODES, "POST", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise
        ask(f"{url}{NODES}/{name}", "PATCH", {"spec": spec}, "application/merge-patch+json")


def unassign(url, name):
    node = ask(f"{url}{NODES}/{name}")
    ask(f"{url}{NODES}/{name}", "DELETE")
    metadata = {key: node["metadata"].get(key) for key in ("name", "labels", "annotations")}
    ask(url + NODES, "POST", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}})


def annotate(url, name, lines):
    wanted = {}
    for line in lines:
        key, _, value = line.strip().partition(" ")
        wanted[PREFIX + key] = value or None
    ask(f"{url}{NODES}/{name}", "PATCH", {"metadata": {"annotations": wanted}}, "application/merge-patch+json")


def leases(nodes):
    for node in nodes:
        notes = node["metadata"].get("annotations") or {}
        spec = node.get("spec") or {}
        if notes.get(PREFIX + "kube-subnet-manager") != "true":
            continue
        yield {
            "key": node["metadata"]["name"],
            "subnets": spec.get("podCIDRs") or [spec.get("podCIDR")],
            "type": notes.get(PREFIX + "backend-type") or "udp",
            "public4": notes.get(PREFIX + "public-ip"),
            "public6": notes.get(PREFIX + "public-ipv6"),
            "mac4": mac(notes.get(PREFIX + "backend-data")),
            "mac6": mac(notes.get(PREFIX + "backend-v6-data")),
        }


def mac(data):
    return (json.loads(data or "null") or {}).get("VtepMAC")


def main():
    url, verb, *words = sys.argv[1:]
    match verb:
        case "add":
            add(url, words[0], words[1:])
        case "delete":
            ask(f"{url}{NODES}/{words[0]}", "DELETE")
        case "unassign":
            unassign(url, words[0])
        case "annotate":
            annotate(url, words[0], sys.stdin)
        case "compact":
            open_url(urllib.request.Request(f"{url}/test/compact", b"", method="POST"))
        case "list":
            json.dump(ask(url + NODES), sys.stdout)
        case "leases":
            for lease in leases(ask(url + NODES)["items"]):
                print(json.dumps(lease))
        case _:
            sys.exit(__doc__)


try:
    main()
except urllib.error.HTTPError as error:
    sys.exit(f"kube_nodes.py: the API server answers {error.code}: {error.read(500).decode(errors='replace')}")
except OSError as error:
    sys.exit(f"kube_nodes.py: the API server does not answer: {error}")
