#!/usr/bin/env bash
# The metrics of two nodes, one of which knows 5,000 more from its list, agree with what the commands print; a real
# Prometheus scrapes them, evaluates every rule of deploy/prometheus, and answers every query of the dashboard in
# deploy/grafana.
#
#   pod1 ── node1 ══ underlay ══ node2 ── pod2
#                       ╚═══════ mallory: Prometheus
#
# full:
# full: kernel-path=auto
# full: kernel-path=stateless
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

PORT=9467
PROBES=8081
LIMIT=100
LISTED=5000
PROMETHEUS=http://127.0.0.1:9090
REPOSITORY=$(readlink -f "$SCRIPTS/..")
export PYTHONPATH=$TOOLS

# set_up NODE KEY...: starts its agent again with these keys.
set_up() {
    local node=$1
    shift
    lab stop "$node"
    mkdir -p "$LAB_STATE/$node/etc/tartan"
    printf '%s\n' "$@" >>"$LAB_STATE/$node/etc/tartan/tartan.toml"
    lab start "$node"
}

# page NODE ADDRESS:PORT PATH: the code, then what is answered.
page() {
    in_ns "$1" curl -s -m 5 -w '\n%{http_code}\n' "http://$2$3" | tac | sed '1p;1d' | tac
}

code_of() {
    in_ns "$1" curl -s -m 5 -o /dev/null -w '%{http_code}\n' "http://$2$3" || true
}

# agrees NODE ADDRESS: whether its page has the numbers that its commands print.
agrees() {
    # The counts of packets one right behind the other: a probe of a peer that comes between them counts.
    # shellcheck disable=SC2016
    in_ns "$1" sh -c 'curl -s -m 5 "http://$1/metrics" >"$2/page"; tartan drops -o json >"$2/drops" || [ $? = 1 ]' - "$2" "$SCRATCH"
    for command in status peers pods; do agent_json "$1" "$command" >"$SCRATCH/$command"; done
    python3 "$TOOLS/metrics.py" compare "$SCRATCH" "$LIMIT" >"$SCRATCH/differences"
}

# value SERIES: of the page that agrees fetched last.
value() {
    awk -v series="$1" '$1 == series { print $2 }' "$SCRATCH/page"
}

# asks COMMAND...: of Prometheus.
asks() {
    in_ns mallory python3 "$TOOLS/metrics.py" "$1" "$PROMETHEUS" "${@:2}" >"$SCRATCH/asked" 2>&1
}

lab_up --nodes 2 --listed "$LISTED"
equal "without a key nothing listens" "" "$(in_ns node1 ss -Hltn)"
set_up node1 "healthz = \"0.0.0.0:$PROBES\"" "metrics = \"192.0.2.1:$PORT\"" "metrics-limit = $LIMIT"
set_up node2 "healthz = \"0.0.0.0:$PORT\"" "metrics = \"0.0.0.0:$PORT\"" "metrics-limit = $LIMIT"
equal "metrics at the address of probes" 404 "$(code_of node1 "127.0.0.1:$PROBES" /metrics)"
equal "probes at the address of metrics" 404 "$(code_of node1 "192.0.2.1:$PORT" /healthz)"
equal "all three at one address" "200 200 200" \
    "$(for path in healthz readyz metrics; do code_of node2 "127.0.0.1:$PORT" "/$path"; done | paste -sd ' ')"

say "the numbers are those of the commands"
in_ns pod1 ping -n -q -c 20 -i 0.02 "$(address_of pod2)" >/dev/null || fail "pod1 does not reach pod2"
# No node has it.
in_ns pod1 ping -n -q -c 3 -i 0.02 -W 1 10.244.254.9 >/dev/null && fail "an address that no node has answers"
until_true 30 "the metrics of node1 agree with its commands" agrees node1 "192.0.2.1:$PORT" ||
    cat "$SCRATCH/differences"
at_most "peers with series of their own" "$LIMIT" "$(grep -c '^tartan_peer_sent_bytes_total{' "$SCRATCH/page" | awk '{ print $1 - 1 }')"
[ "$(value 'tartan_dropped_packets_total{worker="0",direction="outbound",reason="NoRoute"}')" != 0 ] ||
    fail "no drop is counted: $(grep NoRoute "$SCRATCH/page")"

if [ "$KERNEL_PATH" != off ]; then
    say "what the programs of the kernel path carried counts at its pod and its peer"
    # From a start on until a node knows that the other's kernel path is in use, user space sends.
    until_true 10 "the programs of node1 send to node2" programs_send node1 node2
    # pod_carried, peer_carried: packets sent, by the page of node1 alone.
    fetch() { in_ns node1 curl -s -m 5 "http://192.0.2.1:$PORT/metrics" >"$SCRATCH/page"; }
    pod_carried() { awk '/^tartan_pod_kernel_path_sent_packets_total{/ && !/other/ { sum += $2 } END { print sum + 0 }' "$SCRATCH/page"; }
    peer_carried() { value 'tartan_peer_sent_packets_total{peer="node2"}'; }
    have_grown() {
        fetch
        FOUND="$(($(pod_carried) - BY_POD)) $(($(peer_carried) - BY_PEER))"
        [ "$FOUND" = "40 40" ]
    }
    # A page is as old as a second.
    sleep 1
    fetch
    BY_POD=$(pod_carried) BY_PEER=$(peer_carried)
    in_ns pod1 ping -n -q -c 40 -i 0.02 "$(address_of pod2)" >/dev/null || fail "pod1 does not reach pod2"
    until_true 5 "packets of 40 pings, by pod and by peer" have_grown || fail "they are $FOUND, not 40 40"
