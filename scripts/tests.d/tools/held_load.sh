# shellcheck shell=bash
# Load that goes on while an agent is stopped, killed or replaced (steady.py): TCP connections from one pod to another,
# LOAD_FROM and LOAD_TO, from node1 to a ClusterIP and from mallory to a NodePort of node1, which both lead to LOAD_TO;
# datagrams with numbers, each of them answered; and forged ones. Sourced after law.sh or test_case.sh. FAMILIES are
# those of the pods.

LOAD_FROM=pod1 LOAD_TO=pod3
# Where pods answer.
PORT=9000 NODE_PORT=30080
# Datagrams a second.
RATE=500
HOLDERS=()

# hold WHAT NAME ADDRESS PORT: a connection that goes on in the background.
hold() {
    hold_from "$1" "$3" "$4" ip netns exec "$PREFIX-$2"
}

# hold_from WHAT ADDRESS PORT CMD...: the same where CMD, which becomes the program, runs it.
hold_from() {
    local said=$SCRATCH/held${#HOLDERS[@]}
    "${@:4}" python3 "$TOOLS/steady.py" hold "$2" "$3" >"$said" 2>&1 &
    STARTED+=("$!")
    HOLDERS+=("$!|$1")
    until_true 10 "$1 connects" grep -q connected "$said" || cat "$said"
}

# Of the underlay, of no host, for each family.
declare -A CLUSTER_IP=([4]=192.0.2.200 [6]=2001:db8:192::200)

# What kube-proxy would write for one Service.
service_rules() {
    local family to rules=''
    for family in "${FAMILIES[@]}"; do
        to="dnat ip${family/4/} to $(socket_address "$(address_of "$LOAD_TO" "$family")" "$PORT")"
        rules+="ip${family/4/} daddr ${CLUSTER_IP[$family]} tcp dport 80 $to; tcp dport $NODE_PORT $to; "
    done
    in_ns node1 nft "table inet held {
        chain before { type nat hook prerouting priority -100; $rules }
        chain output { type nat hook output priority -100; $rules }
        chain after { type nat hook postrouting priority srcnat; ct status dnat masquerade; }
    }"
    [ -z "${FACTS:-}" ] || undo in_ns node1 nft delete table inet held
}

start_load() {
    local family
    service_rules
    serve "$LOAD_TO"
    for family in "${FAMILIES[@]}"; do
        hold "IPv$family, $LOAD_FROM to $LOAD_TO" "$LOAD_FROM" "$(address_of "$LOAD_TO" "$family")" "$PORT"
        # The node and the host outside have addresses of the underlay's families alone.
        [ "$(underlay_of node1 "$family")" != - ] || continue
        hold "IPv$family, node1 to the ClusterIP of $LOAD_TO" node1 "${CLUSTER_IP[$family]}" 80
        hold "IPv$family, outside to the NodePort of $LOAD_TO" mallory "$(underlay_of node1 "$family")" "$NODE_PORT"
    done
    RESETS=$(resets "$LOAD_FROM" "$LOAD_TO" node1 mallory)
}

# resets NAME...: how many connections each namespace has reset, or had reset.
resets() {
    local name
    for name; do
        in_ns "$name" nstat -asz TcpEstabResets TcpOutRsts TcpExtTCPAbortOnData |
            awk -v name="$name" 'NR > 1 { sum += $2 } END { print name, sum + 0 }'
    done
}

# Every connection is answered after what was done, $1.
all_go_on() {
    local number before=()
    for number in "${!HOLDERS[@]}"; do before+=("$(wc -l <"$SCRATCH/held$number")"); done
    for number in "${!HOLDERS[@]}"; do
        until_true 30 "${HOLDERS[number]#*|} goes on, $1" goes_on "$number" "${before[number]}" ||
            tail -n 1 "$SCRATCH/held$number"
    done
}

# The first line after it may be of answers before it.
goes_on() {
    [ "$(wc -l <"$SCRATCH/held$1")" -gt $(($2 + 1)) ]
}

