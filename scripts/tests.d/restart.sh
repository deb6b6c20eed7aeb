#!/usr/bin/env bash
# The agent of a node is stopped and started, and killed with all of its processes and started: no TCP connection ends,
# neither between pods nor one that is masqueraded to the tunnel device; the device stays, and while no agent runs the
# kernel refuses what pods send.
#
#   client (no node) ─────────────┐
#   pod1 ── node1: keeper, service (stopped, killed) ══ underlay ══ node2 ── pod3, which serves
#     └ ping 100 times a second
#
# Connections, in each family: pod1 → pod3; node1 → the ClusterIP of pod3; client → the NodePort of pod3 at node1.
#
# restart.sh BACKEND FAMILIES ROUNDS, where FAMILIES is v4, v6 or dual, inside and outside. Each round is a stop and a kill.
# alone: it prints pauses
# full: vxlan dual 1 workers=2
# case: udp v4 1
# full: vxlan v4 50
# full: udp dual 5 workers=2
# full: vxlan v6 5
# full: vxlan v4 5 device=plain
# full: vxlan dual 5 workers=2 device-type=tap
# full: vxlan v4 5 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"

BACKEND=$1
FAMILIES=$2
ROUNDS=$3
PORT=8080
# Milliseconds, of a start on a busy machine with the pause that the test itself makes.
LARGEST_GAP=15000

# One that has ended and was not collected has no namespace.
has_no_agent() {
    ! readlink "/proc/$1/ns/net" "/proc/$2/ns/net"
}

is_refused() {
    local family
    for family in $(families "$FAMILIES"); do
        # Not pod1, to which the errors of its flood of pings go, as many a second as the kernel sends to one address.
        { in_ns pod2 ping -c 1 -W 1 "$(address_of pod3 "$family")" 2>&1 || true; } >"$SCRATCH/refused"
        grep -qi unreachable "$SCRATCH/refused" || return 1
    done
}

# What the node forwarded by last shows, marked so that neither a reader nor a script takes it for an answer.
last_good_is_shown() {
    local command code
    grep -q '^LAST GOOD STATE, .* old: ' "$SCRATCH/status" || fail "status, $1, shows no last good state: $(cat "$SCRATCH/status")"
    for command in status peers routes; do
        code=0
        tartan node1 "$command" -o json >"$SCRATCH/$command.json" 2>/dev/null || code=$?
        equal "exit code of $command, $1" 3 "$code"
        jq -e '.code == "no-agent" and .last_good.node == "node1" and .last_good.peer_count == 1
            and .last_good.age >= 0 and .last_good_refused == null and (has("peers") or has("routes") | not)' \
            "$SCRATCH/$command.json" >/dev/null || fail "$command, $1: $(cat "$SCRATCH/$command.json")"
    done
    equal "peers of the last good state, $1" node2 "$(jq -r '.last_good.peers[].name' "$SCRATCH/peers.json")"
    equal "owners of its routes, $1" "node1 node2" "$(jq -r '[.last_good.routes[].node] | unique | join(" ")' "$SCRATCH/routes.json")"
}

# No agent runs.
nothing_serves() {
    local code=0
    # Of a stop at once from Linux 6.8 on, which settles the carrier when it is asked.
    until_true 5 "the kernel refuses what pods send, $1" is_refused || cat "$SCRATCH/refused"
    tartan node1 status >"$SCRATCH/status" 2>&1 || code=$?
    equal "exit code of status, $1" 3 "$code"
    is_kept_from_users "$1"
    last_good_is_shown "$1"
    grep -q 'as unreachable; tartan0 stays' "$SCRATCH/status" || fail "status, $1, does not say what refuses: $(cat "$SCRATCH/status")"
    [ "$(in_ns node1 cat /sys/class/net/tartan0/carrier)" = 0 ] || fail "tartan0 has a carrier, $1"
}

# A process without capabilities that can open /dev/net/tun, as udev lets every user, gets no queue of the device.
is_kept_from_users() {
    in_ns node1 python3 - tartan0 <<'ATTACH' || fail "a user's process attaches to tartan0, $1"
import errno, fcntl, os, struct, sys
queue = os.open("/dev/net/tun", os.O_RDWR)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
IFF_TUN, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR, IFF_MULTI_QUEUE = 1, 2, 0x1000, 0x4000, 0x100
refusals = set()
for kind in IFF_TUN, IFF_TAP:
    for more in 0, IFF_VNET_HDR | IFF_MULTI_QUEUE:
        try:
            fcntl.ioctl(queue, 0x400454CA, struct.pack("16sH22x", sys.argv[1].encode(), kind | IFF_NO_PI | more))
            sys.exit("attached")
        except OSError as error:
            refusals.add(errno.errorcode[error.errno])
sys.exit(refusals - {"EPERM", "EINVAL"} and str(refusals) or ("EPERM" not in refusals and str(refusals)))
ATTACH
}

# end stop|kill
end_agent() {
    local keeper pid
    keeper=$(cat "$LAB_STATE/node1/pid")
    pid=$(service_pid node1)
    case $1 in
    stop) "$SCRIPTS/lab" stop --prefix "$PREFIX" node1 >/dev/null ;;
    kill) kill -KILL "$keeper" "$pid" ;;
    esac
    until_true 10 "the agent has ended" has_no_agent "$keeper" "$pid"
}

say "stop and start, and SIGKILL of both processes: backend $BACKEND, families $FAMILIES, rounds $ROUNDS"
lab_up --backend "$BACKEND" --inside "$FAMILIES" --outside "$FAMILIES" --pods 2
lab services >/dev/null
SERVED=()
for FAMILY in $(families "$FAMILIES"); do SERVED+=("$(address_of pod3 "$FAMILY")"); done
start_in pod3 python3 "$TOOLS/held.py" serve "$PORT" "${SERVED[@]}"
until_true 10 "pod3 serves" serves_all
is_kept_from_users "while an agent runs"
BEFORE=$(device_and_routes node1)
start_load
start_in pod1 ping -n -D -i 0.01 "${SERVED[0]}" >"$SCRATCH/ping"
PING=$PID
for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do
    for WAY in stop kill; do
        end_agent "$WAY"
        if [ "$ROUND" = 1 ]; then nothing_serves "after $WAY"; fi
        "$SCRIPTS/lab" start --prefix "$PREFIX" node1 >/dev/null
        all_go_on "after $WAY $ROUND and a start"
    done
done
stop "$PING" INT
read -r GAP ANSWERS < <(gaps "$SCRATCH/ping")
measured_at_most "longest pause of the ping, with that between stop and start, ms" "$LARGEST_GAP" "$GAP"
say "$ANSWERS pings were answered"
load_survived
same "device, addresses and routes of node1" "$BEFORE" "$(device_and_routes node1)"
equal "device taken over" $((2 * ROUNDS)) "$(grep -c 'the device that is there is taken over' "$LAB_STATE/node1/log")"
law_one node1
law_one node2
