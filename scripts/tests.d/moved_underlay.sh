#!/usr/bin/env bash
# The underlay changes under a running node: its address moves, its interface goes and comes back, its MTU
# changes. The agent follows by itself, without a restart, and one TCP connection lives through all of it.
# The agent starts without its list of nodes and forwards at once by the last good state. Then the node gets
# another subnet: its old pods are stranded, new ones are served.
#
#   pod1 ── node1 192.0.2.1, then .101, then .102 ══ underlay ══ node2 ── pod2
#                                                        ╚═ node3 ── pod3: its list of nodes stays the old one
#
# alone: it measures pauses
# full: vxlan dual
# full: vxlan dual workers=2
# full: udp v4
# full: vxlan v4
# full: vxlan v6
# full: vxlan v4 kernel-path=stateless
# full: vxlan v4 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
INSIDE=$2
# Pods talk in this family; the other one of a dual lab moves along.
FAMILY=$(families "$INSIDE" | cut -d' ' -f1)
# Milliseconds.
LARGEST_GAP=1000
# Bytes per second of the transfer that goes on all the time.
RATE=$((4 << 20))
NODE1=$PREFIX-node1
# Beside the kernel path's VXLAN device the agent receives at a port of its own.
PORT=8472
[ "$KERNEL_PATH" = off ] || PORT=18472

# underlay FAMILY N: the address that node1 has after N moves.
underlay() {
    local host=1
    [ "$2" = 0 ] || host=$((100 + $2))
    case $1 in
    4) echo "192.0.2.$host" ;;
    6) echo "2001:db8:192::$host" ;;
    esac
}

# each N: of every family, one a line, sorted.
each() {
    local family
    for family in $(families "$INSIDE"); do underlay "$family" "$1"; done | sort
}

# addresses add|delete N
addresses() {
    local address
    for address in $(each "$2"); do
        case $address in
        *:*) ip -n "$NODE1" address "$1" "$address/64" dev eth0 nodad ;;
        *) ip -n "$NODE1" address "$1" "$address/24" dev eth0 ;;
        esac
    done
}

