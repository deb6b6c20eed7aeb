#!/usr/bin/env bash
# Flows that leave the host's stack out: which are installed, that they change paths without harm, and that each change of
# the host takes them back within 10 ms.
#
#   pod1, pod2 ── node1 ══ underlay ══ node2 ── pod3, pod4
#
# kernel_path_flows.sh WHAT [TIMES]
#   install   a flow is installed and passes the host's stack by; a Service's is not, where it is translated
#   switch    a TCP transfer under kube-proxy's rules changes its path TIMES times: no reset, every byte intact
#   revoke    a rule, a forgotten connection, a deleted pod, a pod with an address of before, a removed peer
#   kill      the service is killed TIMES times under load: no datagram is lost
#   kill-all  keeper and service are killed TIMES times, in turn on two nodes: flows go on meanwhile, nothing forged arrives
#   dead      keeper and service of a node are killed and stay dead for TIMES seconds: no datagram of an installed flow is lost
#   reuse     a peer goes, its underlay address becomes another node's, its pods' addresses become other pods'
# alone: it measures how long a revocation takes
# case: install kernel-path=auto
# full: switch 50 kernel-path=auto
# case: revoke kernel-path=auto
# full: kill 5 kernel-path=auto
# case: reuse kernel-path=auto
# full: switch 1000 kernel-path=auto
# full: switch 200 kernel-path=auto device-type=tap
# full: kill 200 kernel-path=auto
# case: kill-all 3 kernel-path=auto
# full: dead 27 kernel-path=auto
# full: kill-all 200 kernel-path=auto
# full: kill-all 20 kernel-path=auto device-type=tap
# full: dead 27 kernel-path=auto device-type=tap
# full: install kernel-path=auto workers=2
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

WHAT=$1
TIMES=${2:-1}
# Datagrams a second.
RATE=1000
# Milliseconds from the end of the command that changes something.
LATEST=10
# Milliseconds in which a service that starts has the flows of the one before it judged anew.
INHERITED=3000
# Datagrams a second from each forger, to this port; bytes a second of a transfer.
FORGED_RATE=50
SINK_PORT=7000
BULK_RATE=20000000
# Seconds in which no process serves a node.
DEAD=0.7

install() {
    local before1 before2 stack1 stack2 sent answered carried way
    before1=$(flows node1 installed)
    before2=$(flows node2 installed)
    watch_stack node1
    watch_stack node2
    serve pod3
    talk pod1 pod3
    await_flows node1 "$before1"
    await_flows node2 "$before2"
    stack1=$(watched node1)
    stack2=$(watched node2)
    for way in sent received; do carried+=" $(in_kernel node1 pod1 "$way") $(in_kernel node2 pod3 "$way")"; done
    sleep 3
    for way in sent received; do
        read -r before1 before2 carried <<<"$carried"
        [ "$(in_kernel node1 pod1 "$way")" -ge $((before1 + 2700)) ] || fail "of 3,000 packets that pod1 $way $(($(in_kernel node1 pod1 "$way") - before1)) are counted as the programs'"
        [ "$(in_kernel node2 pod3 "$way")" -ge $((before2 + 2700)) ] || fail "of 3,000 packets that pod3 $way $(($(in_kernel node2 pod3 "$way") - before2)) are counted as the programs'"
    done
    at_most "packets of 6,000 in 3 s that node1's stack saw" 300 $(($(watched node1) - stack1))
    at_most "packets of 6,000 in 3 s that node2's stack saw" 300 $(($(watched node2) - stack2))
    stop "$SENDER"
    stop "$SERVER"
    read -r sent _ answered _ <"$SCRATCH/sent"
    equal "answers" "$sent" "$answered"
    nft_in node1 delete table ip watch
    nft_in node2 delete table ip watch
}

# in_kernel NODE POD sent|received: packets of the pod that the programs carried.
in_kernel() {
    agent_json "$1" pods | jq --arg address "$(address_of "$2" 4)" --arg way "$3" \
        '[.pods[] | select(any(.addresses[]; startswith($address + "/"))).in_kernel[$way + "_packets"]] | add // 0'
}

