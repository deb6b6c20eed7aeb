#!/usr/bin/env bash
# A service that starts with another number of workers than the one before takes the same device over, with as many
# queues and sockets as it has workers: addresses, routes and carrier stay, TCP transfers both ways go on.
#
#   pod1 ── node1: 1, 2, 3, 1 workers ══ underlay ══ node2: workers ── pod2
#     └ ping 100 times a second, and TCP transfers in both directions
#
# workers.sh BACKEND [INSIDE OUTSIDE], where INSIDE and OUTSIDE are v4, v6 or dual: the families of pods and of the
# underlay.
# alone: it measures pauses
# full: vxlan
# full: udp
# full: vxlan dual dual
# full: vxlan device-type=tap
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"

BACKEND=$1
INSIDE=${2:-v4}
OUTSIDE=${3:-v4}
NUMBERS=(2 3 1)
TRANSFERS=2
BYTES=$((1 << 27))
# Seconds of each transfer, at least: it is to outlast the kills.
LASTS=9
PINGS=800
# Milliseconds.
LARGEST_GAP=1000

# transfer FROM TO PORT: in the background.
transfer() {
    local address
    address=$(address_of "$2")
    start_in "$2" python3 "$TOOLS/bulk.py" receive "$address" "$3" >"$SCRATCH/received$3"
    RECEIVERS+=("$PID")
    start_in "$1" python3 "$TOOLS/bulk.py" send "$address" "$3" "$BYTES" $((BYTES / LASTS)) >"$SCRATCH/sent$3"
    SENDERS+=("$PID")
    PORTS+=("$3")
}

configure() {
    mkdir -p "$LAB_STATE/$1/etc/tartan"
    echo "workers = $2" >"$LAB_STATE/$1/etc/tartan/tartan.toml"
}

# How many queues the device has, how many writers beside them, and how many sockets each port of the first family:
# as the kernel counts them, whichever process holds them.
held() {
    local sockets port
    sockets=
    for port in 8285 8472; do
        sockets+=" $(in_ns "$1" ss -Hlun "sport = :$port and src $(underlay_of "$1" "$FAMILY")" | wc -l)"
    done
    ip -n "$PREFIX-$1" -d link show tartan0 |
        sed -nE "s/.* numqueues ([0-9]+) (numdisabled ([0-9]+) )?.*/\1 \3/p" | awk '{ printf "%d %d", $1, $2 }'
    echo "$sockets"
}

# With one worker nothing but a queue and a socket of each port; of several each has a writer too.
expected() {
    local writers=$1
    [ "$1" -gt 1 ] || writers=0
    echo "$1 $writers $1 $1"
}

say "other numbers of workers: backend $BACKEND, inside $INSIDE, outside $OUTSIDE"
lab_up --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE"
FAMILY=4
if [ "$OUTSIDE" = v6 ]; then FAMILY=6; fi
configure node1 1
kill_service node1
BEFORE=$(kernel_state node1)
SENDERS=() RECEIVERS=() PORTS=()
start_in pod1 ping -n -D -i 0.01 -c "$PINGS" -W 1 "$(address_of pod2)" >"$SCRATCH/ping"
PINGER=$PID
for ((n = 0; n < TRANSFERS; n++)); do
    transfer pod1 pod2 $((5100 + n))
    transfer pod2 pod1 $((5200 + n))
done
sleep 0.5
for WORKERS in "${NUMBERS[@]}"; do
    for SENDER in "${SENDERS[@]}"; do
        kill -0 "$SENDER" 2>/dev/null || fail "a TCP transfer ended before the last kill: it proves nothing"
    done
    configure node1 "$WORKERS"
    kill_service node1
    equal "workers" "$WORKERS" "$(agent_json node1 status | jq .workers)"
    equal "queues, writers, sockets of udp and of vxlan" "$(expected "$WORKERS")" "$(held node1)"
    sleep 1
done
for ((n = 0; n < ${#SENDERS[@]}; n++)); do
    wait "${SENDERS[n]}" || fail "the TCP transfer ${PORTS[n]} did not survive at the sender"
    wait "${RECEIVERS[n]}" || fail "the TCP transfer ${PORTS[n]} did not survive at the receiver"
    equal "bytes and sha256 of transfer ${PORTS[n]}" "$(cat "$SCRATCH/sent${PORTS[n]}")" "$(cat "$SCRATCH/received${PORTS[n]}")"
done
wait "$PINGER" || true
read -r GAP ANSWERS < <(gaps "$SCRATCH/ping")
measured_at_most "longest pause of the ping, ms" "$LARGEST_GAP" "$GAP"
[ "$ANSWERS" -gt $((PINGS * 3 / 4)) ] || fail "only $ANSWERS of $PINGS pings were answered"
same "addresses, routes and carrier changes of node1" "$BEFORE" "$(kernel_state node1)"
equal "problems of node1" '[]' "$(agent_json node1 status | jq -c .problems)"
law_one node1
law_one node2
