#!/usr/bin/env bash
# `tartan capture` shows what there is to see: a ping at every stage, in a file that tcpdump reads, and a forged packet with
# the reason for its drop; `tartan drops --follow` shows that with its exact count. What --peer, --pod, --stage, --reason, -c and
# -w - choose is all of that, and nothing else. A capture that is killed is off.
#
#   mallory ─ underlay ─ node1: tartan capture, tartan drops --follow ══ node2 ─ pod3
#                          └ pod1                                     ╚═ node3 ─ pod5
#
# labs: kernel-path=off probes=off inside=dual outside=dual
# full: kernel-path=off probes=off inside=v4|dual outside=v4|dual
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

PINGS=20
POD1=$(address_of pod1 4) POD3=$(address_of pod3 4) POD5=$(address_of pod5 4)
NODE2=$(underlay_of node2 4)
# Which datagrams are those to node2.
TO_NODE2="udp dst port $([ "$BACKEND" = udp ] && echo 8285 || echo 8472) and dst $NODE2"
declare -A RUNS

# peer NODE: its name, as node1 knows it; etcd has none but its subnet.
peer() {
    agent_json node1 peers | jq -r --arg at "$(underlay_of "$1" 4)" '.peers[] | select(any(.paths[]; .address == $at)).name'
}

# started NAME ARGS...: `tartan ARGS` on node1, its output in NAME.out and NAME.err, and waits until the workers capture.
started() {
    local before
    before=$(begun)
    ip netns exec "$PREFIX-node1" "$BIN/tartan" --root "$LAB_STATE/node1" "${@:2}" >"$SCRATCH/$1.out" 2>"$SCRATCH/$1.err" &
    RUNS[$1]=$!
    STARTED+=("$!")
    until_true 10 "it runs: tartan ${*:2}" more_begun "$before" || cat "$SCRATCH/$1.err" >&2
}

# Captures of all time, as the agent says once its workers capture.
begun() {
    grep -c 'a capture of packets begins' "$LAB_STATE/node1/log" || true
}

more_begun() {
    [ "$(begun)" -gt "$1" ]
}

# ended NAME...: each as by Ctrl-C.
ended() {
    local name
    for name; do stop "${RUNS[$name]}" INT; done
}

none_runs() {
    ! grep -qx capture <<<"$(cat "/proc/$(service_pid node1)"/task/*/comm)"
}

pings() {
    in_ns pod1 python3 "$TOOLS/pings.py" "$1" "$PINGS" 0.02 5 >/dev/null
}

# forged FROM SOURCE COUNT: datagrams that come from that host with a packet for pod1 inside, as if SOURCE sent it.
forged() {
    in_ns "$1" python3 "$TOOLS/forge.py" <<FORGED
{"to": "$(underlay_of node1 4)", "formats": ["$BACKEND"], "count": $3, "port": 7000, "source": "$2", "destination": "$POD1",
 "source_mac": "$(vtep_mac_of node2 4)", "destination_mac": "$(vtep_mac_of node1 4)"}
FORGED
}

# read_by_tcpdump FILE [FILTER]: how many packets; what it finds inside VXLAN has a line more, without time.
read_by_tcpdump() {
    tcpdump -nr "$SCRATCH/$1" "${@:2}" 2>/dev/null | grep -c '^[0-9]' || true
}