# A Service's connection is translated at the client's node: there it is never installed, at the server's it is.
service() {
    local address port before1 before2 name key value
    lab services
    while read -r name key value; do
        case "$name $key" in
        "lab/pod3 address") address=$value ;;
        "lab/pod3 port") port=$value ;;
        esac
    done < <(jq -r '.[] | .name as $name | to_entries[] | "\($name) \(.key) \(.value)"' "$LAB_STATE/services.4")
    sleep 1
    before1=$(flows node1 installed)
    before2=$(flows node2 installed)
    start_in pod3 python3 "$TOOLS/stream.py" serve "$(address_of pod3 4)" 8080
    in_ns pod1 python3 "$TOOLS/stream.py" talk "$address" "$port" 8 || fail "the Service's connection"
    equal "flows installed at the client's node" "$before1" "$(flows node1 installed)"
    until_true 10 "flows of the Service's connection at the server's node" more_than "$before2" flows node2 installed
    until_true 10 "translated flows are refused" more_than 0 refused_either
}

# One direction is known to connection tracking by the Service's address alone.
refused_either() {
    echo $(($(refused node1 translated) + $(refused node1 no-connection)))
}

# resets POD: connections that were reset.
resets() {
    in_ns "$1" nstat -asz TcpEstabResets TcpOutRsts TcpExtTCPAbortOnData | awk 'NR > 1 { sum += $2 } END { print sum + 0 }'
}

switch() {
    local before before1 before2 turn receiver sender resets bytes=$((1 << 40)) least1 least2
    lab services
    before1=$(flows node1 installed)
    before2=$(flows node2 installed)
    start_in pod3 python3 "$TOOLS/bulk.py" receive "$(address_of pod3 4)" 5003 >"$SCRATCH/received"
    receiver=$PID
    start_in pod1 python3 "$TOOLS/bulk.py" send "$(address_of pod3 4)" 5003 "$bytes" 100000000 >"$SCRATCH/sent"
    sender=$PID
    await_flows node1 "$before1"
    await_flows node2 "$before2"
    # A sender that comes before its receiver listens is refused once.
    before=$(($(resets pod1) + $(resets pod3)))
    for ((turn = 0; turn < TIMES; turn++)); do
        least1=$(flows node1 installed)
        least2=$(flows node2 installed)
        nft_in node1 "add table ip turn; delete table ip turn"
        nft_in node2 "add table ip turn; delete table ip turn"
        until_true 20 "turn $turn: back on the short path at node1" more_than "$least1" flows node1 installed || break
        until_true 20 "turn $turn: back on the short path at node2" more_than "$least2" flows node2 installed || break
        kill -0 "$sender" 2>/dev/null || break
    done
    resets=$(($(resets pod1) + $(resets pod3) - before))
    stop "$sender"
    wait "$receiver" || fail "the receiver's end of the transfer"
    equal "bytes and sha256 across $turn changes to the long path and back" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
    equal "changes" "$TIMES" "$turn"
    equal "resets at pod1 and pod3" 0 "$resets"
    say "segments sent again by pod1, and queued out of order by pod3: $(in_ns pod1 nstat -asz TcpRetransSegs | awk 'NR > 1 { print $2 }'), $(in_ns pod3 nstat -asz TcpExtTCPOFOQueue | awk 'NR > 1 { print $2 }')"
}

# cut WHAT NODE CMD...: the command stops the datagrams from pod1 to pod3, for 2 s at least.
CUTS=() DEAD_CUTS=() SERVERS=() SENDERS=()
cut_by() {
    local cut
    "${@:2}"
    cut=$(now)
    sleep 2
    CUTS+=("$1|$cut|$(now)")
}

