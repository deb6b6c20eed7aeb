# shellcheck shell=bash
# Services that are killed, and what must survive it. Sourced after test_case.sh.

# What the host shows and must not change; on the underlay IPv6 does some things by itself.
kernel_state() {
    ip -n "$PREFIX-$1" -j address show |
        jq -r '.[] | select(.ifname != "eth0") | "\(.ifindex) \(.ifname) \(.mtu) \(.flags)", (.addr_info[] | "  \(.local)/\(.prefixlen) \(.scope)")'
    ip -n "$PREFIX-$1" address show dev eth0 scope global | grep -wE "inet6?"
    ip -n "$PREFIX-$1" -4 route show table all
    ip -n "$PREFIX-$1" -6 route show table all | grep -v 'dev eth0'
    echo "carrier changes of tartan0: $(in_ns "$1" cat /sys/class/net/tartan0/carrier_changes)"
}

# device_and_routes NODE: without the marks that they bear while no process holds the device; and without the VXLAN device of the
# kernel path, which a stop removes.
device_and_routes() {
    kernel_state "$1" | grep -v -e '^carrier changes' -e ' tartan0-gro ' | sed -E 's/ (dead )?linkdown//; s/"NO-CARRIER",?//; s/"LOWER_UP",?//; s/,\]/]/'
}

# Kills the service of a node and waits for the next one to forward.
kill_service() {
    local pid restarts
    pid=$(service_pid "$1")
    restarts=$(agent_json "$1" status | jq .restarts)
    say "SIGKILL of the service of $1, process $pid"
    kill -KILL "$pid"
    until_true 5 "a new service on $1" another_service "$1" "$pid"
    equal "restarts on $1" $((restarts + 1)) "$(agent_json "$1" status | jq .restarts)"
}

another_service() {
    [ "$(service_pid "$1")" != "$2" ] && tartan "$1" status
}

# The longest pause between two answers, in milliseconds, and how many came.
gaps() {
    awk -F'[][ ]' '/bytes from/ { if (last) { gap = $2 - last; if (gap > longest) longest = gap }; last = $2; count++ }
        END { printf "%d %d\n", longest * 1000 + 0.5, count }' "$1"
}

# lost_in_crash NODE [outbound|inbound]: what is booked as held by services that were killed, of all workers.
lost_in_crash() {
    dropped_for "$1" LostInCrash "${2:-}"
}

# dropped_for NODE REASON [outbound|inbound]
dropped_for() {
    agent_json "$1" drops | jq --arg reason "$2" --arg direction "${3:-}" \
        '[.workers[] | if $direction == "" then .outbound, .inbound else .[$direction] end | .dropped[$reason] // 0] | add'
}

# lost_in_kernel NODE: what found no room while no process read: in queues of the device, and in sockets.
lost_in_kernel() {
    echo $(($(device_count "$1" tartan0 tx_dropped) + $(in_ns "$1" nstat -asz UdpRcvbufErrors Udp6RcvbufErrors | awk 'NR > 1 { sum += $2 } END { print sum + 0 }')))
}

# booked_is_held NODE KILLS: no more is booked than its workers can have held when they were killed (dataplane/src/limits.rs: SHARE
# datagrams, or QUANTUM_PACKETS packets, of each direction).
booked_is_held() {
    local direction workers
    workers=$(agent_json "$1" drops | jq '[.workers[] | select(.name != "kernel-path")] | length')
    for direction in outbound inbound; do
        at_most "$1: packets, $direction, booked as lost in $2 crashes" $(($2 * workers * 2048)) "$(lost_in_crash "$1" "$direction")"
    done
}