# tell NODE OLD NEW...: in its list of nodes, one text for another. Replaced as a whole, as an editor does.
tell() {
    local file=$LAB_STATE/$1/nodes.toml
    shift
    cp "$file" "$file.new"
    while [ $# -gt 0 ]; do
        sed -i "s|\"$1\"|\"$2\"|" "$file.new"
        shift 2
    done
    mv "$file.new" "$file"
}

# tell_move NODE FROM TO: node1 has moved, says the list of a node.
tell_move() {
    # shellcheck disable=SC2046
    tell "$1" $(paste -d' ' <(each "$2") <(each "$3"))
}

problem_reported() {
    agent_json node1 status | jq -e --arg text "$1" '.problems | any((.sentence + ": " + .remedy) | contains($text))'
}

all_well() {
    agent_json node1 status | jq -e '.problems == []'
}

# What the sockets of node1 are bound to, one address a line.
bound() {
    ip netns exec "$NODE1" ss -Hlun "sport = :$PORT" | awk '{ print $4 }' | sed "s/:$PORT\$//; s/[][]//g" | sort -u
}

bound_to() {
    [ "$(bound)" = "$(each "$1")" ]
}

# count NODE DIRECTION REASON
count() {
    agent_json "$1" drops | jq --arg direction "$2" --arg reason "$3" \
        '[.reasons[] | select(.direction == $direction and .reason == $reason) | .count] | add'
}

now() {
    date +%s.%N
}

# The longest pause in ms between answers to the ping since $1, the present one included.
longest_gap() {
    awk -F'[][ ]' -v last="$1" -v end="$(now)" '
        /bytes from/ && $2 >= last { if ($2 - last > longest) longest = $2 - last; last = $2 }
        END { if (end - last > longest) longest = end - last; printf "%d\n", longest * 1000 }' "$SCRATCH/ping"
}

# How many ms after the moment $1 the ping was answered again.
answered_after() {
    awk -F'[][ ]' -v moment="$1" '/bytes from/ && $2 > moment { printf "%d\n", ($2 - moment) * 1000; exit }' "$SCRATCH/ping"
}

answered_since() {
    [ -n "$(answered_after "$1")" ]
}

# back WHAT MOMENT: pods talk again soon after the moment.
back() {
    until_true 5 "pods talk again $1" answered_since "$2" || return 0
    measured_at_most "ms until pods talk again $1" "$LARGEST_GAP" "$(answered_after "$2")"
    kill -0 "$SENDER" 2>/dev/null || fail "the TCP connection did not survive: $1"
}

# silent POD ADDRESS: no answer comes.
silent() {
    in_ns "$1" ping -n -q -c 10 -i 0.02 -W 0.3 "$2" >"$SCRATCH/talk" && fail "$1 reaches $2"
    return 0
}

talks() {
    in_ns "$1" ping -n -q -c 5 -i 0.02 -W 1 "${@:2}" >"$SCRATCH/talk" || fail "$1 does not reach $2: $(tail -n 3 "$SCRATCH/talk")"
}

move_of_the_address() {
    local moment
    # Without this the kernel takes the second address of a subnet away with the first.
    ip netns exec "$NODE1" sysctl -q -w net.ipv4.conf.all.promote_secondaries=1
    addresses add 1
    until_true 2 "node1 sees its second address" all_well
    moment=$(now)
    tell_move node1 0 1
    tell_move node2 0 1
    until_true 3 "the sockets of node1 move" bound_to 1
    sleep 1.5
    measured_at_most "longest pause of the ping across the move, ms" "$LARGEST_GAP" "$(longest_gap "$moment")"
    same "addresses of the sockets of node1" "$(each 1)" "$(bound)"
    until_true 3 "node1 is well" all_well
}

# node3 believes in the old address, which the host still has.
the_old_address_is_refused() {
    local capture unknown
    unknown=$(count node3 inbound UnknownPeer)
    capture net node1 "$SCRATCH/old.pcap" udp and inbound and "(" src host "$(underlay "$FAMILY" 0)" ")"
    capture=$PID
    silent pod3 "$POD1"
    silent pod1 "$POD3"
    stop "$capture" INT
    equal "datagrams from the old address" 0 "$(tcpdump -nr "$SCRATCH/old.pcap" 2>/dev/null | wc -l)"
    equal "datagrams from the new address that node3 refuses" $((unknown + 10)) "$(count node3 inbound UnknownPeer)"
    equal "packets that node1 took from node3" 0 \
        "$(agent_json node1 peers | jq '[.peers[] | select(.name == "node3")][0].received_packets')"
    addresses delete 0
}

# The list tells an address that the host does not have yet.
an_address_to_come() {
    local moment
    moment=$(now)
    tell_move node1 1 2
    until_true 3 "the address to come is a problem" problem_reported "$(underlay "$FAMILY" 2)"
    same "addresses of the sockets meanwhile" "$(each 1)" "$(bound)"
    sleep 0.5
    measured_at_most "longest pause of the ping meanwhile, ms" "$LARGEST_GAP" "$(longest_gap "$moment")"
    addresses add 2
    until_true 3 "the sockets of node1 move to the address that came" bound_to 2
    moment=$(now)
    tell_move node2 1 2
    back "after the second move" "$moment"
    addresses delete 1
    until_true 3 "node1 is well" all_well
}

# The cable of node1, as scripts/lab lays it.
cable() {
    ip -n "$PREFIX-net" link add node1 mtu 1500 type veth peer name eth0 mtu 1500 netns "$NODE1"
    ip -n "$PREFIX-net" link set node1 master br0 up
    addresses add 2
    ip -n "$NODE1" link set eth0 up
}

# gone WHAT WORD CMD...: the command takes the underlay away. The status says so, and packets of pods are dropped by
# name.
gone() {
    local what=$1 word=$2 refused
    "${@:3}"
    until_true 3 "the status reports $what" problem_reported "$word" || tartan node1 status || true
    refused=$(count node1 outbound UnderlayRefused)
    sleep 0.5
    [ "$(count node1 outbound UnderlayRefused)" -gt "$refused" ] || fail "$what: nothing is dropped as UnderlayRefused"
    say "$what: $(agent_json node1 status | jq -c .problems)"
}

interface_gone_and_back() {
    local address moment word
    address=$(underlay "$FAMILY" 2)
    gone "a deleted interface" "$address" ip -n "$NODE1" link delete eth0
    cable
    moment=$(now)
    back "on a new interface" "$moment"
    until_true 3 "node1 is well" all_well
    # The kernel takes IPv6 addresses away with the link; who gave them gives them again.
    word=eth0
    [ "$INSIDE" = v4 ] || word=$(underlay 6 2)
    gone "an interface that is down" "$word" ip -n "$NODE1" link set eth0 down
    ip -n "$NODE1" link set eth0 up
    [ "$INSIDE" = v4 ] || ip -n "$NODE1" address replace "$(underlay 6 2)/64" dev eth0 nodad
    moment=$(now)
    back "on an interface that is up again" "$moment"
    gone "an address taken away" "$address" addresses delete 2
    addresses add 2
    moment=$(now)
    back "with the address back" "$moment"
    until_true 3 "node1 is well" all_well
}

mtu_of() {
    ip -n "$PREFIX-$1" -j link show "$2" | jq '.[0].mtu'
}

mtu_is() {
    [ "$(mtu_of node1 tartan0)" = "$1" ]
}

# mtu UNDERLAY: the device, flannel's file and new pods follow, and packets of the full size cross.
mtu() {
    local expected=$(($1 - OVERHEAD)) pod
    ip -n "$NODE1" link set eth0 mtu "$1"
    until_true 3 "MTU $expected of tartan0" mtu_is "$expected"
    until_true 3 "node1 is well" all_well
    equal "MTU in subnet.env" "$expected" "$(sed -n 's/^FLANNEL_MTU=//p' "$LAB_STATE/node1/run/flannel/subnet.env")"
    pod=$(lab attach node1 | cut -d' ' -f1)
    equal "MTU of a new pod" "$expected" "$(mtu_of "$pod" eth0)"
    talks "$pod" "$POD2" -M "do" -s $((expected - HEADERS))
    talks pod1 "$POD2" -s $((expected - HEADERS + 1))
}

# The agent, stopped, starts without its list of nodes. The list comes back once pods talk.
a_start_without_the_list() {
    local starting moment list=$LAB_STATE/node1/nodes.toml
    lab stop node1
    mv "$list" "$list.gone"
    touch "$SCRATCH/stopped"
    start_in pod1 ping -n -D -i 0.01 -W 1 "$POD2" >"$SCRATCH/ping"
    PINGER=$PID
    lab start node1 &
    starting=$!
    until_true 5 "the agent is started" test "$LAB_STATE/node1/pid" -nt "$SCRATCH/stopped"
    moment=$(stat -c %.9Y "$LAB_STATE/node1/pid")
    until_true 5 "pods talk by the last good state" answered_since "$moment"
    measured_at_most "ms from the start of the agent until pods talk, without a list" 1000 "$(answered_after "$moment")"
    until_true 3 "the missing list is a problem" problem_reported "leases from cache stay in force"
    mv "$list.gone" "$list"
    wait "$starting"
    stop "$PINGER" INT
    until_true 3 "node1 is well with its list" all_well
    SERVICE=$(service_pid node1)
}

# subnet_of FAMILY NUMBER, as scripts/lab plans them.
subnet_of() {
    case $1 in
    4) echo "10.244.$2.0/24" ;;
    6) printf 'fd00:10:244:%x::/64\n' "$2" ;;
    esac
}

