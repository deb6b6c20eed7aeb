#!/usr/bin/env python3
"""What metrics.sh asks of pages of metrics and of Prometheus. Prints what is wrong, and fails then.

    metrics.py compare DIRECTORY           DIRECTORY has the page and the JSON of status, drops, peers and pods
    metrics.py prometheus URL COUNT FILE   Prometheus at URL has scraped so many nodes and evaluated every rule; each
                                           query of the dashboard in FILE has an answer
"""

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path

SAMPLE = re.compile(r'^(\w+)(?:\{(.*)\})? (\S+)$', re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Queries whose answer may be empty: what they select need not exist in a lab.
MAY_BE_EMPTY = re.compile(r'> 0$| < on |"kernel-path"|tartan_flow|kernel_path_passed|lost_route|tartan_problems')
# What has no labels, and what the command calls it.
NODE = {"restarts_total": "restarts", "repairs_total": "repairs", "workers": "workers", "tables_version": "snapshot",
        "underlay_mtu_bytes": "underlay_mtu", "device_mtu_bytes": "device_mtu", "peers": "peers"}


def samples(page):
    """The values of each metric, by its labels."""
    found = defaultdict(dict)
    for name, labels, value in SAMPLE.findall(page):
        found[name][tuple(value for _, value in LABEL.findall(labels))] = float(value)
    return found


def by_the_commands(own, status, drops, peers, pods):
    """The series that the commands' numbers make; `own` are the peers that have series."""
    series = defaultdict(Counter)
    members = []
    for worker in drops["workers"]:
        for way in ("outbound", "inbound"):
            flow, key = worker[way], (worker["name"], way)
            series["held_packets"][key] = flow["held"]
            for fate in ("received", "originated", "sent", "delivered", "probes"):
                series[f"{fate.removesuffix('s')}_packets_total"][key] = flow[fate]
            for row in drops["reasons"]:
                series["dropped_packets_total"][*key, row["reason"]] = flow["dropped"].get(row["reason"], 0)
    for peer in peers["peers"]:
        key = (peer["name"] if peer["name"] in own else "other",)
        members.append(("peer", key, peer["dropped"]))
        for name in ("sent_packets", "sent_bytes", "received_packets", "received_bytes", "refused"):
            series[f"peer_{name}{'_packets' * (name == 'refused')}_total"][key] += peer[name]
    for pod in (pod for pod in pods["pods"] if pod["traffic"]):
        namespace, _, name = (pod["pod"] or f"/{pod['container']}").rpartition("/")
        members.append(("pod", (namespace, name, pod["ifname"]), pod["dropped"]))
        for name, count in pod["traffic"].items():
            series[f"pod_{name}_total"][members[-1][1]] = count
    for what, key, dropped in members:
        for way, reasons in dropped.items():
            # A series of 0 is left out: adding counters does that.
            series[f"{what}_dropped_packets_total"] += Counter({(*key, way, name): n for name, n in reasons.items()})
    for metric, key in NODE.items():
        series[metric][()] = status[key]
    return series | {"gathering_on": {(): 1}, "ready": {(): 1}, "problems": {(): len(status["problems"])}}


def compare(directory):
    page, *commands = ((Path(directory) / name).read_text() for name in ("page", "status", "drops", "peers", "pods"))
    page = samples(page)
    for metric in ("tartan_peers", "tartan_problems"):
        page[metric] = {(): sum(page[metric].values())}
    own = {key[0] for key in page["tartan_peer_sent_packets_total"]}
    wrong = []
    for metric, series in by_the_commands(own, *map(json.loads, commands)).items():
        found = page["tartan_" + metric]
        keys = series.keys() | found.keys() if metric.startswith(("peer_", "pod_dropped")) else series
        wrong += [f"{metric} {key}: the command prints {series.get(key)}, the page {found.get(key)}"
                  for key in keys if found.get(key) != series.get(key)]
    return wrong


def ask(url, path, **query):
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=5) as answer:
        return json.load(answer)["data"]


def prometheus(url, count, file):
    scraped = ask(url, "query", query="count(count_over_time(tartan_build_info[1m]) >= 3)")["result"]
    if not scraped or scraped[0]["value"][1] != count:
        return [f"three scrapes each of {count} nodes: {scraped}"]
    rules = [rule for group in ask(url, "rules")["groups"] for rule in group["rules"]]
    wrong = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]
    # The dashboard's variables as Grafana would fill them.
    panels = json.loads(Path(file).read_text().replace("$__rate_interval", "10s").replace("$instance", ".*"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    for query in queries:
        try:
            if not ask(url, "query", query=query)["result"] and not MAY_BE_EMPTY.search(query):
                wrong.append(f"{query}: no answer")
        except urllib.error.HTTPError as error:
            wrong.append(f"{query}: {error.read().decode()}")
    return wrong if rules and queries else ["no rules, or no queries"]


FOUND = {"compare": compare, "prometheus": prometheus}[sys.argv[1]](*sys.argv[2:])
print("\n".join(FOUND))
sys.exit(1 if FOUND else 0)
