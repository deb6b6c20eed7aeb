#!/usr/bin/env bash
# The underlay address of a running node moves in the list of nodes. It follows without a restart, a TCP connection
# lives on, and nothing passes at the old address.
# labs: kernel-path=auto registry=file third=tartan
# labs: lab=udp-over-v6
. "$TOOLS/kernel_path.sh"

# bound: what the sockets of node1 are bound to.
bound() {
    in_ns node1 ss -Hlun "sport = :$BOUND" | awk '{ print $4 }' | sort -u
}

# address VERB ADDRESS: of node1.
address() {
    in_ns node1 ip address "$1" "$2" dev eth0 "${NODAD[@]}"
}

# move FROM TO: by the lists of node1 and node2, each replaced as a whole, as an editor does.
move() {
    local list
    address add "$2"
    mark
    for list in "$LAB_STATE"/node[12]/nodes.toml; do
        sed "s|\"${1%/*}\"|\"${2%/*}\"|" "$list" >"$list.new"
        mv "$list.new" "$list"
    done
    until_true 3 "the sockets of node1 are at $2 alone" prints "$(socket_address "${2%/*}" "$BOUND")" bound
    a_while pod1 In 20
    mark
    a_while pod1 In 100
    mark
    kill -0 "${SENDING[pod3]}" 2>/dev/null || fail "the TCP connection did not survive"
    until_true 3 "node1 is well" no_problem node1
}

# How many datagrams node3 has refused as those of no peer.
refused() {
    agent_json node3 drops | jq '[.workers[].inbound.dropped.UnknownPeer // 0] | add'
}

# node3 believes in the old address, which the host still has.
the_old_address_is_refused() {
    local before way check=equal
    # Probes are refused too.
    [ "${TARTAN_PROBE:-}" = false ] || check=at_least
    before=$(refused)
    for way in "pod5 pod1" "pod1 pod5"; do
        if in_ns "${way% *}" ping -n -q -c 10 -i 0.02 -W 0.3 "$(address_of "${way#* }")" >"$SCRATCH/ping"; then
            fail "${way% *} reaches ${way#* }"
        fi
    done
    "$check" "datagrams from the new address that node3 refuses" 10 $(($(refused) - before))
}

PROMOTE=net.ipv4.conf.all.promote_secondaries
OUTER=$(carrier "${FAMILIES[0]}" "$OUTSIDE")
OLD=$(underlay_of node1 "$OUTER")/24 NEW=192.0.2.101/24 BOUND=$FORMAT_PORT NODAD=()
if [ "$OUTER" = 6 ]; then OLD=${OLD%/*}/64 NEW=2001:db8:192::101/64 NODAD=(nodad); fi
if kernel_path_carries; then BOUND=$PRIVATE_PORT; fi
# Without this the kernel takes the second address of a subnet away with the first.
undo in_ns node1 sysctl -q -w "$PROMOTE=$(in_ns node1 sysctl -n "$PROMOTE")"
in_ns node1 sysctl -q -w "$PROMOTE=1"
SERVICE=$(service_pid node1)
start_datagrams pod1 pod3
begin_transfer pod1 pod3 "${FAMILIES[0]}" $((1 << 40)) $((4 << 20))
a_while pod1 In 20
move "$OLD" "$NEW"
the_old_address_is_refused
address delete "$OLD"
move "$NEW" "$OLD"
address delete "$NEW"
stop_datagrams
kill "${SENDING[pod3]}"
end_transfer pod1 pod3
for STEP in 0 3; do
    measured_at_most "datagrams lost in a move" "$RATE" "$(lost sent $((STEP + 1)))"
    equal "datagrams lost behind it" 0 "$(lost sent $((STEP + 2)))"
done
equal "the service of node1, never restarted" "$SERVICE" "$(service_pid node1)"
