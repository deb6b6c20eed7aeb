#!/usr/bin/env bash
# The metrics of two nodes, one of which knows 5,000 more from its list, agree with what the commands print, and count
# drops and lost probes. A real Prometheus scrapes them, evaluates every rule of deploy/prometheus, and answers every
# query of the dashboard in deploy/grafana.
#
#   pod1 ── node1 ══ underlay ══ node2 ── pod2
#                       ╚═══════ mallory: Prometheus
#
# full:
export TARTAN_PROBE=true
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

PORT=9467
DEPLOY=$(readlink -f "$SCRIPTS/../deploy")

# set_up NODE KEY...: starts its agent again with these keys.
set_up() {
    lab stop "$1"
    mkdir -p "$LAB_STATE/$1/etc/tartan"
    printf '%s\n' "${@:2}" >>"$LAB_STATE/$1/etc/tartan/tartan.toml"
    lab start "$1"
}

# The page of node1 has the numbers that its commands print.
agrees() {
    # The counts of packets one right behind the other: a probe of a peer that comes between them counts.
    # shellcheck disable=SC2016
    in_ns node1 sh -c 'curl -s -m 5 "http://$1/metrics" >"$2/page"; tartan drops -o json >"$2/drops" || [ $? = 1 ]' - \
        "192.0.2.1:$PORT" "$SCRATCH"
    for command in status peers pods; do agent_json node1 "$command" >"$SCRATCH/$command"; done
    python3 "$TOOLS/metrics.py" compare "$SCRATCH" >"$SCRATCH/differences"
}

# probes sent|lost FAMILY: by the page of node2 alone: 5,000 peers of node1 never answered.
probes() {
    in_ns node2 curl -s -m 5 "http://127.0.0.1:$PORT/metrics" |
        awk -v series="tartan_probes_$1_total{family=\"$2\"}" '$1 == series { print $2 }'
}

asks() {
    in_ns mallory python3 "$TOOLS/metrics.py" prometheus http://127.0.0.1:9090 2 "$DEPLOY/grafana/tartan.json"
}

lab_up --nodes 2 --listed 5000
equal "without a key nothing listens" "" "$(in_ns node1 ss -Hltn)"
set_up node1 'healthz = "0.0.0.0:8081"' "metrics = \"192.0.2.1:$PORT\"" "metrics-limit = 100"
set_up node2 "healthz = \"0.0.0.0:$PORT\"" "metrics = \"0.0.0.0:$PORT\""
equal "metrics at the address of probes, and the reverse; all at one address" "404 404 200 200 200 " \
    "$(for AT in 1:8081/metrics "1:$PORT/healthz" "2:$PORT/healthz" "2:$PORT/readyz" "2:$PORT/metrics"; do
        in_ns "node${AT%%:*}" curl -s -m 5 -o /dev/null -w '%{http_code} ' "http://192.0.2.$AT"
    done)"

in_ns pod1 ping -n -q -c 20 -i 0.02 "$(address_of pod2)" >/dev/null || fail "pod1 does not reach pod2"
# No node has it.
in_ns pod1 ping -n -q -c 3 -i 0.02 -W 1 10.244.254.9 >/dev/null && fail "an address that no node has answers"
in_ns node2 python3 "$TOOLS/forge.py" <<ORDER || fail "node2 cannot send"
{"to": "192.0.2.1", "formats": ["udp"], "count": 50, "source": "10.244.250.9", "destination": "$(address_of pod1)",
 "port": 9, "source_mac": "$(vtep_mac_of node2 4)", "destination_mac": "$(vtep_mac_of node1 4)"}
ORDER
until_true 30 "the metrics of node1 agree with its commands" agrees || cat "$SCRATCH/differences"
equal "peers with series, and the rest" 101 "$(grep -c '^tartan_peer_sent_bytes_total{' "$SCRATCH/page")"
equal "drops of pod1, and of node2" "3 50 50" "$(jq -r '.pods[0].dropped
    | "\(.outbound.NoRoute) \(.inbound.NotPeersSource)"' "$SCRATCH/pods") $(jq '.peers[]
    | select(.name == "node2").dropped.inbound.NotPeersSource' "$SCRATCH/peers")"
grep -q "^node2 .* ([A-Za-z0-9, ]*NotPeersSource 50" <<<"$(tartan node1 peers --wide)" || fail "peers --wide: no drops"

LOST=$(probes lost ipv4)
in_ns node1 nft 'table inet deaf { chain input { type filter hook input priority -300; ip saddr 192.0.2.2 drop; }; }'
until_true 15 "node2 counts probes that node1 does not answer" eval "[ \$(probes lost ipv4) -gt $((LOST + 2)) ]"
in_ns node1 nft delete table inet deaf
at_most "probes that were lost, of those that were sent" "$(probes sent ipv4)" "$(probes lost ipv4)"
equal "probes by IPv6, which the underlay's paths do not take" "0 0" "$(probes sent ipv6) $(probes lost ipv6)"

cat >"$SCRATCH/prometheus.yml" <<YAML
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ["$DEPLOY/prometheus/*.rules.yml"]
scrape_configs: [{job_name: tartan, static_configs: [{targets: ["192.0.2.1:$PORT", "192.0.2.2:$PORT"]}]}]
YAML
start_in mallory prometheus --config.file="$SCRATCH/prometheus.yml" --storage.tsdb.path="$SCRATCH/tsdb" \
    --web.listen-address=127.0.0.1:9090 --log.level=warn 2>"$SCRATCH/prometheus.log"
until_true 60 "Prometheus scrapes, evaluates and answers" asks || asks || cat "$SCRATCH/prometheus.log"
grep -i 'err=' "$SCRATCH/prometheus.log" && fail "Prometheus complains"
law_one node1
law_one node2