revoke() {
    local before1 before2 ended cut what limit died alive started until receiver legacy
    before1=$(flows node1 installed)
    before2=$(flows node2 installed)
    serve pod3
    receiver=$SERVER
    talk pod1 pod3
    await_flows node1 "$before1"
    await_flows node2 "$before2"

    for node in node1 node2; do
        before1=$(flows "$node" installed)
        nft_in "$node" "add table ip cut; add chain ip cut forward { type filter hook forward priority 0; }"
        await_flows "$node" "$before1"
        sleep 1
        cut_by "a rule on $node" nft_in "$node" add rule ip cut forward ip daddr "$(address_of pod3 4)" udp dport 9000 drop
        nft_in "$node" delete table ip cut
        sleep 1
    done

    # The kernel numbers changes of nft rules, not of those of iptables-legacy.
    before1=$(flows node1 installed)
    nft_in node1 "add table ip cut; add chain ip cut forward { type filter hook forward priority 0; }"
    await_flows node1 "$before1"
    cut_while_dead "a rule" "$LATEST" nft add rule ip cut forward ip daddr "$(address_of pod3 4)" udp dport 9000 drop
    before1=$(flows node1 installed)
    nft_in node1 delete table ip cut
    await_flows node1 "$before1"
    legacy=(-t mangle -A FORWARD -d "$(address_of pod3 4)" -p udp --dport 9000 -j DROP)
    cut_while_dead "a rule of iptables-legacy" $((INHERITED + LATEST)) iptables-legacy "${legacy[@]}"
    before1=$(flows node1 installed)
    ip netns exec "$PREFIX-node1" iptables-legacy "${legacy[@]/-A/-D}"
    until_true 10 "the flow that was cut is installed on node1 again" more_than "$before1" flows node1 installed
    sleep 1

    ended=$(flows node1 ended)
    ip netns exec "$PREFIX-node1" conntrack -D -p udp --dport 9000 >"$SCRATCH/conntrack" 2>&1 || fail "conntrack -D"
    until_true 10 "flows of a forgotten connection are removed" more_than "$ended" flows node1 ended

    # The pod that has the address next is reached by its own interface.
    before2=$(flows node2 pods_revoked)
    cut_by "the pod is deleted" detach pod3 node2
    until_true 10 "flows of a deleted pod are revoked" more_than "$before2" flows node2 pods_revoked
    # The receiver says when what came, once it ends.
    stop "$receiver"
    for cut in "${DEAD_CUTS[@]}"; do
        IFS='|' read -r what limit died alive started until <<<"$cut"
        more_than $((RATE / 2)) arrivals "$died" "$alive" ||
            fail "$what while node1 was dead: of a flow that goes on $(arrivals "$died" "$alive") datagrams came in a second"
        measured_at_most "$what set while node1 was dead: milliseconds from the start to the last datagram" "$limit" \
            "$(latest "$started" "$until")"
        # A start that ends every flow would pass the check above too.
        [ "$what" = "a rule" ] || more_than "$RATE" arrivals "$started" "$until" ||
            fail "$(arrivals "$started" "$until") datagrams came since the start: the flows before it ended with it"
    done
    for cut in "${CUTS[@]}"; do
        IFS='|' read -r what cut until <<<"$cut"
        measured_at_most "$what: milliseconds to the last datagram" "$LATEST" "$(latest "$cut" "$until")"
    done
    again
    stop "$SENDER"
}

# cut_while_dead WHAT LIMIT COMMAND...: COMMAND cuts the flow to pod3 in node1 while nothing of Tartan runs there. Noted in
# DEAD_CUTS: within LIMIT ms of the moment at which the kernel path is in use again the last datagram is to come.
cut_while_dead() {
    local keeper service died alive started
    sleep 1
    keeper=$(cat "$LAB_STATE/node1/pid")
    service=$(pgrep -P "$keeper")
    kill -KILL "$keeper" "$service"
    until_true 2 "keeper and service have ended" have_ended "$keeper" "$service"
    ip netns exec "$PREFIX-node1" "${@:3}"
    died=$(now)
    sleep 1
    alive=$(now)
    # The 3 s begin before the kernel path is in use.
    lab start node1 >/dev/null
    until_true 10 "the kernel path of node1 is in use again" kernel_path_in_use node1
    started=$(now)
    sleep 5
    DEAD_CUTS+=("$1|$2|$died|$alive|$started|$(now)")
}

detach() {
    cni_in "$2" DEL "$1" ''
}

# cni_in NODE VERB POD ARGUMENTS
cni_in() {
    printf '{ "cniVersion": "1.0.0", "name": "tartan", "type": "tartan-cni", "root": "%s" }\n' "$LAB_STATE/$1" |
        ip netns exec "$PREFIX-$1" env CNI_COMMAND="$2" CNI_CONTAINERID="$PREFIX-$3" CNI_NETNS="/var/run/netns/$PREFIX-$3" \
            CNI_IFNAME=eth0 CNI_PATH="$(dirname "$LOAD")" CNI_ARGS="IgnoreUnknown=1;$4" "$(dirname "$LOAD")/tartan-cni" >"$SCRATCH/cni" ||
        fail "CNI $2 of $3: $(cat "$SCRATCH/cni")"
}