# Every connection goes on, none was reset, and each is ended here.
load_survived() {
    local number what code
    if [ -n "${RESETS:-}" ]; then
        same "connections that were reset" "$RESETS" "$(resets "$LOAD_FROM" "$LOAD_TO" node1 mallory)"
    fi
    for number in "${!HOLDERS[@]}"; do
        what=${HOLDERS[number]#*|}
        code=0
        kill -TERM "${HOLDERS[number]%%|*}" 2>/dev/null || true
        wait "${HOLDERS[number]%%|*}" || code=$?
        equal "$what, $(tail -n 1 "$SCRATCH/held$number"): exit code" 0 "$code"
    done
    HOLDERS=()
}

# serve POD: it answers at PORT, by TCP and each datagram.
serve() {
    start_in "$1" python3 "$TOOLS/steady.py" serve "$PORT"
    until_true 10 "$1 serves" is_bound "$1" tcp "$PORT"
}

# talk POD POD|ADDRESS [NAME PORT PORT [OPTION...]]: RATE steady datagrams a second from one port to the other, and the
# report in the file `sent`, or NAME; the sender's process is in SENDER.
talk() {
    local to=$2
    if [[ $to == pod* ]]; then to=$(address_of "$to"); fi
    start_in "$1" python3 "$TOOLS/steady.py" send "${4:-9001}" "$to" "${5:-$PORT}" "$RATE" "${@:6}" \
        >"$SCRATCH/${3:-sent}"
    SENDER=$PID
    until_true 10 "$1 sends datagrams" is_bound "$1" udp "${4:-9001}"
}

# mark: where the next part of what the sender sends begins. The first is 0.
mark() {
    kill -USR1 "$SENDER"
}

# lost FILE [PART]: how many datagrams had no answer, of all or of one part; answered FILE PART.
lost() {
    awk -v part="${2:-}" '$1 == "lost" {
        for (field = 2; field <= NF; field++) if (part == "" || field == part + 2) sum += $field
        print sum + 0
    }' "$SCRATCH/$1"
}

answered() {
    awk -v field=$(($2 + 2)) '$1 == "answered" { print $field }' "$SCRATCH/$1"
}

# start_datagrams FROM TO: steady ones from one pod to another.
start_datagrams() {
    is_bound "$2" udp "$PORT" || serve "$2"
    talk "$1" "$2"
}

# stop_datagrams: how many of them were not answered, into LOST.
stop_datagrams() {
    stop "$SENDER"
    LOST=$(lost sent)
    say "$LOST datagrams were not answered; $(paste -sd ' ' "$SCRATCH/sent" | cut -c -300)"
}

# start_forging POD: datagrams of both formats for a pod of node1, which counts them, by their inner source none that it
# may get: from mallory and from a peer, of no node's subnet, which would be a problem of the status for a while.
start_forging() {
    local host inner=${FAMILIES[0]} source=10.244.77.2
    if [ "$inner" = 6 ]; then source=fd00:10:244:77::2; fi
    sink "$1" 7000
    for host in mallory node2; do
        jq -n --arg to "$(underlay_of node1 "$(carrier "$inner" "$OUTSIDE")")" --arg source "$source" \
            --arg destination "$(address_of "$1")" --arg source_mac "$(vtep_mac_of node2 "$inner")" \
            --arg destination_mac "$(vtep_mac_of node1 "$inner")" \
            '$ARGS.named + {formats: ["udp", "vxlan"], port: 7000, rate: 50}' >"$SCRATCH/order-$host"
        # Not start_in, whose programs read nothing.
        ip netns exec "$PREFIX-$host" python3 "$TOOLS/forge.py" <"$SCRATCH/order-$host" >"$SCRATCH/forged-$host" &
        STARTED+=("$!")
        FORGERS+=("$!")
    done
}

# end_forging POD: none reached it. How many were sent is in FORGED.
end_forging() {
    local forger
    for forger in "${FORGERS[@]}"; do stop "$forger"; done
    # shellcheck disable=SC2034 # The caller uses it.
    FORGED=$(jq -s add "$SCRATCH"/forged-*)
    equal "forged datagrams that reached $1" 0 "$(sunk "$1" .count)"
}
