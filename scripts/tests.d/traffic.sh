#!/usr/bin/env bash
# Pods on two nodes talk: ping, UDP and TCP of every payload size, a large transfer, traceroute.
#
#   pod1 ── node1 tartan ══ underlay ══ tartan, or the kernel's VXLAN, node2 ── pod2
#
# traffic.sh BACKEND PEER UNDERLAY [INSIDE OUTSIDE], where PEER is tartan, kernel-vxlan or control (no Tartan at
# all), and INSIDE and OUTSIDE are v4, v6 or dual: the families of pods and of the underlay.
# Beside them workers=N, device=KIND, device-type=TYPE and kernel-path=MODE: an agent with one worker, with several, with
# the plain device, with a TAP, and with the kernel path.
# A great transfer in single packets fills the kernel's backlog of each core, which all namespaces share:
# alone udp tartan no-tunnel: single packets
# alone udp tartan wire: single packets
# alone vxlan tartan no-tunnel: single packets
# alone vxlan tartan wire: single packets
# alone vxlan kernel-vxlan no-tunnel: single packets
# alone vxlan kernel-vxlan wire: single packets
# alone vxlan control wire: single packets
# case: udp tartan offload workers=2
# case: vxlan tartan offload
# full: vxlan tartan offload v6 v4
# case: udp tartan offload v6 v6 device=plain
# full: vxlan tartan offload dual dual workers=2
# case: vxlan kernel-vxlan offload dual dual
# full: vxlan kernel-vxlan no-tunnel dual dual workers=2
# full: vxlan kernel-vxlan wire dual dual
# full: vxlan tartan offload kernel-path=auto
# full: vxlan tartan offload dual v4 kernel-path=stateless
# full: udp tartan offload workers=1
# full: udp tartan no-tunnel workers=1
# full: udp tartan wire workers=1
# full: vxlan tartan offload workers=1
# full: vxlan tartan no-tunnel workers=1
# full: vxlan tartan wire workers=1
# full: vxlan kernel-vxlan offload workers=1
# full: vxlan kernel-vxlan no-tunnel workers=1
# full: vxlan kernel-vxlan wire workers=1
# full: udp tartan no-tunnel workers=2
# full: udp tartan wire workers=2
# full: vxlan tartan offload workers=2
# full: vxlan tartan no-tunnel workers=2
# full: vxlan tartan wire workers=2
# full: vxlan kernel-vxlan offload workers=2
# full: vxlan kernel-vxlan no-tunnel workers=2
# full: vxlan kernel-vxlan wire workers=2
# full: udp tartan offload device=plain
# full: udp tartan no-tunnel device=plain
# full: udp tartan wire device=plain
# full: vxlan tartan offload device=plain
# full: vxlan tartan no-tunnel device=plain
# full: vxlan tartan wire device=plain
# full: vxlan kernel-vxlan offload device=plain
# full: vxlan kernel-vxlan no-tunnel device=plain
# full: vxlan kernel-vxlan wire device=plain
# full: vxlan control wire
# full: udp tartan offload dual v4
# full: udp tartan offload dual dual
# full: vxlan tartan offload v4 v6
# full: vxlan tartan offload v6 v6
# full: vxlan tartan offload dual v6
# full: vxlan tartan wire dual dual
# full: vxlan kernel-vxlan offload v6 v6
# full: vxlan control wire dual dual
# full: vxlan tartan offload dual dual workers=2 device-type=tap
# full: vxlan tartan wire workers=2 device-type=tap
# full: udp tartan offload workers=2 device-type=tap
# full: vxlan kernel-vxlan offload dual dual workers=2 device-type=tap
# full: vxlan kernel-vxlan no-tunnel device-type=tap
# full: vxlan tartan offload kernel-path=stateless
# full: vxlan tartan no-tunnel kernel-path=stateless
# full: vxlan tartan no-tunnel kernel-path=auto
# full: vxlan tartan wire kernel-path=stateless
# full: vxlan tartan wire kernel-path=auto
# full: vxlan kernel-vxlan offload kernel-path=stateless
# full: vxlan kernel-vxlan offload kernel-path=auto
# full: vxlan kernel-vxlan no-tunnel kernel-path=stateless
# full: vxlan kernel-vxlan no-tunnel kernel-path=auto
# full: vxlan kernel-vxlan wire kernel-path=stateless
# full: vxlan kernel-vxlan wire kernel-path=auto
# full: vxlan tartan offload kernel-path=stateless device-type=tap
# full: vxlan tartan wire kernel-path=auto device-type=tap
# full: vxlan tartan wire dual v4 kernel-path=auto workers=2
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
PEER=$2
UNDERLAY=$3
INSIDE=${4:-v4}
OUTSIDE=${5:-v4}
LARGEST=4000
# Bytes of the large transfer.
BULK=$((1 << 30))

