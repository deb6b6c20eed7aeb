#!/usr/bin/env bash
# `tartan capture` shows what there is to see: a ping at every stage, in a file that tcpdump reads, and a forged packet with
# the reason for its drop. `tartan drops --follow` shows that, with --full within two seconds; so long it
# takes at most until a capture that is killed is off. What --peer, --pod, --stage, --reason, -c and -w - choose is all of that,
# and nothing else.
#
#   mallory ─ underlay ─ node1: tartan capture, tartan drops --follow ══ node2 ─ pod2
#                          └ pod1                                     ╚═ node3 ─ pod3
#
# capture.sh BACKEND
# full: udp
# case: vxlan
# full: vxlan workers=2
# full: udp workers=2
# full: vxlan device=plain
# full: vxlan device-type=tap
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
PINGS=20
# Seconds: on a busy machine a command alone may take one.
SOON=10
if [ -n "${FULL:-}" ]; then SOON=2; fi
BIN=$(realpath "${LAB_BIN:-$SCRIPTS/../target/fast}")

# started NAME ARGS...: `tartan ARGS` on node1, its output in NAME.out and NAME.err; the process id is in $PID.
started() {
    ip netns exec "$PREFIX-node1" "$BIN/tartan" --root "$LAB_STATE/node1" "${@:2}" >"$SCRATCH/$1.out" 2>"$SCRATCH/$1.err" &
    PID=$!
    STARTED+=("$PID")
}

captures_run() {
    [ "$(cat "/proc/$(service_pid node1)"/task/*/comm 2>/dev/null | grep -cx capture)" = "$1" ]
}

# captures_began N: of all so far, as the agent says once its workers capture.
captures_began() {
    [ "$(grep -c 'a capture of packets begins' "$LAB_STATE/node1/log")" -ge "$1" ]
}

# read_back [FILTER]: the file as tcpdump reads it, a line a packet: what it finds inside VXLAN has a line more, without time.
read_back() {
    tcpdump -nr "$SCRATCH/all.pcapng" "$@" 2>/dev/null | grep '^[0-9]' || true
}

# at_stage NAME FILTER: packets at a stage, as objects say.
at_stage() {
    jq -s --arg stage "$1" "map(select(.stage == \$stage and ($2)) | .packets) | add // 0" "$SCRATCH/lines.out"
}

# forged FROM SOURCE COUNT: datagrams that come from that host with a packet for pod1 inside, as if SOURCE sent it.
forged() {
    in_ns "$1" python3 "$TOOLS/forge.py" <<FORGED
{"to": "$(underlay_of node1 4)", "formats": ["$BACKEND"], "count": $3, "port": 7000, "source": "$2", "destination": "$POD1",
 "source_mac": "$(vtep_mac_of node2 4)", "destination_mac": "$(vtep_mac_of node1 4)"}
FORGED
}

# chosen NAME ARGS...: as `started`, and waits until the workers capture.
chosen() {
    local before
    before=$(grep -c 'a capture of packets begins' "$LAB_STATE/node1/log")
    started "$@"
    until_true 10 "it runs: tartan ${*:2}" captures_began $((before + 1)) || cat "$SCRATCH/$1.err" >&2
}

# outcomes NAME FIELD...: how many packets there are of each combination of the fields, as `value value: packets`.
outcomes() {
    jq -rs --args '[.[] | select(.event == "packet") | . as $line | {key: ([$ARGS.positional[] | $line[.] // "-"] | join(" ")), packets}]
        | group_by(.key) | map("\(.[0].key): \(map(.packets) | add)") | join(", ")' "${@:2}" <"$SCRATCH/$1.out"
}

# counted NAME: the exact counts of followed drops, in JSON, the last of each reason.
counted() {
    jq -rs '[.[] | select(.event == "counts").counts[]] | group_by(.reason) | map("\(.[0].reason) \(.[-1].count)") | join(", ")' \
        "$SCRATCH/$1.out"
}

# count_is NAME COUNTS
count_is() {
    [ "$(counted "$1")" = "$2" ]
}

lab_up --nodes 3 --pods 1 --backend "$BACKEND"
POD1=$(address_of pod1) POD2=$(address_of pod2) POD3=$(address_of pod3)

started file capture -w "$SCRATCH/all.pcapng"
FILE=$PID
started lines capture -o json --pod "$POD1" icmp
LINES_PID=$PID
until_true 10 "two captures run" captures_began 2
in_ns pod1 python3 "$TOOLS/pings.py" "$POD2" "$PINGS" 0.02 5 >/dev/null
forged mallory "$POD2" 3
until_true 10 "the forged packets are in the file" grep -aq "UnknownPeer: " "$SCRATCH/all.pcapng"
stop "$FILE" INT
stop "$LINES_PID" INT

# A ping is read from the device and sent, its answer received and written.
for STAGE in device sent received written; do
    equal "pings at the stage $STAGE" "$PINGS" "$(at_stage "$STAGE" '.protocol == "icmp"')"
done
equal "the pings' peer" '["node2"]' "$(jq -sc 'map(.peer) | unique' "$SCRATCH/lines.out")"
grep -q '^tartan: 0 packets lost' "$SCRATCH/file.err" || fail "what the capture says: $(cat "$SCRATCH/file.err")"
equal "packets captured, as it says" "$(read_back | wc -l)" \
    "$(sed -n 's/^tartan: \([0-9]*\) packets captured$/\1/p' "$SCRATCH/file.err")"
# Bare at the device, in a datagram on the underlay: both read by tcpdump.
equal "requests from the device in the file" "$PINGS" \
    "$(read_back "icmp[icmptype] = icmp-echo and src $POD1" | wc -l)"
