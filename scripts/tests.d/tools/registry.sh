# shellcheck shell=bash
# shellcheck disable=SC2034 # Laws use what it sets.
# What laws of a registry share: what it holds, changes by the hand of others, and how nodes follow. Sourced after
# law.sh or test_case.sh; REGISTRY and INSIDE are those of the lab.

# Seconds within which a node follows a change, and is in touch again.
FOLLOWED_WITHIN=2
BACK_WITHIN=5
declare -A STEADY=()

registry() {
    lab registry "$@"
}

etcdctl() {
    in_ns registry etcdctl "$@"
}

# api METHOD PATH [OBJECT]: what the Kubernetes API server answers; the path is below its Nodes.
api() {
    local kind=json
    if [ "$1" = PATCH ]; then kind=merge-patch+json; fi
    in_ns registry curl -sS --fail-with-body -m 5 --noproxy '*' -X "$1" -H "content-type: application/$kind" \
        ${3:+--data "$3"} "http://192.0.2.252:6443/api/v1/nodes$2"
}

# record_of NUMBER: what the registry holds of the node with that IPv4 address.
record_of() {
    registry leases | jq -c --arg address "192.0.2.$1" 'select(.public4 == $address)'
}

has_record() {
    [ -n "$(record_of "$1")" ]
}

# knows NODE NUMBER: whether the node has a peer of that IPv4 address.
knows() {
    agent_json "$1" peers | jq -e --arg address "192.0.2.$2" '.peers | any(.public_ip == $address)'
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

# on_all CMD...: with each Tartan node as the first argument.
on_all() {
    local node
    for node in "${TARTAN[@]}"; do "$1" "$node" "${@:2}" || return 1; done
}

# agents NODE...: the processes of their agents, keeper and service, and their addresses: no fault of a registry changes
# them.
agents() {
    local node device service
    for node; do
        read -r device service < <(agent_json "$node" status | jq -r '"\(.device) \(.service_pid)"')
        echo "$node $(cat "$LAB_STATE/$node/pid") $service"
        ip -n "$PREFIX-$node" -j address show "$device" | jq -r '.[].addr_info[].local'
        cat "$LAB_STATE/$node/run/flannel/subnet.env"
    done
}

# answering POD...: they answer from now on what `steady` sends to them.
answering() {
    local pod
    for pod; do start_in "$pod" python3 "$TOOLS/steady.py" serve 7100; done
    for pod; do until_true 5 "$pod answers" is_bound "$pod" udp 7100; done
}

# steady FROM TO FAMILY: 50 datagrams a second and their answers, until `none_lost` ends it. The last answers have ten
# seconds: the machine may be busy.
steady() {
    local path="$1 $2 $3"
    start_in "$1" python3 "$TOOLS/steady.py" send $((7200 + ${#STEADY[@]})) "$(address_of "$2" "$3")" 7100 50 10 \
        >"$SCRATCH/steady $path"
    STEADY[$path]=$PID
}

# none_lost COUNT [COMPARE]: on no path that `steady` began more datagrams than these had no answer; ends them.
none_lost() {
    local path sent answered
    kill -TERM "${STEADY[@]}"
    for path in "${!STEADY[@]}"; do
        wait "${STEADY[$path]}" || fail "the sender on the path $path"
        read -r sent _ answered _ < <(tr -d , <"$SCRATCH/steady $path")
        [ "${sent:-0}" -gt 0 ] || fail "nothing was sent on the path $path"
        "${2:-at_most}" "datagrams of $sent without an answer, path $path" "$1" $((sent - answered))
    done
    STEADY=()
}
