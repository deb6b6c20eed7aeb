# shellcheck shell=bash
# What the tests of registries share: changes of what a registry holds, by the hand of others, and how soon nodes follow.
# Sourced after test_case.sh; REGISTRY and INSIDE are those of the lab.

# Seconds within which a node follows a change.
FOLLOWED_WITHIN=2

# The lab; the processes of its first agents are in $BEFORE1 and $BEFORE2.
registry_lab() {
    local node
    lab_up --nodes 3 --registry "$REGISTRY" --inside "$INSIDE" --outside "$INSIDE" "$@"
    for node in node1 node2; do until_true 5 "all is well on $node" all_well "$node"; done
    no_findings
    BEFORE1=$(agent_pids node1)
    BEFORE2=$(agent_pids node2)
}

# No daemon was started anew.
same_daemons() {
    equal "keeper and service of node1" "$BEFORE1" "$(agent_pids node1)"
    equal "keeper and service of node2" "$BEFORE2" "$(agent_pids node2)"
}

# What the registry holds of the node with that IPv4 address.
record_of() {
    registry leases | jq -c --arg address "192.0.2.$1" 'select(.public4 == $address)'
}

has_record() {
    [ -n "$(record_of "$1")" ]
}

# within SECONDS WHAT CMD...: as until_true, and says how long it took.
within() {
    local began
    began=$(clock)
    until_true "$@" || return 0
    say "$2: after $((($(clock) - began) * 10)) ms"
}

registry() {
    lab registry "$@"
}

etcdctl() {
    in_ns registry etcdctl "$@"
}

# kube VERB...: see scripts/lab.d/kube_nodes.py.
kube() {
    in_ns registry python3 "$SCRIPTS/lab.d/kube_nodes.py" http://192.0.2.252:6443 "$@"
}

# A node that nobody is, to see that the registry is read: its name in lists is in $FOREIGN. $1 is its number, of two
# digits.
foreign_joins() {
    local key value data="{\"VNI\":1,\"VtepMAC\":\"02:00:5e:10:00:$1\"}" ranges=("10.244.$1.0/24")
    case $REGISTRY in
    etcd)
        FOREIGN=10.244.$1.0-24
        key=$FOREIGN
        value="{\"PublicIP\":\"192.0.2.$1\",\"PublicIPv6\":null,\"BackendType\":\"vxlan\",\"BackendData\":$data}"
        if [ "$INSIDE" = dual ]; then
            key+="&fd00:10:244:$1::-64"
            value="{\"PublicIP\":\"192.0.2.$1\",\"PublicIPv6\":\"2001:db8:192::$1\",\"BackendType\":\"vxlan\",\"BackendData\":$data,\"BackendV6Data\":$data}"
        fi
        etcdctl put "/coreos.com/network/subnets/$key" "$value" >/dev/null
        ;;
    kubernetes)
        FOREIGN=node$1
        [ "$INSIDE" = v4 ] || ranges+=("fd00:10:244:$1::/64")
        kube add "$FOREIGN" "${ranges[@]}"
        {
            printf '%s\n' 'kube-subnet-manager true' 'backend-type vxlan' "backend-data $data" "public-ip 192.0.2.$1"
            [ "$INSIDE" = v4 ] || printf '%s\n' "backend-v6-data $data" "public-ipv6 2001:db8:192::$1"
        } | kube annotate "$FOREIGN"
        ;;
    esac
}

foreign_leaves() {
    case $REGISTRY in
    etcd) etcdctl del --prefix "/coreos.com/network/subnets/10.244.$1.0-24" >/dev/null ;;
    kubernetes) kube delete "node$1" ;;
    esac
}

# knows NODE PEER: whether the node has a peer of that name.
knows() {
    agent_json "$1" peers | jq -e --arg peer "$2" '.peers | any(.name == $peer)'
}

knows_not() {
    ! knows "$@"
}

# problem NODE CODE: its sentence, if it is there.
problem() {
    agent_json "$1" status | jq -r --arg code "$2" '.problems[] | select(.code == $code) | .sentence'
}

has_problem() {
    [ -n "$(problem "$@")" ]
}

has_no_problem() {
    [ -z "$(problem "$@")" ]
}

all_well() {
    agent_json "$1" status | jq -e '.problems == []'
}

# The processes of a node's agent: keeper and service.
agent_pids() {
    echo "$(cat "$LAB_STATE/$1/pid") $(service_pid "$1")"
}

# Addresses of a node's pods and subnets, which no registry's fault may change.
own_addresses() {
    ip -n "$PREFIX-$1" -j address show tartan0 | jq -r '.[].addr_info[].local'
    grep -v MTU "$LAB_STATE/$1/run/flannel/subnet.env"
}

# Hundredths of a second that the processes of a node's agent have run on a core.
agent_time() {
    local pid total=0 line fields
    for pid in $(agent_pids "$1"); do
        line=$(cat "/proc/$pid/stat")
        read -ra fields <<<"${line##*) }"
        total=$((total + fields[11] + fields[12]))
    done
    echo $((total * 100 / $(getconf CLK_TCK)))
}

# watch_path NAME FROM TO [4|6]: pings from a pod to another pod, or to an address, every 20 ms, until the test ends;
# each answer or error with its time is in the file of that name.
watch_path() {
    local to=$3
    case $to in pod*) to=$(address_of "$3" "${4:-4}") ;; esac
    start_in "$2" ping -n -D -O -i 0.02 -W 1 "$to" >"$SCRATCH/path-$1"
    PATHS[$1]=$PID
}

unwatch() {
    stop "${PATHS[$1]}" INT
}

now() {
    date +%s.%N
}

# since WHAT NAME MOMENT: ms after the moment, of the first answer (WHAT is answer) or error of a router (refusal) on a path.
since() {
    local pattern='bytes from'
    [ "$1" = answer ] || pattern='[Uu]nreachable'
    awk -F'[][ ]' -v moment="$3" -v pattern="$pattern" '$0 ~ pattern && $2 > moment { printf "%d\n", ($2 - moment) * 1000; exit }' "$SCRATCH/path-$2"
}

came_since() {
    [ -n "$(since "$@")" ]
}

# soon TEXT WHAT NAME MOMENT: it comes within the time that nodes have to follow.
soon() {
    until_true 10 "$1" came_since "${@:2}" || return 0
    measured_at_most "ms: $1" $((FOLLOWED_WITHIN * 1000)) "$(since "${@:2}")"
}

# steady NAME FROM TO SECONDS [4|6]: pings every 20 ms for so long, in the background; `all_answered NAME` waits for them.
steady() {
    STEADY[$1]=$(($4 * 50))
    start_in "$2" python3 "$TOOLS/pings.py" "$(address_of "$3" "${5:-4}")" "${STEADY[$1]}" 0.02 2 >"$SCRATCH/steady-$1"
    STEADY_PIDS[$1]=$PID
}

all_answered() {
    wait "${STEADY_PIDS[$1]}" || true
    equal "answers on the path $1, of ${STEADY[$1]}" "${STEADY[$1]} received" "$(cat "$SCRATCH/steady-$1")"
}

# The same, where a moment is allowed for: 100 ms.
few_lost() {
    wait "${STEADY_PIDS[$1]}" || true
    local received
    received=$(sed -n 's/ received.*//p' "$SCRATCH/steady-$1")
    at_most "pings lost on the path $1, of ${STEADY[$1]}" 5 $((STEADY[$1] - received))
}

declare -A PATHS=() STEADY=() STEADY_PIDS=()