case $BACKEND in
udp) OUTER_PORT=8285 ;;
vxlan) OUTER_PORT=8472 ;;
esac
equal "datagrams to node2 in the file" "$PINGS" \
    "$(read_back "udp dst port $OUTER_PORT and dst $(underlay_of node2 4)" | wc -l)"
for WORD in 'UnknownPeer: the outer source is no node' 'delivered; peer node2; pod ' 'tartan 0.'; do
    grep -aq "$WORD" "$SCRATCH/all.pcapng" || fail "the file has no comment with $WORD"
done
equal "the file's mode" 600 "$(stat -c %a "$SCRATCH/all.pcapng")"

# Drops as they happen.
started follow drops --follow
FOLLOW=$PID
started objects drops --follow -o json --reason UnknownPeer
OBJECTS=$PID
until_true 10 "drops are followed" captures_began 4
forged mallory "$POD2" 200
until_true "$SOON" "the drop is shown" grep -q ': UnknownPeer \[' "$SCRATCH/follow.out"
until_true "$SOON" "its count is exact" grep -q '^counted: UnknownPeer inbound 200 ' "$SCRATCH/follow.out"
stop "$FOLLOW" INT
stop "$OBJECTS" INT
equal "the count, as JSON" 200 "$(jq -s 'map(select(.event == "counts").counts[] | select(.reason == "UnknownPeer")) | last.count' "$SCRATCH/objects.out")"
jq -se 'map(select(.event == "packet")) | length > 0 and length < 200 and all(.reason == "UnknownPeer" and .destination != null)' \
    "$SCRATCH/objects.out" >/dev/null || fail "what is followed as JSON: $(head -n 3 "$SCRATCH/objects.out")"

# Four at a time: each has what it chose. pod1 talks to node2 and node3, and three of its packets have no route.
chosen peer capture -o json --peer node3 --stage sent,received,dropped
PEER_PID=$PID
chosen reason capture -o json --reason NoRoute
REASON_PID=$PID
chosen several capture -o json -c 7 --stage device
COUNT_PID=$PID
chosen piped capture -w - --peer "$(underlay_of node2 4)" --stage sent
PIPED_PID=$PID
in_ns pod1 python3 "$TOOLS/pings.py" "$POD2" "$PINGS" 0.02 5 >/dev/null
in_ns pod1 python3 "$TOOLS/pings.py" "$POD3" "$PINGS" 0.02 5 >/dev/null
in_ns pod1 ping -q -i 0.05 -c 3 -W 1 10.244.77.7 >/dev/null || true
CODE=0
wait "$COUNT_PID" || CODE=$?
equal "-c 7: exit code" 0 "$CODE"
for PID in "$PEER_PID" "$REASON_PID" "$PIPED_PID"; do stop "$PID" INT; done
equal "--peer node3" "node3 received: $PINGS, node3 sent: $PINGS" "$(outcomes peer peer stage)"
equal "--reason NoRoute" "NoRoute dropped $POD1 10.244.77.7: 3" "$(outcomes reason reason stage source destination)"
equal "-c 7 --stage device: lines" "7 device" "$(wc -l <"$SCRATCH/several.out") $(jq -rs 'map(.stage) | unique | join(" ")' "$SCRATCH/several.out")"
equal "-w -: datagrams that tcpdump reads" "$PINGS $PINGS" "$(tcpdump -nr "$SCRATCH/piped.out" 2>/dev/null | grep -c '^[0-9]') \
$(tcpdump -nr "$SCRATCH/piped.out" "udp dst port $OUTER_PORT and dst $(underlay_of node2 4)" 2>/dev/null | grep -c '^[0-9]')"

# Drops of a pod, of a peer, and of a reason. Of node2 comes a packet with a source that is node3's.
chosen of-pod drops --follow -o json --pod "$POD3"
POD_PID=$PID
chosen of-peer drops --follow -o json --peer node2
PEER_PID=$PID
chosen of-reason drops --follow --reason NoRoute,SpoofedSource
REASON_PID=$PID
forged node2 "$POD3" 4
forged mallory "$POD2" 5
in_ns pod1 ping -q -i 0.05 -c 3 -W 1 10.244.77.7 >/dev/null || true
until_true "$SOON" "drops of a peer" count_is of-peer "NotPeersSource 4"
until_true "$SOON" "drops of a pod" count_is of-pod "NotPeersSource 4"
until_true "$SOON" "drops of a reason" grep -q '^counted: NoRoute outbound 3 ' "$SCRATCH/of-reason.out"
for PID in "$POD_PID" "$PEER_PID" "$REASON_PID"; do stop "$PID" INT; done
equal "what --follow --peer shows" "node2 NotPeersSource: 4" "$(outcomes of-peer peer reason)"
equal "what --follow --pod shows" "$POD3 NotPeersSource: 4" "$(outcomes of-pod source reason)"
if grep -Eq 'NotPeersSource|UnknownPeer' "$SCRATCH/of-reason.out"; then fail "--reason shows others: $(cat "$SCRATCH/of-reason.out")"; fi

# What is killed is off soon, also beside other captures.
chosen killed capture --stage dropped
KILLED=$PID
stop "$KILLED" KILL
until_true "$SOON" "a killed capture is off" captures_run 0
# A wrong expression names itself.
if tartan node1 capture 'vlan 3' 2>"$SCRATCH/wrong"; then fail "an expression of Ethernet is accepted"; fi
grep -q '"vlan" is not supported' "$SCRATCH/wrong" || fail "of a wrong expression: $(cat "$SCRATCH/wrong")"
law_one node1