# outcomes NAME FIELD...: how many packets there are of each combination of the fields, as `value value: packets`.
outcomes() {
    jq -rs --args '[.[] | select((.event // "packet") == "packet") | . as $line
        | {key: ([$ARGS.positional[] | $line[.] // "-"] | join(" ")), packets}]
        | group_by(.key) | map("\(.[0].key): \(map(.packets) | add)") | join(", ")' "${@:2}" <"$SCRATCH/$1.out"
}

# counted NAME COUNTS: whether these are the exact counts of followed drops, the last of each reason.
counted() {
    [ "$2" = "$(jq -rs '[.[] | select(.event == "counts").counts[]] | group_by(.reason)
        | map("\(.[0].reason) \(.[-1].count)") | join(", ")' "$SCRATCH/$1.out")" ]
}

# A ping is read from the device and sent, its answer received and written; bare at the device, in a datagram on the underlay.
everything() {
    local word
    started file capture -w "$SCRATCH/all.pcapng"
    started lines capture -o json --pod "$POD1" icmp
    pings "$POD3"
    forged mallory "$POD3" 3
    until_true 10 "the forged packets are in the file" grep -aq "UnknownPeer: " "$SCRATCH/all.pcapng"
    ended file lines
    equal "pings at each stage" "$PEER2 device: $PINGS, $PEER2 received: $PINGS, $PEER2 sent: $PINGS, $PEER2 written: $PINGS" \
        "$(outcomes lines peer stage)"
    grep -q '^tartan: 0 packets lost' "$SCRATCH/file.err" || fail "what the capture says: $(cat "$SCRATCH/file.err")"
    equal "packets captured, as it says" "$(read_by_tcpdump all.pcapng)" \
        "$(sed -n 's/^tartan: \([0-9]*\) packets captured$/\1/p' "$SCRATCH/file.err")"
    equal "in the file: requests from the device, datagrams to node2" "$PINGS $PINGS" \
        "$(read_by_tcpdump all.pcapng "icmp[icmptype] = icmp-echo and src $POD1") $(read_by_tcpdump all.pcapng "$TO_NODE2")"
    for word in 'UnknownPeer: the outer source is no node' "delivered; peer $PEER2; pod " 'tartan 0.'; do
        grep -aq "$word" "$SCRATCH/all.pcapng" || fail "the file has no comment with $word"
    done
    equal "the file's mode" 600 "$(stat -c %a "$SCRATCH/all.pcapng")"
}

# Four at a time: each has what it chose. pod1 talks to node2 and node3, and three of its packets have no route.
chosen() {
    local code=0
    started peer capture -o json --peer "$PEER3" --stage sent,received,dropped
    started reason capture -o json --reason NoRoute
    started several capture -o json -c 7 --stage device
    started piped capture -w - --peer "$NODE2" --stage sent
    pings "$POD3"
    pings "$POD5"
    in_ns pod1 ping -q -i 0.05 -c 3 -W 1 10.244.77.7 >/dev/null || true
    wait "${RUNS[several]}" || code=$?
    equal "-c 7: exit code" 0 "$code"
    ended peer reason piped
    equal "--peer" "$PEER3 received: $PINGS, $PEER3 sent: $PINGS" "$(outcomes peer peer stage)"
    equal "--reason NoRoute" "NoRoute dropped $POD1 10.244.77.7: 3" "$(outcomes reason reason stage source destination)"
    equal "-c 7 --stage device" "device: 7" "$(outcomes several stage)"
    equal "-w -: all, datagrams to node2" "$PINGS $PINGS" "$(read_by_tcpdump piped.out) $(read_by_tcpdump piped.out "$TO_NODE2")"
}

# Drops as they happen: all, and those of a pod, of a peer, and of reasons. Of node2 comes a packet with a source of node3's.
followed() {
    started follow drops --follow
    started of-pod drops --follow -o json --pod "$POD5"
    started of-peer drops --follow -o json --peer "$PEER2"
    started of-reason drops --follow -o json --reason NoRoute,UnknownPeer
    forged node2 "$POD5" 4
    forged mallory "$POD3" 200
    in_ns pod1 ping -q -i 0.05 -c 3 -W 1 10.244.77.7 >/dev/null || true
    until_true 2 "the drop is shown" grep -q ': UnknownPeer \[' "$SCRATCH/follow.out"
    until_true 2 "its count is exact" grep -q '^counted: UnknownPeer inbound 200 ' "$SCRATCH/follow.out"
    until_true 2 "drops of a peer" counted of-peer "NotPeersSource 4"
    until_true 2 "drops of a pod" counted of-pod "NotPeersSource 4"
    until_true 2 "drops of reasons" counted of-reason "NoRoute 3, UnknownPeer 200"
    ended follow of-pod of-peer of-reason
    equal "what --follow --peer and --pod show" "$PEER2 NotPeersSource: 4; $POD5 NotPeersSource: 4" \
        "$(outcomes of-peer peer reason); $(outcomes of-pod source reason)"
    equal "reasons of what --follow --reason shows" "NoRoute UnknownPeer" \
        "$(jq -rs 'map(select(.event == "packet").reason) | unique | join(" ")' "$SCRATCH/of-reason.out")"
}

PEER2=$(peer node2) PEER3=$(peer node3)
everything
chosen
followed
started killed capture --stage dropped
stop "${RUNS[killed]}" KILL
until_true 2 "a killed capture is off" none_runs
if tartan node1 capture 'vlan 3' 2>"$SCRATCH/wrong"; then fail "an expression of Ethernet is accepted"; fi
grep -q '"vlan" is not supported' "$SCRATCH/wrong" || fail "of a wrong expression: $(cat "$SCRATCH/wrong")"