# What the kernel of node1 holds of the overlay: the tunnel's addresses and the subnets it answers for.
held() {
    local family
    ip -n "$NODE1" -j address show dev tartan0 | jq -r '.[].addr_info[].local'
    for family in $(families "$INSIDE"); do
        ip -n "$NODE1" "-$family" route show type unreachable metric 4294967294 | awk '{ print $2 }'
    done
}

expected_of() {
    local family
    for family in $(families "$INSIDE"); do subnet_of "$family" "$1" | cut -d/ -f1; done
    for family in $(families "$INSIDE"); do subnet_of "$family" "$1"; done
}

another_subnet() {
    local family node changes=() spoofed others code=0 pod
    for family in $(families "$INSIDE"); do changes+=("$(subnet_of "$family" 1)" "$(subnet_of "$family" 17)"); done
    tell_move node3 0 2
    for node in node1 node2 node3; do tell "$node" "${changes[@]}"; done
    until_true 3 "the old pods are reported as stranded" problem_reported "stranded pods"
    same "the tunnel's addresses and subnets of node1" "$(expected_of 17)" "$(held)"
    grep -q "^FLANNEL.*SUBNET=$(subnet_of "$FAMILY" 17 | sed 's|0/|1/|; s|::/|::1/|')" "$LAB_STATE/node1/run/flannel/subnet.env" ||
        fail "subnet.env did not follow: $(cat "$LAB_STATE/node1/run/flannel/subnet.env")"
    equal "stranded addresses in JSON" true "$(agent_json node1 pods | jq --arg pod "$POD1" '.pods | any(.stranded | contains([$pod]))')"
    tartan node1 pods >"$SCRATCH/pods" || code=$?
    equal "exit code of pods" 1 "$code"
    grep -qF "$POD1 (stranded)" "$SCRATCH/pods" || fail "the table does not mark $POD1: $(cat "$SCRATCH/pods")"
    spoofed=$(count node1 outbound SpoofedSource)
    silent pod1 "$POD2"
    equal "packets of a stranded pod that are refused" $((spoofed + 10)) "$(count node1 outbound SpoofedSource)"
    others=$(count node1 inbound NotOurs)
    forge_to "$POD1" 10
    equal "packets to a stranded pod that are refused" $((others + 10)) "$(count node1 inbound NotOurs)"
    pod=$(lab attach node1 | cut -d' ' -f1)
    talks "$pod" "$POD2"
    talks pod2 "$(address_of "$pod")"
    talks pod3 "$(address_of "$pod")"
    lab detach node1
    until_true 3 "without its old pods node1 is well" all_well
}