# A pod gets the address of one that was deleted while another goes on sending to it.
again() {
    local address before2
    address=$(address_of pod3 4)
    make_namespace pod9
    ip -n "$PREFIX-pod9" link set lo up
    before2=$(flows node2 installed)
    cni_in node2 ADD pod9 "IP=$address"
    grep -qwF "$address" <<<"$(ip netns exec "$PREFIX-pod9" ip -4 -br address show dev eth0)" || die "pod9 has not $address"
    sed -i "s/^pod3 .*/pod9 node2 $address/" "$LAB_STATE/pods"
    serve pod9
    # Its own packets pass the stack first, then flows of its own are installed.
    await_flows node2 "$before2"
    sleep 1
    stop "$SERVER"
    more_than $((RATE / 2)) arrivals 0 9999999999 || fail "only $(arrivals 0 9999999999) datagrams came to the pod that has the address now"
}

kill_services() {
    local turn sent answered
    serve pod3
    talk pod1 pod3
    await_flows node1 0
    await_flows node2 0
    for ((turn = 0; turn < TIMES; turn++)); do
        kill_service "node$((turn % 2 + 1))"
    done
    stop "$SENDER"
    stop "$SERVER"
    read -r sent _ answered _ <"$SCRATCH/sent"
    equal "answers across $TIMES kills" "$sent" "$answered"
    for node in node1 node2; do law_one "$node"; done
}

# Whether packets between pods arrive and leave the stack of both nodes out, twice in a row: a count of installed flows does not
# say so, for what was installed may have been revoked since, nor does a stack that sees nothing, for nothing may come. In bytes,
# because datagrams that were gathered are one packet: the datagrams alone are 14,000 each way in this time, and the transfer 4 MB.
are_short() {
    is_short && is_short
}

is_short() {
    local before1 before2 answers datagrams bulk
    before1=$(watched node1 bytes)
    before2=$(watched node2 bytes)
    answers=$(received pod1)
    datagrams=$(received pod3)
    bulk=$(received pod4)
    sleep 0.2
    [ $(($(received pod1) - answers)) -ge 7000 ] && [ $(($(received pod3) - datagrams)) -ge 7000 ] && [ $(($(received pod4) - bulk)) -ge 1000000 ] &&
        [ $(($(watched node1 bytes) - before1)) -le 2000 ] && [ $(($(watched node2 bytes) - before2)) -le 2000 ]
}

# received POD: bytes so far.
received() {
    in_ns "$1" cat /sys/class/net/eth0/statistics/rx_bytes
}

# open_in NODE: how many descriptors of each kind keeper and service have, and which programs hang where.
open_in() {
    local keeper pid
    keeper=$(cat "$LAB_STATE/$1/pid")
    for pid in $keeper $(pgrep -P "$keeper"); do
        find "/proc/$pid/fd" -mindepth 1 -printf '%l\n' | sed -E 's/:\[[0-9]+\]//' | grep -i bpf | sort | uniq -c
    done
    programs_of "$1"
}

is_open() {
    [ "$(open_in "$1")" = "$2" ]
}

# forge HOST SOURCE: VXLAN for pod2 that must not be delivered, until it is told to end. The program's process id is in $PID.
forge() {
    jq -n --arg address "$(underlay_of node1 4)" --arg source "$2" --arg destination "$(address_of pod2 4)" --arg from "$(vtep_mac_of node2 4)" \
        --arg to "$(vtep_mac_of node1 4)" --argjson port "$SINK_PORT" --argjson rate "$FORGED_RATE" \
        '{to: $address, formats: ["vxlan"], $rate, $source, $destination, $port, source_mac: $from, destination_mac: $to}' >"$SCRATCH/order-$1"
    # Not start_in, whose programs read nothing.
    ip netns exec "$PREFIX-$1" python3 "$TOOLS/forge.py" <"$SCRATCH/order-$1" >"$SCRATCH/forged-$1" &
    PID=$!
    STARTED+=("$PID")
}

