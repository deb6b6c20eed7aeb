#!/usr/bin/env bash
# The unit under a real systemd is restarted, or both of its processes are killed, again and again under load: no TCP
# connection ends, a restart loses no datagram, and nothing is left open. After a kill the next agent forwards while its
# registry is gone: from the records of its pods and the last good state.
#
#   mallory (no node) ───────────────┐
#   pod0 ── machine node1: systemd, tartan.service ══ underlay ══ node2: tartan ── pod1, which serves
#                                                      └ registry: etcd, which is stopped before the kills
#
# Connections: pod0 → pod1; node1 → a ClusterIP of pod1; mallory → a NodePort of pod1 at node1, masqueraded.
#
# systemd_load.sh restart|kill ROUNDS: of fifty or more the pauses are judged
# alone: it measures pauses
# full: restart 50
# full: kill 50 workers=2
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"
# shellcheck source=scripts/tests.d/tools/machine.sh
. "$TOOLS/machine.sh"

WAY=$1
ROUNDS=$2
FAMILIES=(4)
LOAD_FROM=pod0
LOAD_TO=pod1
# Milliseconds: the hole of a restart; and after a kill the time from the start of the next agent to the first ping that
# is answered. Before that start systemd waits RestartSec=, 500 ms.
MOST_OF_RESTART=300
MOST_AFTER_START=1000
# Seconds that are looked at after each of them: longer than a service must have forwarded to be taken for one that
# works.
LOOKED_AT=2

# As docs/install.md says, and with the lab's registry.
install_unit() {
    local word
    for word in tartan tartan-cni; do into_machine node1 755 "$BIN/$word" /usr/local/bin; done
    into_machine node1 644 "$SCRIPTS/../deploy/tartan.service" /etc/systemd/system
    in_machine node1 mkdir -p /etc/tartan
    {
        echo "probe = $TARTAN_PROBE"
        if [ "$WAY" = kill ]; then
            # The host of the registry is .252 (scripts/lab.d/registry.sh).
            printf '%s\n' 'registry = "etcd"' 'iface = ["eth0"]' 'etcd-endpoints = ["http://192.0.2.252:2379"]'
        fi
        for ((word = 0; word < ${#AGENTS[@]}; word += 2)); do echo "${AGENTS[word]#--} = ${AGENTS[word + 1]}"; done
    } | in_machine node1 dd of=/etc/tartan/tartan.toml status=none
    if [ "$WAY" = restart ]; then
        for word in net-conf.json nodes.toml; do into_machine node1 644 "$LAB_STATE/node1/$word" /etc/tartan; done
    fi
    in_machine node1 systemctl daemon-reload
    in_machine node1 systemctl --quiet enable --now tartan
    until_true 15 "node1 forwards" forwarding node1 ||
        die "$(in_machine node1 journalctl --no-pager -u tartan | tail -n 30)"
    in_machine node1 tartan cni install >/dev/null || fail "tartan cni install ended with $?"
}

# The pod of the machine, with a name of the lab's too, by which the load is started in it.
pod_of_machine() {
    machine_pod node1 pod0
    touch "/run/netns/$PREFIX-pod0"
    mount --bind "/proc/${MACHINE[node1]}/root/run/netns/pod0" "/run/netns/$PREFIX-pod0" ||
        die "no name for the pod of the machine"
    echo "$PREFIX-pod0 $(stat -L -c %i "/run/netns/$PREFIX-pod0")" >>"$LAB_STATE/namespaces"
}

# Seconds since 1970 of a time of CLOCK_MONOTONIC in microseconds, which systemd gives.
since_1970() {
    python3 -c 'import sys, time; print(f"{time.time() - time.monotonic() + int(sys.argv[1]) / 1e6:.6f}")' "$1"
}

other_agent() {
    local now
    now=$(unit_property node1 MainPID)
    [ "$now" != 0 ] && [ "$now" != "$KEEPER" ] && forwarding node1
}

# What the agent has open, what systemd keeps of it, and what it left in files, in the kernel and among processes. Sizes
# of what it writes anew are no leak, and what a set of nftables forgets by itself neither.
unit_holds() {
    local keeper table proc=/proc/${MACHINE[node1]}/root/proc
    keeper=$(unit_property node1 MainPID)
    echo "keeper: $(open_in "$keeper" "$proc")"
    echo "service: $(open_in "$(machine_service node1)" "$proc" | grep -v ' socket$')"
    echo "store of systemd: $(unit_property node1 NFileDescriptorStore)"
    echo "processes: $(pgrep -c -x tartan --ns "${MACHINE[node1]}" --nslist pid)"
    echo "queues: $(queues_of node1)"
    for table in udp udp6 raw raw6 packet; do echo "sockets, $table: $(wc -l <"$proc/$keeper/net/$table")"; done
    machine_files node1 | awk '{ print $1, $2 }'
    machine_network node1 2>/dev/null | grep -v ' expires '
    in_machine node1 bash -c 'cd /run/tartan/attachments && sha256sum -- *'
}

holds_as_noted() {
    [ "$(unit_holds)" = "$NOTED" ]
}

holds_the_same_twice() {
    NOTED=$(unit_holds)
    sleep 1
    holds_as_noted
}

balances_in_machine() {
    in_machine node1 tartan drops -o json | jq -e "$LAW_ONE | length > 0 and all(. == 0)"
}

drops() {
    in_machine node1 tartan drops -o json | jq '[.workers[] | .outbound, .inbound | .dropped | add // 0] | add'
}

# problems_are CODE...: these and no others.
problems_are() {
    [ "$(machine_status node1 | jq -r '[.problems[].code] | join(" ")')" = "$*" ]
}

# One round: its moment is noted, and the start of the next keeper.
restart_or_kill() {
    KEEPER=$(unit_property node1 MainPID)
    echo "$EPOCHREALTIME" >>"$SCRATCH/moments"
    case $WAY in
    restart) in_machine node1 systemctl restart tartan ;;
    # The service may have ended with its keeper by then.
    kill) in_machine node1 kill -KILL "$KEEPER" "$(machine_service node1)" 2>/dev/null || true ;;
    esac
    until_true 10 "another agent, which forwards" other_agent ||
        die "$(in_machine node1 journalctl --no-pager -u tartan | tail -n 30)"
    since_1970 "$(unit_property node1 ExecMainStartTimestampMonotonic)" >>"$SCRATCH/starts"
    all_go_on "after $WAY $1"
    [ "$WAY" = restart ] || until_true 10 "the status has registry-lost and nothing else" problems_are registry-lost
    sleep "$LOOKED_AT"
}

judge() {
    local found
    sleep 1
    stop "$PING" INT
    sed -nE 's/^\[([0-9.]+)\].* bytes from .*/\1/p' "$SCRATCH/ping" >"$SCRATCH/answers"
    found=$(python3 "$TOOLS/holes.py" "$SCRATCH/answers" "$SCRATCH/moments" "$LOOKED_AT" "$SCRATCH/starts") ||
        die "no figures"
    say "holes within $LOOKED_AT s of each $WAY, and the first answer after each start, ms: $found"
    equal "rounds that were looked at" "$ROUNDS" "$(jq .count <<<"$found")"
    case $WAY in
    restart) measured_at_most "longest hole among pings, ms" "$MOST_OF_RESTART" "$(jq '.most | ceil' <<<"$found")" ;;
    kill) measured_at_most "longest time from the start of the next agent to an answered ping, ms" "$MOST_AFTER_START" \
        "$(jq '.started.most | ceil' <<<"$found")" ;;
    esac
}