# forge_to POD COUNT: pod2 speaks to it by way of node1, whatever the tables of node2 say.
forge_to() {
    jq -nc --arg to "$(underlay "$FAMILY" 2)" --arg source "$POD2" --arg destination "$1" --argjson count "$2" \
        --arg from "$(vtep_mac_of node2 "$FAMILY")" \
        --arg mac "$(agent_json node2 peers | jq -r '.peers[] | select(.name == "node1") | .vtep_mac')" \
        '{$to, formats: ["vxlan"], $count, $source, $destination, port: 7000, source_mac: $from, destination_mac: $mac}' |
        in_ns node2 python3 "$TOOLS/forge.py"
    sleep 0.3
}

say "a moved underlay: backend $BACKEND, $INSIDE inside and outside"
lab_up --nodes 3 --backend "$BACKEND" --inside "$INSIDE" --outside "$INSIDE"
POD1=$(address_of pod1) POD2=$(address_of pod2) POD3=$(address_of pod3)
OVERHEAD=$((1500 - $(mtu_of node1 tartan0)))
# Of an echo request: IP and ICMP.
HEADERS=$((FAMILY == 4 ? 28 : 48))
SERVICE=$(service_pid node1)
start_in pod2 python3 "$TOOLS/bulk.py" receive "$POD2" 5003 >"$SCRATCH/received"
RECEIVER=$PID
start_in pod1 python3 "$TOOLS/bulk.py" send "$POD2" 5003 $((1 << 40)) "$RATE" >"$SCRATCH/sent"
SENDER=$PID
start_in pod1 ping -n -D -i 0.01 -W 1 "$POD2" >"$SCRATCH/ping"
PINGER=$PID
until_true 5 "the ping is answered" answered_since 0
move_of_the_address
the_old_address_is_refused
an_address_to_come
interface_gone_and_back
mtu 1400
mtu 1500
stop "$PINGER" INT
stop "$SENDER"
wait "$RECEIVER" || fail "the TCP transfer did not survive at the receiver"
equal "bytes and sha256 across all of it" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
[ "$(cut -d' ' -f1 "$SCRATCH/received")" -gt "$RATE" ] || fail "the TCP transfer moved next to nothing"
for node in node1 node2 node3; do law_one "$node"; done
equal "the service of node1, never restarted" "$SERVICE" "$(service_pid node1)"
a_start_without_the_list
another_subnet
equal "the service of node1, never restarted" "$SERVICE" "$(service_pid node1)"
for node in node1 node2 node3; do law_one "$node"; done