# carriers NODE: carrier changes of its underlay device and of its tunnel device.
carriers() {
    in_ns "$1" cat /sys/class/net/eth0/carrier_changes /sys/class/net/tartan0/carrier_changes | tr '\n' ' '
}

# Keeper and service are killed, and nothing of Tartan's runs for a while.
kill_all() {
    local turn node keeper service sink bulk receiver forgers=() resets sent answered from until least
    local -A opened carriers
    start_in pod2 "$LOAD" count "$SINK_PORT" >"$SCRATCH/sink"
    sink=$PID
    serve pod3
    talk pod1 pod3
    start_in pod4 python3 "$TOOLS/bulk.py" receive "$(address_of pod4 4)" 5003 >"$SCRATCH/received"
    receiver=$PID
    start_in pod1 python3 "$TOOLS/bulk.py" send "$(address_of pod4 4)" 5003 $((1 << 40)) "$BULK_RATE" >"$SCRATCH/bulk"
    bulk=$PID
    # A source of a pod of a peer would be a problem of tartan status, and no start waits for one.
    forge mallory 203.0.113.9
    forgers+=("$PID")
    forge node2 203.0.113.7
    forgers+=("$PID")
    watch_stack node1
    watch_stack node2
    # A rule that is new revokes what is installed.
    sleep 0.5
    until_true 30 "a datagram stream and a transfer leave the stack out" are_short
    for node in node1 node2; do
        opened[$node]=$(open_in "$node")
        carriers[$node]=$(carriers "$node")
    done
    resets=$(($(resets pod1) + $(resets pod4)))
    for ((turn = 0; turn < TIMES; turn++)); do
        node=node$((turn % 2 + 1))
        keeper=$(cat "$LAB_STATE/$node/pid")
        service=$(pgrep -P "$keeper")
        # Each third time the keeper alone: the service learns of it and ends, which must end no flow either.
        case $((turn % 3)) in
        2) kill -KILL "$keeper" ;;
        *) kill -KILL "$keeper" "$service" ;;
        esac
        until_true 10 "turn $turn: keeper and service have ended" have_ended "$keeper" "$service" || break
        from=$(now)
        sleep "$DEAD"
        until=$(now)
        echo "$from $until" >>"$SCRATCH/dead"
        lab start "$node" >/dev/null
        until_true 30 "turn $turn: the stack is left out again" are_short || break
        kill -0 "$bulk" 2>/dev/null || fail "turn $turn: the transfer has ended" || break
    done
    for pid in "${forgers[@]}"; do stop "$pid"; done
    kill -TERM "$bulk"
    wait "$bulk" || fail "the sender's end of the transfer"
    wait "$receiver" || fail "the receiver's end of the transfer"
    stop "$SENDER"
    stop "$SERVER"
    stop "$sink"
    equal "kills" "$TIMES" "$turn"
    read -r sent _ answered _ <"$SCRATCH/sent"
    say "datagrams across $TIMES kills: $sent sent, $answered answered"
    # From which number on how many did not come in their order, or not at all, and how long after the start of the next agent.
    awk 'NR == FNR { began[++kills] = $2; next }
        FNR > 1 && $2 > last + 1 {
            while (kill < kills && began[kill + 1] <= $1) kill++
            printf "%d+%d, %.3f s after start %d\n", last + 1, $2 - last - 1, $1 - began[kill], kill
        }
        $2 > last { last = $2 }' "$SCRATCH/dead" "$SCRATCH/arrivals"
    awk 'NR == FNR { began[++kills] = $2; next }
        FNR > 1 && shown++ < 50 {
            while (kill < kills && began[kill + 1] <= $1) kill++
            printf "%d, sent %.3f s after start %d: no answer\n", $2, $1 - began[kill], kill
        }' "$SCRATCH/dead" "$SCRATCH/sent"
    equal "answers across $TIMES kills" "$sent" "$answered"
    while read -r from until; do
        least=$(awk -v from="$from" -v until="$until" -v rate="$RATE" 'BEGIN { printf "%d", (until - from) * rate * 0.9 }')
        [ "$(arrivals "$from" "$until")" -ge "$least" ] || fail "while nothing ran, $(arrivals "$from" "$until") datagrams came, and $least are nine of ten"
    done <"$SCRATCH/dead"
    equal "bytes and sha256 of the transfer" "$(cat "$SCRATCH/bulk")" "$(cat "$SCRATCH/received")"
    equal "connections that were reset" "$resets" "$(($(resets pod1) + $(resets pod4)))"
    equal "forged datagrams that reached the pod" 0 "$(jq '[.[].count] | add // 0' "$SCRATCH/sink")"
    sent=$(cat "$SCRATCH"/forged-* | awk '{ sum += $1 } END { print sum + 0 }')
    [ "$sent" -gt $((TIMES * FORGED_RATE)) ] || fail "only $sent datagrams were forged"
    say "forged: $sent, delivered 0"
    nft_in node1 delete table ip watch
    nft_in node2 delete table ip watch
    for node in node1 node2; do
        # A refresh holds a descriptor more for a moment.
        until_true 5 "as many descriptors on $node as before" is_open "$node" "${opened[$node]}" || true
        same "programs, and descriptors of programs and tables, on $node" "${opened[$node]}" "$(open_in "$node")"
        say "$node: carrier changes before and after: ${carriers[$node]}and $(carriers "$node")"
    done
}