say "under systemd: $WAY, $ROUNDS times"
REGISTRY=()
if [ "$WAY" = kill ]; then REGISTRY=(--registry etcd); fi
lab_up --pods 0 "${REGISTRY[@]}"
lab attach node2 >/dev/null
lab stop node1 >/dev/null
in_ns node1 tartan cleanup >/dev/null
machine_up node1
install_unit
pod_of_machine
start_load
if [ "$WAY" = kill ]; then
    lab registry stop
    # The first start that finds it gone is one of those that are judged.
    until_true 30 "the status has registry-lost" problems_are registry-lost
fi
DEVICE=$(device_and_routes node1)
until_true 20 "the agent has opened what it opens" holds_the_same_twice
DROPS=$(($(drops) + $(lost_in_kernel node1)))
start_datagrams pod0 pod1
start_in pod0 ping -n -D -i 0.002 "$(address_of pod1)" >"$SCRATCH/ping"
PING=$PID
until_true 5 "the first ping is answered" grep -q 'bytes from' "$SCRATCH/ping"
for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do restart_or_kill "$ROUND"; done
judge
stop_datagrams
if [ "$WAY" = restart ]; then
    # On a machine so busy that a queue runs full.
    at_most "datagrams lost, beside what is booked" "$(($(drops) + $(lost_in_kernel node1) - DROPS))" "$LOST"
    measured_at_most "datagrams lost" 0 "$LOST"
fi
until_true 5 "every packet has a fate, over all services" balances_in_machine || in_machine node1 tartan drops
load_survived
until_true 10 "the agent holds what it held" holds_as_noted || true
same "descriptors, store of systemd, processes, queues, sockets, files and records of pods" "$NOTED" "$(unit_holds)"
same "device, addresses and routes of node1" "$DEVICE" "$(device_and_routes node1)"
if [ "$WAY" = kill ]; then
    equal "restarts by systemd" "$ROUNDS" "$(unit_property node1 NRestarts)"
    lab registry start
fi
until_true 30 "no problem is left" problems_are
equal "repairs" 0 "$(machine_status node1 | jq .repairs)"
machine_pod_gone node1 pod0
machine_down node1
equal "control groups that are left" '' "$(find "$(unified_hierarchy)" -maxdepth 1 -name "$PREFIX-machine*")"
