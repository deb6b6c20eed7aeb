#!/usr/bin/env bash
# The unit under a real systemd is restarted, or both of its processes are killed, again and again under load: no TCP connection
# ends, the hole in a row of probes is short, and nothing is left open. After a kill the next agent forwards while its registry is
# gone: from the records of its pods and the last good state.
#
#   client (no node) ───────────────┐
#   pod0 ── machine node1: systemd, tartan.service ══ underlay ══ node2: tartan ── pod1, which serves
#     └ ping 500 times a second                        └ registry: etcd, which is stopped before the kills
#
# Connections: pod0 → pod1; node1 → the ClusterIP of pod1; client → the NodePort of pod1 at node1, masqueraded.
#
# systemd_load.sh restart|kill ROUNDS
# alone: it measures pauses
# full: restart 2
# full: kill 2
# full: restart 50
# full: kill 50
# full: kill 10 workers=2
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
FAMILIES=v4
PORT=8080
BIN=${LAB_BIN:-$SCRIPTS/../target/fast}
DEPLOY=$SCRIPTS/../deploy
# Milliseconds: the hole of a restart; and after a kill the time from the start of the next agent to the first probe that is
# answered. Before that start systemd waits RestartSec=, 500 ms.
MOST_OF_RESTART=300
MOST_AFTER_START=1000
# Seconds that are looked at after each of them.
LOOKED_AT=2