# An entry is renewed when it has 30 s left, so that each lasts for 30 s more at least. Several flows, begun one after another,
# meet that moment at different times.
dead() {
    local flow keeper service sent answered senders=()
    serve pod3
    for ((flow = 0; flow < 5; flow++)); do
        talk pod1 pod3 "sent$flow" $((9001 + flow)) 9000
        senders+=("$SENDER")
        # For connection tracking UDP is a stream after 2 s, and before that it forgets it after 30 s, and so does an entry.
        sleep 4
    done
    until_true 10 "both directions of each are installed on node1" more_than 9 flows node1 installed
    until_true 10 "and on node2" more_than 9 flows node2 installed
    keeper=$(cat "$LAB_STATE/node1/pid")
    service=$(pgrep -P "$keeper")
    kill -KILL "$keeper" "$service"
    sleep "$TIMES"
    for flow in "${senders[@]}"; do kill -TERM "$flow"; done
    for ((flow = 0; flow < 5; flow++)); do
        wait "${senders[flow]}" || fail "the sender of flow $flow"
        read -r sent _ answered _ <"$SCRATCH/sent$flow"
        equal "flow $flow: answers while node1 is dead for $TIMES s" "$sent" "$answered"
    done
    lab start node1 >/dev/null
    until_true 10 "the kernel path of node1 is in use again" kernel_path_in_use node1
    stop "$SERVER"
}

# list_of NODE PROGRAM: an awk program changes the entries of the node's list, as a whole, as an editor does.
list_of() {
    local list=$LAB_STATE/$1/nodes.toml
    awk -v RS= -v ORS='\n\n' "$2" "$list" >"$list.new"
    mv "$list.new" "$list"
}

# both_ways POD PORT: datagrams to the pod's port 9000 from pod1's PORT, and from it to pod1's PORT + 1, each answered.
both_ways() {
    local before
    before=$(flows node1 installed)
    serve "$1" "there-$1"
    SERVERS+=("$SERVER")
    serve pod1 "here-$1" $(($2 + 1))
    SERVERS+=("$SERVER")
    talk pod1 "$1" "sent-$1" "$2" 9000
    SENDERS+=("$SENDER")
    talk "$1" pod1 "back-$1" 9001 $(($2 + 1))
    SENDERS+=("$SENDER")
    until_true 10 "flows both ways with $1 are installed on node1" more_than $((before + 3)) flows node1 installed ||
        die "$(agent_json node1 status | jq -c '.kernel_path.flows | [.proposed, .installed, (.refused[] | select(.count > 0)), (.revoked[] | select(.count > 0))]')"
}

