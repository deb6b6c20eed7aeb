#!/usr/bin/env bash
# `tartan capture` shows what there is to see: a ping at every stage, in a file that tcpdump reads, and a forged packet with
# the reason for its drop. `tartan drops --follow` shows that, with --full within two seconds; so long it
# takes at most until a capture that is killed is off.
#
#   mallory ─ underlay ─ node1: tartan capture, tartan drops --follow ══ node2 ─ pod2
#                          └ pod1
#
# capture.sh BACKEND
# case: udp
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

lab_up --nodes 2 --pods 1 --backend "$BACKEND"
POD1=$(address_of pod1) POD2=$(address_of pod2)

started file capture -w "$SCRATCH/all.pcapng"
FILE=$PID
started lines capture -o json --pod "$POD1" icmp
LINES_PID=$PID
until_true 10 "two captures run" captures_began 2
in_ns pod1 ping -q -i 0.02 -c "$PINGS" "$POD2" >/dev/null
in_ns mallory python3 "$TOOLS/forge.py" <<FORGED
{"to": "$(underlay_of node1 4)", "formats": ["$BACKEND"], "count": 3, "port": 7000, "source": "$POD2", "destination": "$POD1",
 "source_mac": "$(vtep_mac_of node2 4)", "destination_mac": "$(vtep_mac_of node1 4)"}
FORGED
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
in_ns mallory python3 "$TOOLS/forge.py" <<FORGED
{"to": "$(underlay_of node1 4)", "formats": ["$BACKEND"], "count": 200, "port": 7000, "source": "$POD2", "destination": "$POD1",
 "source_mac": "$(vtep_mac_of node2 4)", "destination_mac": "$(vtep_mac_of node1 4)"}
FORGED
until_true "$SOON" "the drop is shown" grep -q ': UnknownPeer \[' "$SCRATCH/follow.out"
until_true "$SOON" "its count is exact" grep -q '^counted: UnknownPeer inbound 200 ' "$SCRATCH/follow.out"
stop "$FOLLOW" INT
stop "$OBJECTS" INT
equal "the count, as JSON" 200 "$(jq -s 'map(select(.event == "counts").counts[] | select(.reason == "UnknownPeer")) | last.count' "$SCRATCH/objects.out")"
jq -se 'map(select(.event == "packet")) | length > 0 and length < 200 and all(.reason == "UnknownPeer" and .destination != null)' \
    "$SCRATCH/objects.out" >/dev/null || fail "what is followed as JSON: $(head -n 3 "$SCRATCH/objects.out")"

# What is killed is off soon, also beside other captures.
started killed capture --stage dropped
KILLED=$PID
until_true 10 "a capture runs" captures_began 5
stop "$KILLED" KILL
until_true "$SOON" "a killed capture is off" captures_run 0
# A wrong expression names itself.
if tartan node1 capture 'vlan 3' 2>"$SCRATCH/wrong"; then fail "an expression of Ethernet is accepted"; fi
grep -q '"vlan" is not supported' "$SCRATCH/wrong" || fail "of a wrong expression: $(cat "$SCRATCH/wrong")"
law_one node1