# As docs/install.md says, and with the lab's registry.
install_unit() {
    local word
    into_machine node1 755 "$BIN/tartan" /usr/local/bin
    into_machine node1 755 "$BIN/tartan-cni" /usr/local/bin
    into_machine node1 644 "$DEPLOY/tartan.service" /etc/systemd/system
    in_machine node1 mkdir -p /etc/tartan
    {
        echo "probe = $TARTAN_PROBE"
        if [ "$WAY" = kill ]; then
            echo 'registry = "etcd"'
            echo 'iface = ["eth0"]'
            echo "etcd-endpoints = [\"http://$REGISTRY_ADDRESS:2379\"]"
        fi
        for ((word = 0; word < ${#AGENTS[@]}; word += 2)); do
            case ${AGENTS[word]} in
            --workers) echo "workers = ${AGENTS[word + 1]}" ;;
            *) echo "${AGENTS[word]#--} = \"${AGENTS[word + 1]}\"" ;;
            esac
        done
    } | in_machine node1 dd of=/etc/tartan/tartan.toml status=none
    if [ "$WAY" = restart ]; then
        for word in net-conf.json nodes.toml; do into_machine node1 644 "$LAB_STATE/node1/$word" /etc/tartan; done
    fi
    in_machine node1 systemctl daemon-reload
    in_machine node1 systemctl --quiet enable --now tartan
    until_true 15 "node1 forwards" forwarding node1 || die "$(in_machine node1 journalctl --no-pager -u tartan | tail -n 30)"
    in_machine node1 tartan cni install >/dev/null || fail "tartan cni install ended with $?"
}

# The pod of the machine, with a name of the lab's too, by which the load is started in it.
pod_of_machine() {
    machine_pod node1 pod0
    touch "/run/netns/$PREFIX-pod0"
    mount --bind "/proc/${MACHINE[node1]}/root/run/netns/pod0" "/run/netns/$PREFIX-pod0" || die "no name for the pod of the machine"
    echo "$PREFIX-pod0 $(stat -L -c %i "/run/netns/$PREFIX-pod0")" >>"$LAB_STATE/namespaces"
}

start_connections() {
    hold "pod0 to pod1" pod0 "$SERVED" "$PORT"
    hold "node1 to the ClusterIP of pod1" node1 "$(service_of_pod1 address)" "$(service_of_pod1 port)"
    hold "client to the NodePort of pod1 at node1" client "$(underlay_of node1 4)" "$(service_of_pod1 node_port)"
}

service_of_pod1() {
    jq -r --arg key "$1" '.[] | select(.name == "lab/pod1")[$key]' "$LAB_STATE/services.4"
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

# open_in PROCESS: how many descriptors of each kind a process of the machine has. A device that was opened below the mounts of an
# agent that is gone has a path no more.
open_in() {
    find "/proc/${MACHINE[node1]}/root/proc/$1/fd" -mindepth 1 -printf '%l\n' | sed -E 's/:\[[0-9]+\]//; s|^/$|/dev/net/tun|' | sort | uniq -c
}

# What the agent has open, what systemd keeps of it, and what it left in files, in the kernel and among processes.
holds() {
    local keeper table
    keeper=$(unit_property node1 MainPID)
    echo "keeper:"
    open_in "$keeper"
    echo "service:"
    open_in "$(machine_service node1)"
    echo "store of systemd: $(unit_property node1 NFileDescriptorStore)"
    echo "processes: $(pgrep -c -x tartan --ns "${MACHINE[node1]}" --nslist pid)"
    echo "queues: $(ip -n "$PREFIX-node1" -d -j link show dev tartan0 | jq -c '.[0].linkinfo.info_data | [.numqueues, .numdisabled]')"
    # Not those of netlink: the kernel lists one from its first use on (netlink_autobind). Each is a descriptor.
    for table in udp udp6 raw raw6 packet; do
        echo "sockets, $table: $(wc -l <"/proc/${MACHINE[node1]}/root/proc/$keeper/net/$table")"
    done
    # Sizes of what the agent writes anew are no leak, and what a set of nftables forgets by itself neither.
    machine_files node1 | awk '{ print $1, $2 }'
    machine_network node1 2>/dev/null | grep -v ' expires '
}

# A service opens some sockets, such as those of probes, shortly after it forwards: what it holds is known once two looks agree.
holds_the_same() {
    HELD=$(holds)
    sleep 1.5
    holds_as_before
}

holds_as_before() {
    [ "$(holds)" = "$HELD" ]
}

# Names and bytes of the records of attached pods.
records() {
    in_machine node1 bash -c 'cd /run/tartan/attachments && sha256sum -- *'
}

# delivered: packets written to the device of node1, by all services there were.
delivered() {
    in_machine node1 tartan drops -o json | jq '[.workers[].inbound.delivered] | add'
}

balances_in_machine() {
    in_machine node1 tartan drops -o json | jq -c "$LAW_ONE" >"$SCRATCH/balances"
    jq -e 'length > 0 and all(. == 0)' "$SCRATCH/balances"
}

problems() {
    machine_status node1 | jq -c '[.problems[].code]'
}

is_lost() {
    [ "$(problems)" = '["registry-lost"]' ]
}

has_no_problem() {
    [ "$(problems)" = '[]' ]
}

# One round: its moment is noted, and the start of the next keeper.
restart_or_kill() {
    KEEPER=$(unit_property node1 MainPID)
    case $WAY in
    restart)
        echo "$EPOCHREALTIME" >>"$SCRATCH/moments"
        in_machine node1 systemctl restart tartan
        ;;
    kill)
        local service
        service=$(machine_service node1)
        echo "$EPOCHREALTIME" >>"$SCRATCH/moments"
        # The service may have ended with its keeper by then.
        in_machine node1 kill -KILL "$KEEPER" "$service" 2>/dev/null || true
        ;;
    esac
    until_true 10 "another agent, which forwards" other_agent || die "$(in_machine node1 journalctl --no-pager -u tartan | tail -n 30)"
    since_1970 "$(unit_property node1 ExecMainStartTimestampMonotonic)" >>"$SCRATCH/starts"
    all_go_on "after $WAY $1"
    if [ "$WAY" = kill ]; then
        [ "$(records)" = "$RECORDS" ] || fail "the records of attached pods are others: $(records)"
        until_true 10 "the status has registry-lost and nothing else" is_lost || problems
    fi
    # Longer than a service must have forwarded to be taken for one that works, and than what is looked at.
    sleep "$LOOKED_AT"
}