# node1's list of nodes changes three times, while datagrams flow both ways between pod1 and a pod of the peer.
#
#   gone     node2 is no peer any more
#   other    node3's underlay address is another node's, with another VTEP MAC and another subnet
#   moved    node4's subnet is node5's, where another pod has pod4's address
reuse() {
    local pod cut until address subnet pid way what
    # Of six streams at a time.
    RATE=250
    address=$(address_of pod4 4)
    subnet=${address%.*}.0/24
    # As node5 sees it, it had that subnet before.
    list_of node5 '/"node4"/ { sub(/10\.244\.4\.0/, "10.244.44.0") } /"node5"/ { sub(/subnets = \[/, "&\"10.244.4.0/24\", ") } { print }'
    make_namespace pod9
    ip -n "$PREFIX-pod9" link set lo up
    until_true 10 "node5 has the subnet $subnet" has_subnet node5 "$subnet"
    cni_in node5 ADD pod9 "IP=$address"
    echo "pod9 node5 $address" >>"$LAB_STATE/pods"
    serve pod9 there-pod9
    SERVERS+=("$SERVER")

    both_ways pod2 9101
    both_ways pod3 9201
    both_ways pod4 9301
    changed pod2 "node2 is no peer any more" '!/"node2"/'
    changed pod3 "node3's address is another node's" \
        '/"node3"/ { sub(/"node3"/, "\"other\""); sub(/10\.244\.3\.0/, "10.244.33.0"); sub(/$/, "\nvtep-mac = \"02:00:00:00:00:33\"") } { print }'
    changed pod4 "pod4's address is another pod's, on node5" \
        '/"node4"/ { sub(/10\.244\.4\.0/, "10.244.44.0") } /"node5"/ { sub(/subnets = \[/, "&\"10.244.4.0/24\", ") } { print }'
    for pid in "${SENDERS[@]}"; do stop "$pid"; done
    for pid in "${SERVERS[@]}"; do stop "$pid"; done
    for cut in "${CUTS[@]}"; do
        IFS='|' read -r pod what cut until <<<"$cut"
        for way in there here; do
            [ "$(arrivals 0 "$cut" "$way-$pod")" -gt "$RATE" ] || fail "$what: only $(arrivals 0 "$cut" "$way-$pod") datagrams before ($way)"
            measured_at_most "$what: milliseconds to the last datagram ($way)" "$LATEST" "$(latest "$cut" "$until" "$way-$pod")"
        done
    done
    equal "datagrams to the pod on node5 before it had the address" 0 "$(arrivals 0 "$cut" there-pod9)"
    more_than $((RATE / 2)) arrivals "$cut" "$until" there-pod9 || fail "only $(arrivals "$cut" "$until" there-pod9) datagrams came to the pod that has the address now"
}

has_subnet() {
    agent_json "$1" status | jq -e --arg subnet "$2" '.subnets | index($subnet)'
}

tables() {
    agent_json "$1" status | jq .kernel_path.tables
}

# changed POD WHAT PROGRAM: node1's list changes, and from the moment on that it publishes its tables no datagram passes between
# pod1 and the pod. Before that the list is at rest for 200 ms.
changed() {
    local cut version before
    version=$(tables node1)
    before=$(publications | wc -l)
    list_of node1 "$3"
    until_true 5 "$2: node1's programs follow" more_than "$version" tables node1
    sleep 2
    # The first after the change: a later one would hide what passed in between.
    cut=$(publications | sed -n "$((before + 1))p")
    [ -n "$cut" ] || fail "$2: node1's log does not say when it published the tables"
    CUTS+=("$1|$2|$(date -d "$cut" +%s.%6N)|$(now)")
}

# publications: when node1 published tables, a line each.
publications() {
    sed -nE 's/^([^ ]+) .*tables published .*/\1/p' "$LAB_STATE/node1/log"
}

say "flows: $WHAT $TIMES"
case $WHAT in
reuse) lab_up --nodes 5 ;;
*) lab_up --pods 2 ;;
esac
case $WHAT in
install)
    install
    service
    ;;
switch) switch ;;
revoke) revoke ;;
kill) kill_services ;;
kill-all) kill_all ;;
dead) dead ;;
reuse) reuse ;;
*) die "not known: $WHAT" ;;
esac
for NODE in node1 node2; do
    case $WHAT in revoke | reuse | dead) ;; *) law_one "$NODE" ;; esac
    say "$NODE refused: $(agent_json "$NODE" status | jq -c '[.kernel_path.flows.refused[] | select(.count > 0) | "\(.reason) \(.count)"]')"
    say "$NODE revoked all: $(agent_json "$NODE" status | jq -c '[.kernel_path.flows.revoked[] | select(.count > 0) | "\(.cause) \(.count)"]')"
done
