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
# alone: it measures how long a revocation takes
# case: install kernel-path=auto
# case: switch 50 kernel-path=auto
# case: revoke kernel-path=auto
# case: kill 5 kernel-path=auto
# full: switch 1000 kernel-path=auto
# full: switch 200 kernel-path=auto device-type=tap
# full: kill 200 kernel-path=auto
# full: install kernel-path=auto workers=2
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"

WHAT=$1
TIMES=${2:-1}
# Datagrams a second.
RATE=1000
# Milliseconds from the end of the command that changes something.
LATEST=10

# flows NODE FIELD: a count of the flow thread.
flows() {
    agent_json "$1" status | jq ".kernel_path.flows.$2 // 0"
}

# refused NODE REASON
refused() {
    agent_json "$1" status | jq --arg reason "$2" '[.kernel_path.flows.refused[] | select(.reason == $reason).count] | add // 0'
}

# revoked NODE CAUSE
revoked() {
    agent_json "$1" status | jq --arg cause "$2" '[.kernel_path.flows.revoked[] | select(.cause == $cause).count] | add // 0'
}

more_than() {
    [ "$("${@:2}")" -gt "$1" ]
}

# Nanoseconds are beyond the shell's arithmetic of a test: seconds with six places.
now() {
    date +%s.%6N
}

# nft NODE LINE...
nft_in() {
    ip netns exec "$PREFIX-$1" nft "${@:2}"
}

# watch_stack NODE: counts what the host's stack forwards between pods, apart from everything else.
watch_stack() {
    nft_in "$1" "add table ip watch; add chain ip watch forward { type filter hook forward priority -300; }; add rule ip watch forward ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 counter"
}

# watched NODE: packets so far, super-packets as one.
watched() {
    ip netns exec "$PREFIX-$1" nft -j list chain ip watch forward | jq '[.. | .counter? | select(.).packets] | add'
}

# serve POD: the receiver of steady datagrams; its process id is in SERVER.
serve() {
    start_in "$1" python3 "$TOOLS/steady.py" serve "$(address_of "$1" 4)" 9000 >"$SCRATCH/arrivals"
    SERVER=$PID
    until_true 5 "$1 serves" serves "$1"
}

serves() {
    ip netns exec "$PREFIX-$1" ss -Hlun "sport = 9000" | grep -q .
}

# talk POD POD: steady datagrams between them; the sender's process id is in SENDER.
talk() {
    start_in "$1" python3 "$TOOLS/steady.py" send "$(address_of "$1" 4)" 9001 "$(address_of "$2" 4)" 9000 "$RATE" >"$SCRATCH/sent"
    SENDER=$PID
}

# await_flows NODE BEFORE: both directions of one more flow are installed soon. For connection tracking UDP is a stream
# after 2 s.
await_flows() {
    until_true 10 "two more flows are installed on $1" more_than $(($2 + 1)) flows "$1" installed
}

# arrivals FROM TO: how many datagrams came in that time.
arrivals() {
    awk -v from="$1" -v to="$2" '$1 > from && $1 < to { count++ } END { print count + 0 }' "$SCRATCH/arrivals"
}

# latest BEFORE AFTER: of the datagrams that came before AFTER, how many milliseconds behind BEFORE the last one came.
latest() {
    awk -v before="$1" -v after="$2" '$1 < after { last = $1 } END { late = (last - before) * 1000; if (late < 0) late = 0; printf "%d\n", late + 0.999 }' "$SCRATCH/arrivals"
}

# plus TIME SECONDS
plus() {
    awk -v time="$1" -v more="$2" 'BEGIN { printf "%.6f\n", time + more }'
}

install() {
    local before1 before2 stack1 stack2 sent answered
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
    sleep 3
    at_most "packets of 6,000 in 3 s that node1's stack saw" 300 $(($(watched node1) - stack1))
    at_most "packets of 6,000 in 3 s that node2's stack saw" 300 $(($(watched node2) - stack2))
    stop "$SENDER"
    stop "$SERVER"
    read -r sent _ answered _ <"$SCRATCH/sent"
    equal "answers" "$sent" "$answered"
    nft_in node1 delete table ip watch
    nft_in node2 delete table ip watch
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
    until_true 1 "flows of the Service's connection at the server's node" more_than "$before2" flows node2 installed
    until_true 1 "translated flows are refused" more_than 0 refused_either
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
        until_true 5 "turn $turn: back on the short path at node1" more_than "$least1" flows node1 installed || break
        until_true 5 "turn $turn: back on the short path at node2" more_than "$least2" flows node2 installed || break
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
CUTS=()
cut_by() {
    local cut
    "${@:2}"
    cut=$(now)
    sleep 2
    CUTS+=("$1|$cut|$(now)")
}

revoke() {
    local before1 before2 ended cut what until receiver
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

    ended=$(flows node1 ended)
    ip netns exec "$PREFIX-node1" conntrack -D -p udp --dport 9000 >"$SCRATCH/conntrack" 2>&1 || fail "conntrack -D"
    until_true 2 "flows of a forgotten connection are removed" more_than "$ended" flows node1 ended

    # The pod that has the address next is reached by its own interface.
    before2=$(flows node2 pods_revoked)
    cut_by "the pod is deleted" detach pod3 node2
    until_true 2 "flows of a deleted pod are revoked" more_than "$before2" flows node2 pods_revoked
    stop "$receiver"
    for cut in "${CUTS[@]}"; do
        IFS='|' read -r what cut until <<<"$cut"
        at_most "$what: milliseconds to the last datagram" "$LATEST" "$(latest "$cut" "$until")"
    done
    again
    stop "$SENDER"
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
    ip netns exec "$PREFIX-pod9" ip -4 -br address show dev eth0 | grep -qwF "$address" || die "pod9 has not $address"
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

say "flows: $WHAT $TIMES"
lab_up --pods 2
case $WHAT in
install)
    install
    service
    ;;
switch) switch ;;
revoke) revoke ;;
kill) kill_services ;;
*) die "not known: $WHAT" ;;
esac
for NODE in node1 node2; do
    [ "$WHAT" = revoke ] || law_one "$NODE"
    say "$NODE refused: $(agent_json "$NODE" status | jq -c '[.kernel_path.flows.refused[] | select(.count > 0) | "\(.reason) \(.count)"]')"
    say "$NODE revoked all: $(agent_json "$NODE" status | jq -c '[.kernel_path.flows.revoked[] | select(.count > 0) | "\(.cause) \(.count)"]')"
done