fi

say "drops count at their peer and their pod"
FORGED=50
in_ns node2 python3 "$TOOLS/forge.py" <<ORDER || fail "node2 cannot send"
{"to": "192.0.2.1", "formats": ["udp"], "count": $FORGED, "source": "10.244.250.9", "destination": "$(address_of pod1)",
 "port": 9, "source_mac": "$(vtep_mac_of node2 4)", "destination_mac": "$(vtep_mac_of node1 4)"}
ORDER
# of_pod1 DIRECTION REASON, of_node2 DIRECTION REASON: at node1, by the commands that agrees asked last.
of_pod1() { jq --arg way "$1" --arg reason "$2" '.pods[0].dropped[$way][$reason] // 0' "$SCRATCH/pods"; }
of_node2() { jq --arg way "$1" --arg reason "$2" '.peers[] | select(.name == "node2") | .dropped[$way][$reason] // 0' "$SCRATCH/peers"; }
until_true 30 "the metrics of node1 agree with its commands" agrees node1 "192.0.2.1:$PORT" ||
    cat "$SCRATCH/differences"
equal "echo requests of pod1 to an address that no node has" 3 "$(of_pod1 outbound NoRoute)"
equal "what node2 forged, of node2 and for pod1" "$FORGED $FORGED" "$(of_node2 inbound NotPeersSource) $(of_pod1 inbound NotPeersSource)"
equal "the same on the page" "$FORGED" "$(value 'tartan_peer_dropped_packets_total{peer="node2",direction="inbound",reason="NotPeersSource"}')"
tartan node1 peers --wide >"$SCRATCH/wide" || true
grep -q "^node2 .* ([A-Za-z0-9, ]*NotPeersSource $FORGED" "$SCRATCH/wide" || fail "peers --wide: $(grep -m 1 -A 1 '^PEER' "$SCRATCH/wide"; grep '^node2' "$SCRATCH/wide")"

# lost FAMILY, sent FAMILY: probes, by the page of node2 alone: 5,000 peers of node1 never answered.
lost() { in_ns node2 curl -s -m 5 "http://127.0.0.1:$PORT/metrics" | awk -v series="tartan_probes_lost_total{family=\"$1\"}" '$1 == series { print $2 }'; }
sent() { in_ns node2 curl -s -m 5 "http://127.0.0.1:$PORT/metrics" | awk -v series="tartan_probes_sent_total{family=\"$1\"}" '$1 == series { print $2 }'; }
grown() { [ "$("$1" ipv4)" -gt "$2" ]; }

is_up() {
    agent_json "$1" peers | jq -e --arg peer "$2" 'any(.peers[]; .name == $peer and .state == "up")'
}

say "probes that are lost are counted, and stay counted when the peer is gone"
SENT=$(sent ipv4) LOST=$(lost ipv4)
until_true 15 "node2 counts probes to node1" grown sent "$SENT"
equal "probes by IPv6, which the underlay's paths do not take" "0 0" "$(sent ipv6) $(lost ipv6)"
in_ns node1 nft -f - <<RULES
table inet deaf {
    chain input {
        type filter hook input priority -300;
        ip saddr 192.0.2.2 meta l4proto udp drop
    }
}
RULES
until_true 15 "node2 counts probes that node1 does not answer" grown lost "$((LOST + 2))"
in_ns node1 nft delete table inet deaf
until_true 15 "node1 answers again" is_up node2 node1
at_most "probes that were lost, of those that were sent" "$(sent ipv4)" "$(lost ipv4)"

say "Prometheus"
cat >"$SCRATCH/prometheus.yml" <<YAML
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ["$REPOSITORY/deploy/prometheus/*.rules.yml"]
scrape_configs:
  - job_name: tartan
    static_configs: [{targets: ["192.0.2.1:$PORT", "192.0.2.2:$PORT"]}]
YAML
promtool check config "$SCRATCH/prometheus.yml" >"$SCRATCH/checked" || fail "promtool: $(cat "$SCRATCH/checked")"
start_in mallory prometheus --config.file="$SCRATCH/prometheus.yml" --storage.tsdb.path="$SCRATCH/tsdb" \
    --web.listen-address=127.0.0.1:9090 --log.level=warn 2>"$SCRATCH/prometheus.log"
SERVER=$PID
until_true 30 "Prometheus scrapes both nodes" asks targets 2 ||
    say "$(cat "$SCRATCH/asked" "$SCRATCH/prometheus.log")"
until_true 30 "Prometheus evaluates every rule" asks rules || say "$(cat "$SCRATCH/asked")"
until_true 30 "every query of the dashboard has an answer" asks dashboard "$REPOSITORY/deploy/grafana/tartan.json" ||
    say "$(cat "$SCRATCH/asked")"
say "$(cat "$SCRATCH/asked")"
grep -i 'err=' "$SCRATCH/prometheus.log" && fail "Prometheus complains"
stop "$SERVER"
until_true 30 "the metrics of node1 agree with its commands after all" agrees node1 "192.0.2.1:$PORT" ||
    cat "$SCRATCH/differences"
say "a page of $((LISTED + 2)) nodes has $(wc -c <"$SCRATCH/page") bytes and costs, on average of $(value tartan_scrapes_total), $(awk \
    '$1 == "tartan_scrapes_total" { pages = $2 } $1 == "tartan_scrape_cpu_seconds_total" { print 1000 * $2 / (pages - 1) }' "$SCRATCH/page") ms of CPU"
law_one node1
law_one node2