judge() {
    local found
    sleep 1
    stop "$PING" INT
    found=$(python3 "$TOOLS/holes.py" "$SCRATCH/ping" "$SCRATCH/moments" "$LOOKED_AT" "$SCRATCH/starts") || die "no figures"
    say "holes within $LOOKED_AT s of each $WAY, and the first answer after each start, ms: $found"
    equal "rounds that were looked at" "$ROUNDS" "$(jq .count <<<"$found")"
    case $WAY in
    restart) measured_at_most "longest hole in the probes, ms" "$MOST_OF_RESTART" "$(jq '.most | ceil' <<<"$found")" ;;
    kill) measured_at_most "longest time from the start of the next agent to an answered probe, ms" "$MOST_AFTER_START" \
        "$(jq '.started.most | ceil' <<<"$found")" ;;
    esac
}

say "under systemd: $WAY, $ROUNDS times"
REGISTRY=()
if [ "$WAY" = kill ]; then REGISTRY=(--registry etcd); fi
lab_up --pods 0 "${REGISTRY[@]}"
lab attach node2 >/dev/null
lab services >/dev/null
# The host of the registry is .252 (scripts/lab.d/registry.sh).
REGISTRY_ADDRESS=192.0.2.252
SERVED=$(address_of pod1 4)
lab stop node1 >/dev/null
in_ns node1 tartan cleanup >/dev/null
machine_up node1
install_unit
pod_of_machine
start_in pod1 python3 "$TOOLS/held.py" serve "$PORT" "$SERVED"
until_true 10 "pod1 serves" is_bound pod1 tcp "$PORT"
start_connections
RECORDS=$(records)
[ -n "$RECORDS" ] || fail "there is no record of an attached pod"
if [ "$WAY" = kill ]; then
    lab registry stop
    # The first start that finds it gone is one of those that are judged.
    until_true 30 "the status has registry-lost" is_lost || problems
fi
DEVICE=$(device_and_routes node1)
until_true 20 "the agent has opened what it opens" holds_the_same
RESETS=$(resets pod0 pod1 node1 client)
DELIVERED=$(delivered)
start_in pod0 ping -n -D -i 0.002 "$SERVED" >"$SCRATCH/ping"
PING=$PID
until_true 5 "the first probe is answered" grep -q 'bytes from' "$SCRATCH/ping"
for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do restart_or_kill "$ROUND"; done
judge
# The page of counters is one of the descriptors that systemd keeps.
at_most "answers that arrived, against packets delivered meanwhile, by all services together" $(($(delivered) - DELIVERED)) \
    "$(grep -c 'bytes from' "$SCRATCH/ping")"
until_true 5 "every packet has a fate, over all services" balances_in_machine || cat "$SCRATCH/balances"
same "connections that were reset, of each host" "$RESETS" "$(resets pod0 pod1 node1 client)"
load_survived
until_true 10 "the agent holds what it held" holds_as_before || true
same "descriptors, store of systemd, processes, queues, sockets, files and network" "$HELD" "$(holds)"
same "device, addresses and routes of node1" "$DEVICE" "$(device_and_routes node1)"
same "records of attached pods" "$RECORDS" "$(records)"
case $WAY in
restart) equal "problems" '[]' "$(problems)" ;;
kill)
    equal "restarts by systemd" "$ROUNDS" "$(unit_property node1 NRestarts)"
    lab registry start
    until_true 30 "no problem is left once the registry is back" has_no_problem || problems
    ;;
esac
equal "repairs" 0 "$(machine_status node1 | jq .repairs)"
machine_pod_gone node1 pod0
machine_down node1
equal "control groups that are left" '' "$(find "$(unified_hierarchy)" -maxdepth 1 -name "$PREFIX-machine*")"
