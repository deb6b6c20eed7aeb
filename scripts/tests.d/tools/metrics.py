#!/usr/bin/env python3
"""What metrics.sh asks of pages of metrics and of Prometheus. Prints what is wrong, and fails then.

    metrics.py compare DIRECTORY LIMIT     DIRECTORY has the page and the JSON of status, drops, peers and pods
    metrics.py targets URL COUNT           Prometheus at URL has scraped so many nodes
    metrics.py rules URL                   it has evaluated every rule
    metrics.py dashboard URL FILE          every query of the dashboard has an answer
"""

import json
import re
import sys
import urllib.parse
import urllib.request
from collections import defaultdict
from pathlib import Path

SAMPLE = re.compile(r'^(\w+)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Queries whose answer may be empty: what they select need not exist in a lab.
MAY_BE_EMPTY = re.compile(r'> 0$| < on |worker="kernel-path"|tartan_flow|kernel_path_passed|lost_route|tartan_problems')
# Dashboards' variables, as Grafana would fill them.
VARIABLES = {"$__rate_interval": "10s", "$instance": ".*"}


def samples(page):
    """The values of each metric, by its labels."""
    found = defaultdict(dict)
    for line in page.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = SAMPLE.match(line).groups()
        key = tuple(value for _, value in LABEL.findall(labels or ""))
        if key in found[name]:
            sys.exit(f"{line}: twice")
        found[name][key] = float(value)
    return found


def compare(directory, limit):
    read = lambda name: json.loads((Path(directory) / name).read_text())
    page = samples((Path(directory) / "page").read_text())
    status, drops, peers, pods = (read(name) for name in ("status", "drops", "peers", "pods"))
    wrong = []

    def equal(what, expected, found):
        if expected != found:
            wrong.append(f"{what}: the command prints {expected}, the page {found}")

    for worker in drops["workers"]:
        for way in ("outbound", "inbound"):
            flow = worker[way]
            for fate in ("received", "originated", "sent", "delivered"):
                equal(f"{fate} {worker['name']} {way}", flow[fate],
                      page[f"tartan_{fate}_packets_total"].get((worker["name"], way)))
            equal(f"probes {worker['name']} {way}", flow["probes"], page["tartan_probe_packets_total"].get((worker["name"], way)))
            equal(f"held {worker['name']} {way}", flow["held"], page["tartan_held_packets"].get((worker["name"], way)))
            dropped = page["tartan_dropped_packets_total"]
            for reason in {row["reason"] for row in drops["reasons"]}:
                equal(f"{reason} {worker['name']} {way}", flow["dropped"].get(reason, 0),
                      dropped.get((worker["name"], way, reason)))
    for key, name in [("sent_packets", "sent_packets"), ("sent_bytes", "sent_bytes"), ("refused", "refused_packets"),
                      ("received_packets", "received_packets"), ("received_bytes", "received_bytes")]:
        series = page[f"tartan_peer_{name}_total"]
        equal(f"{key} of all peers", sum(peer[key] for peer in peers["peers"]), sum(series.values()))
        if len(series) != min(limit, len(peers["peers"])) + 1:
            wrong.append(f"{name}: {len(series)} series of {len(peers['peers'])} peers")
        for peer in peers["peers"]:
            if (peer["name"],) in series:
                equal(f"{key} of {peer['name']}", peer[key], series[(peer["name"],)])
    totals = {(row["direction"], row["reason"]): row["count"] for row in drops["reasons"]}
    own = {key[0] for key in page["tartan_peer_sent_packets_total"]}
    drops_agree("peer", page["tartan_peer_dropped_packets_total"], totals,
                [((peer["name"],) if peer["name"] in own else ("other",), peer["dropped"]) for peer in peers["peers"]], wrong)
    named = [(pod, *(pod["pod"] or f"/{pod['container']}").rpartition("/")[::2]) for pod in pods["pods"]]
    drops_agree("pod", page["tartan_pod_dropped_packets_total"], totals,
                [((namespace, name, pod["ifname"]), pod["dropped"]) for pod, namespace, name in named if pod["traffic"]], wrong)
    for pod in pods["pods"]:
        namespace, _, name = (pod["pod"] or f"/{pod['container']}").rpartition("/")
        for key, count in (pod["traffic"] or {}).items():
            equal(f"{key} of {name}", count, page[f"tartan_pod_{key}_total"].get((namespace, name, pod["ifname"])))
    for name, key in [("tartan_restarts_total", "restarts"), ("tartan_repairs_total", "repairs"),
                      ("tartan_workers", "workers"), ("tartan_tables_version", "snapshot"),
                      ("tartan_underlay_mtu_bytes", "underlay_mtu"), ("tartan_device_mtu_bytes", "device_mtu"),
                      ("tartan_gathering_on", None), ("tartan_ready", None)]:
        equal(name, status[key] if key else 1, page[name].get(()))
    equal("peers", status["peers"], sum(page["tartan_peers"].values()))
    equal("problems", len(status["problems"]), sum(page["tartan_problems"].values()))
    return wrong


def drops_agree(what, series, totals, members, wrong):
    """The series of drops of peers or pods are what the command prints of each, and no more than the totals."""
    expected = defaultdict(float)
    for labels, dropped in members:
        for way, by_reason in dropped.items():
            for reason, count in by_reason.items():
                expected[(*labels, way, reason)] += count
    if expected != series:
        wrong.append(f"drops by {what}: the command prints {dict(expected)}, the page {dict(series)}")
    if 0 in series.values():
        wrong.append(f"drops by {what}: a series of 0 is not left out")
    sums = defaultdict(float)
    for labels, count in series.items():
        sums[labels[-2:]] += count
    wrong.extend(f"{key}: {count} drops by {what}, and {totals.get(key)} of all" for key, count in sums.items() if count > totals.get(key, 0))


def ask(url, path, **query):
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=5) as answer:
        return json.load(answer)["data"]


def targets(url, count):
    active = ask(url, "targets")["activeTargets"]
    wrong = [f"{one['scrapeUrl']}: {one['health']} {one['lastError']}" for one in active if one["health"] != "up"]
    scrapes = ask(url, "query", query="count(count_over_time(tartan_build_info[1m]) >= 3)")["result"]
    if not scrapes or scrapes[0]["value"][1] != str(count):
        wrong.append(f"three scrapes each of {count} nodes: {scrapes}")
    return wrong


def rules(url):
    all_rules = [rule for group in ask(url, "rules")["groups"] for rule in group["rules"]]
    wrong = [f"{rule['name']}: {rule['health']} {rule.get('lastError', '')}" for rule in all_rules if rule["health"] != "ok"]
    return wrong or ([] if all_rules else ["no rules"])


def dashboard(url, file):
    panels = json.loads(Path(file).read_text())["panels"]
    queries = [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]
    wrong, empty = [], 0
    for title, query in queries:
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)
        try:
            result = ask(url, "query", query=query)["result"]
        except urllib.error.HTTPError as error:
            wrong.append(f"{title}: {query}: {error.read().decode()}")
            continue
        if not result:
            empty += 1
            if not MAY_BE_EMPTY.search(query):
                wrong.append(f"{title}: {query}: no answer")
    if not wrong:
        print(f"{len(queries)} queries of the dashboard are answered, {empty} of them by nothing")
    return wrong


command, *words = sys.argv[1:]
if command == "compare":
    found = compare(words[0], int(words[1]))
elif command == "targets":
    found = targets(words[0], words[1])
elif command == "rules":
    found = rules(words[0])
else:
    found = dashboard(*words)
print("\n".join(found))
sys.exit(1 if found else 0)