options() {
    case $PEER in
    tartan) ;;
    kernel-vxlan) echo --peer kernel-vxlan ;;
    control) echo --control ;;
    esac
}

ping_both() {
    equal "ping $1 to $2" "20 received" "$(in_ns "$1" python3 "$TOOLS/pings.py" "$2" 20 0.02 2)"
}

sizes() {
    say "every size from $1 to $2"
    in_ns "$1" python3 "$TOOLS/sizes.py" ask "$2" 0 "$LARGEST" || fail "sizes from $1 to $2"
}

bulk() {
    local from=$1 to=$2 address=$3 size=$4 receiver sent seconds=$SECONDS
    start_in "$to" python3 "$TOOLS/bulk.py" receive "$address" 5003 >"$SCRATCH/received"
    receiver=$PID
    sent=$(in_ns "$from" python3 "$TOOLS/bulk.py" send "$address" 5003 "$size") || fail "sending $size bytes from $from to $to"
    wait "$receiver" || fail "receiving $size bytes at $to"
    equal "bytes sent from $from to $to" "$size" "${sent%% *}"
    equal "bytes and sha256 at $to ($((SECONDS - seconds)) s)" "$sent" "$(cat "$SCRATCH/received")"
}

# The kernel's VXLAN device for IPv6 has a smaller MTU than a pod of two families, as with flannel. Its node answers the
# pod's first packet that is larger with packet-too-big, and that packet is lost.
learn_path_mtu() {
    [ "$PEER $INSIDE" = "kernel-vxlan dual" ] || return 0
    in_ns pod2 ping -q -c 3 -i 0.2 -s 1400 "$1" >"$SCRATCH/path-mtu" || fail "no answer to large pings from pod2 to $1"
}

# Every node on the way answers with an address of its own: that of the underlay or that of its tunnel.
trace() {
    local from=$1 to=$2 first=$3 second=$4 hops
    mapfile -t hops < <(in_ns "$from" traceroute -n -q 1 -w 2 -m 5 "$to" | awk 'NR > 1 { print $2 }')
    equal "traceroute from $from to $to" "node$first node$second $to" \
        "$(node_of "${hops[0]:-}") $(node_of "${hops[1]:-}") ${hops[2]:-}"
}

node_of() {
    case $1 in
    192.0.2.*) echo "node${1##*.}" ;;
    2001:db8:192::*) echo "node${1##*:}" ;;
    10.244.*.0)
        set -- "${1%.0}"
        echo "node${1##*.}"
        ;;
    fd00:10:244:*::)
        set -- "${1%::}"
        echo "node${1##*:}"
        ;;
    *) echo "no node ($1)" ;;
    esac
}

# Everything between the pods' addresses of one family.
prove() {
    local pod1 pod2
    pod1=$(address_of pod1 "$1")
    pod2=$(address_of pod2 "$1")
    start_in pod1 python3 "$TOOLS/sizes.py" serve "$pod1"
    start_in pod2 python3 "$TOOLS/sizes.py" serve "$pod2"
    ping_both pod1 "$pod2"
    ping_both pod2 "$pod1"
    learn_path_mtu "$pod1"
    sizes pod1 "$pod2"
    sizes pod2 "$pod1"
    bulk pod1 pod2 "$pod2" "$BULK"
    bulk pod2 pod1 "$pod1" "$BULK"
    trace pod1 "$pod2" 1 2
    trace pod2 "$pod1" 2 1
}

say "traffic: backend $BACKEND, peer $PEER, underlay $UNDERLAY, inside $INSIDE, outside $OUTSIDE"
mapfile -t OPTIONS < <(options | tr ' ' '\n')
lab_up --backend "$BACKEND" --underlay "$UNDERLAY" --inside "$INSIDE" --outside "$OUTSIDE" "${OPTIONS[@]}"
if [ "$PEER" != control ]; then no_findings; fi
for FAMILY in $(families "$INSIDE"); do prove "$FAMILY"; done
case $PEER in
tartan) law_one node1 && law_one node2 ;;
kernel-vxlan) law_one node1 ;;
esac
