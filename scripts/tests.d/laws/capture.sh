#!/usr/bin/env bash
# `tartan capture` shows what there is to see: a ping at every stage, in a file that tcpdump reads, and a forged packet
# with the reason for its drop; `tartan drops --follow` shows that with its exact count. What --peer, --pod, --stage,
# --reason, -c and -w - choose is all of that, and nothing else. A capture that is killed is off.
#
#   mallory ─ underlay ─ node1: tartan capture, tartan drops --follow ══ node2 ─ pod3
#                          └ pod1                                     ╚═ node3 ─ pod5
#
# labs: kernel-path=off probes=off inside=dual outside=dual

PINGS=20
NOWHERE=10.244.77.7
POD1=$(address_of pod1 4) POD3=$(address_of pod3 4) POD5=$(address_of pod5 4)
# Which datagrams are those to node2.
TO_NODE2="udp dst port $([ "$BACKEND" = udp ] && echo 8285 || echo 8472) and dst $(underlay_of node2 4)"
declare -A RUNS

# peer NODE: its name, as node1 knows it; etcd has none but its subnet.
peer() {
    agent_json node1 peers | jq -r --arg at "$(underlay_of "$1" 4)" \
        '.peers[] | select(any(.paths[]; .address == $at)).name'
}

# started NAME ARGS...: `tartan ARGS` on node1, until the workers capture; its output in NAME.out and NAME.err.
started() {
    local begun=(grep -c 'a capture of packets begins' "$LAB_STATE/node1/log") before
    before=$("${begun[@]}") || true
    start_in node1 sh -c 'exec "$@" 2>&3' - "$BIN/tartan" --root "$LAB_STATE/node1" "${@:2}" \
        >"$SCRATCH/$1.out" 3>"$SCRATCH/$1.err"
    RUNS[$1]=$PID
    until_true 10 "it runs: tartan ${*:2}" prints $((before + 1)) "${begun[@]}" || cat "$SCRATCH/$1.err" >&2
}

# ended NAME...: each as by Ctrl-C.
ended() {
    for NAME; do stop "${RUNS[$NAME]}" INT; done
}

pings() {
    in_ns pod1 python3 "$TOOLS/pings.py" "$1" "$PINGS" 0.02 5 >/dev/null
}

# forged FROM SOURCE COUNT: datagrams that come from that host with a packet for pod1 inside, as if SOURCE sent it.
forged() {
    in_ns "$1" python3 "$TOOLS/forge.py" <<FORGED
{"to": "$(underlay_of node1 4)", "formats": ["$BACKEND"], "count": $3, "port": 7000, "source": "$2",
 "destination": "$POD1", "source_mac": "$(vtep_mac_of node2 4)", "destination_mac": "$(vtep_mac_of node1 4)"}
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

# counts NAME: the exact counts of followed drops, the last of each reason.
counts() {
    jq -rs '[.[] | select(.event == "counts").counts[]] | group_by(.reason)
        | map("\(.[0].reason) \(.[-1].count)") | join(", ")' "$SCRATCH/$1.out"
}

PEER2=$(peer node2) PEER3=$(peer node3)
say "a ping is read from the device and sent, its answer received and written"
started file capture -w "$SCRATCH/all.pcapng"
started lines capture -o json --pod "$POD1" icmp
pings "$POD3"
forged mallory "$POD3" 3
until_true 10 "the forged packets are in the file" grep -aq "UnknownPeer: " "$SCRATCH/all.pcapng"
ended file lines
equal "pings at each stage" \
    "$PEER2 device: $PINGS, $PEER2 received: $PINGS, $PEER2 sent: $PINGS, $PEER2 written: $PINGS" \
    "$(outcomes lines peer stage)"
equal "packets that are lost and captured, as it says" "0 $(read_by_tcpdump all.pcapng)" \
    "$(sed -n 's/^tartan: \([0-9]*\) packets \(captured\|lost\).*/\1/p' "$SCRATCH/file.err" | sort -n | paste -sd ' ')"
equal "in the file: requests from the device, datagrams to node2" "$PINGS $PINGS" \
    "$(read_by_tcpdump all.pcapng "icmp[icmptype] = icmp-echo and src $POD1") $(read_by_tcpdump all.pcapng "$TO_NODE2")"
for WORD in 'UnknownPeer: the outer source is no node' "delivered; peer $PEER2; pod " 'tartan 0.'; do
    grep -aq "$WORD" "$SCRATCH/all.pcapng" || fail "the file has no comment with $WORD"
done
equal "the file's mode" 600 "$(stat -c %a "$SCRATCH/all.pcapng")"

say "four at a time: each has what it chose"
started peer capture -o json --peer "$PEER3" --stage sent,received,dropped
started reason capture -o json --reason NoRoute
started several capture -o json -c 7 --stage device
started piped capture -w - --peer "$(underlay_of node2 4)" --stage sent
pings "$POD3"
pings "$POD5"
in_ns pod1 ping -q -i 0.05 -c 3 -W 1 "$NOWHERE" >/dev/null || true
wait "${RUNS[several]}" || fail "-c 7: exit code $?"
ended peer reason piped
equal "--peer" "$PEER3 received: $PINGS, $PEER3 sent: $PINGS" "$(outcomes peer peer stage)"
equal "--reason NoRoute" "NoRoute dropped $POD1 $NOWHERE: 3" "$(outcomes reason reason stage source destination)"
equal "-c 7 --stage device" "device: 7" "$(outcomes several stage)"
equal "-w -: all, and to node2" "$PINGS $PINGS" "$(read_by_tcpdump piped.out) $(read_by_tcpdump piped.out "$TO_NODE2")"

say "drops as they happen; of node2 comes a packet with a source of node3's"
started follow drops --follow
started of-pod drops --follow -o json --pod "$POD5"
started of-peer drops --follow -o json --peer "$PEER2"
started of-reason drops --follow -o json --reason NoRoute,UnknownPeer
forged node2 "$POD5" 4
forged mallory "$POD3" 200
in_ns pod1 ping -q -i 0.05 -c 3 -W 1 "$NOWHERE" >/dev/null || true
until_true 2 "the drop is shown" grep -q ': UnknownPeer \[' "$SCRATCH/follow.out"
until_true 2 "its count is exact" grep -q '^counted: UnknownPeer inbound 200 ' "$SCRATCH/follow.out"
for NAME in of-peer of-pod; do until_true 2 "drops $NAME" prints "NotPeersSource 4" counts "$NAME"; done
until_true 2 "drops of reasons" prints "NoRoute 3, UnknownPeer 200" counts of-reason
ended follow of-pod of-peer of-reason
equal "what --follow --peer and --pod show" "$PEER2 NotPeersSource: 4; $POD5 NotPeersSource: 4" \
    "$(outcomes of-peer peer reason); $(outcomes of-pod source reason)"
equal "reasons of what --follow --reason shows" "NoRoute UnknownPeer" \
    "$(jq -rs 'map(select(.event == "packet").reason) | unique | join(" ")' "$SCRATCH/of-reason.out")"

started killed capture --stage dropped
stop "${RUNS[killed]}" KILL
until_true 2 "a killed capture is off" prints 0 sh -c "cat /proc/$(service_pid node1)/task/*/comm | grep -cx capture"
