# shellcheck shell=bash
# Services that are killed, and what must survive it. Sourced after law.sh or test_case.sh.

# device_and_routes NODE: what the host shows and must not change, but the marks of a device that no process holds, and
# the VXLAN device of the kernel path, which a stop removes. On the underlay IPv6 does some things by itself.
device_and_routes() {
    {
        ip -n "$PREFIX-$1" -j address show | jq -r '.[] | select(.ifname | IN("eth0", "tartan0-gro") | not)
            | "\(.ifindex) \(.ifname) \(.mtu) \(.flags)", (.addr_info[] | "  \(.local)/\(.prefixlen) \(.scope)")'
        ip -n "$PREFIX-$1" address show dev eth0 scope global | grep -wE "inet6?"
        ip -n "$PREFIX-$1" -4 route show table all
        ip -n "$PREFIX-$1" -6 route show table all | grep -v 'dev eth0'
    } | sed -E 's/ (dead )?linkdown//; s/"NO-CARRIER",?//; s/"LOWER_UP",?//; s/,\]/]/'
}

# kernel_state NODE...: that, and what a service that takes over does not change either.
kernel_state() {
    local node
    for node; do
        device_and_routes "$node"
        echo "carrier changes of tartan0: $(in_ns "$node" cat /sys/class/net/tartan0/carrier_changes)"
        agent_json "$node" status | jq '{repairs}'
    done
}

keeper_of() {
    cat "$LAB_STATE/$1/pid"
}

# service_of NODE: without asking the agent.
service_of() {
    pgrep -P "$(keeper_of "$1")"
}

# kill_service NODE: waits for the next one to forward.
kill_service() {
    local pid restarts
    pid=$(service_of "$1")
    restarts=$(agent_json "$1" status | jq .restarts)
    kill -KILL "$pid"
    until_true 5 "a new service on $1" another_service "$1" "$pid"
    equal "restarts on $1" $((restarts + 1)) "$(agent_json "$1" status | jq .restarts)"
}

# another_service NODE PID: one that is not PID forwards.
another_service() {
    [ "$(service_of "$1")" != "$2" ] && agent_json "$1" status | jq -e .snapshot_adopted
}

# kill_agent NODE [keeper]: keeper and service at once, or the keeper alone, of which the service learns. Both have
# ended then.
kill_agent() {
    local keeper service
    keeper=$(keeper_of "$1")
    service=$(service_of "$1")
    if [ "${2:-}" = keeper ]; then kill -KILL "$keeper"; else kill -KILL "$keeper" "$service"; fi
    until_true 10 "keeper and service of $1 have ended" have_ended "$keeper" "$service"
}

# have_ended PID...: none of the processes runs. One that its parent has not waited for yet has no program any more.
have_ended() {
    local pid
    for pid; do
        if readlink "/proc/$pid/exe" >/dev/null; then return 1; fi
    done
}

# open_in PROCESS [PROC]: how many descriptors of each kind it has. A device that was opened in a mount namespace that
# is gone has the path below its mount, or none.
open_in() {
    find "${2:-/proc}/$1/fd" -mindepth 1 -printf '%l\n' | sed -E 's/:\[[0-9]+\]//; s|^(/net/tun\|/)$|/dev/net/tun|' |
        sort | uniq -c
}

# queues_of NODE: how many the device has, and how many that only write.
queues_of() {
    ip -n "$PREFIX-$1" -d -j link show dev tartan0 | jq -c '.[0].linkinfo.info_data | [.numqueues, .numdisabled // 0]'
}

# holds NODE: what its agent has open, has in the kernel, and has put into its directories.
holds() {
    local keeper
    keeper=$(keeper_of "$1")
    echo "keeper: $(open_in "$keeper")"
    echo "service: $(open_in "$(service_of "$1")" | grep -v ' socket$')"
    echo "processes: $(pgrep -c -f -- "--root $LAB_STATE/$1 run")"
    echo "queues: $(queues_of "$1")"
    # Not those of netlink, which a service opens when it first needs them.
    wc -l /proc/"$keeper"/net/{udp,udp6,raw,raw6,packet,unix} | sed 's|/proc/[0-9]*|sockets: |'
    find "$LAB_STATE/$1/run" "$LAB_STATE/$1/var" -printf '%P %y\n' | grep -v handed-over | sort
}

# note_held NODE...: what their agents hold, into HELD. A service opens some sockets shortly after it forwards: it is
# known once two looks agree.
declare -A HELD
note_held() {
    until_true 20 "the agents of $* have opened what they open" hold_the_same "$@"
}

hold_the_same() {
    local node
    for node; do HELD[$node]=$(holds "$node"); done
    sleep 0.3
    for node; do prints "${HELD[$node]}" holds "$node" || return 1; done
}

# still_held NODE
still_held() {
    until_true 5 "the agent of $1 holds what it held" prints "${HELD[$1]}" holds "$1" ||
        same "descriptors, processes, queues, sockets and files of the agent of $1" "${HELD[$1]}" "$(holds "$1")"
}

# lost_in_crash NODE: what is booked as held by services that were killed, of all workers.
lost_in_crash() {
    agent_json "$1" drops | jq '[.workers[] | .outbound, .inbound | .dropped.LostInCrash // 0] | add'
}

# lost_in_kernel NODE: what found no room while no process read: in queues of the device, and in sockets.
lost_in_kernel() {
    echo $(($(device_count "$1" tartan0 tx_dropped) + $(in_ns "$1" nstat -asz UdpRcvbufErrors Udp6RcvbufErrors |
        awk 'NR > 1 { sum += $2 } END { print sum + 0 }')))
}

# booked NODE...: what is booked as lost: in a crash, for another reason but those for what is forged, or in the kernel.
booked() {
    local node sum=0
    for node; do
        sum=$((sum + $(lost_in_kernel "$node") + $(agent_json "$node" drops | jq '[.workers[] | .outbound, .inbound
            | .dropped | del(.UnknownPeer, .NotPeersSource, .Ipv6InUdp) | add // 0] | add')))
    done
    echo "$sum"
}
