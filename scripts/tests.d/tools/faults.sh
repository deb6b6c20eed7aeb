# shellcheck shell=bash
# Faults, several at once. After they are made `tartan status` and `tartan doctor` show on every node the problems that
# they cause and no others, both with exit code 1; after their end none, with exit code 0. Sourced behind law.sh.
#
#   fault MAKE END EXPECTATION...    makes it; END is done by `no_more`, and at the law's end in any case
#   found [NODE...]                  each node (default: all with Tartan) shows what is expected of it
#   no_more                          ends all faults; `found` then expects no problem
#
# An EXPECTATION is "NODE CODE [WORDS|WORDS...]": a finding of this code, each of whose WORDS its sentence, evidence or
# remedy has. A fault and the end of another may be looked for at once.

EXPECTED=()
ENDS=()
# The doctor's arguments, where no agent runs.
FLAGS=()
BEGAN=$SECONDS

fault() {
    ENDS+=("$2")
    EXPECTED+=("${@:3}")
    BEGAN=$SECONDS
    eval "$1"
}

no_more() {
    local step
    for ((step = ${#ENDS[@]} - 1; step >= 0; step--)); do eval "${ENDS[step]}" || fail "the end: ${ENDS[step]}"; done
    ENDS=()
    EXPECTED=()
    BEGAN=$SECONDS
}
undo no_more

found() {
    local node nodes=("$@")
    if [ $# = 0 ]; then nodes=("${TARTAN[@]}"); fi
    for node in "${nodes[@]}"; do
        until_true 10 "status of $node shows '$(expected "$node")'" status_agrees "$node" ||
            jq -c .problems "$SCRATCH/status" >&2
    done
    measured_at_most "seconds until all nodes show that" 10 $((SECONDS - BEGAN))
    until_true 10 "the doctor of each finds the same" doctors_agree "${nodes[@]}" ||
        jq -c '.checks[].findings[]' "$SCRATCH"/doctor-* >&2
    for node in "${nodes[@]}"; do all_said "$node"; done
}

# expected NODE: the codes of its problems.
expected() {
    printf '%s\n' "${EXPECTED[@]}" | awk -v node="$1" '$1 == node { print $2 }' | LC_ALL=C sort -u | paste -sd ' '
}

# Of a stopped agent, status knows of no problem: it says that no agent answers, by exit code 3.
status_agrees() {
    local code=0
    tartan "$1" status -o json >"$SCRATCH/status" || code=$?
    case $code,$(expected "$1") in
    0, | 3,agent-not-running*) return 0 ;;
    1,?*) [ "$(jq -r '[.problems[].code] | unique | join(" ")' "$SCRATCH/status")" = "$(expected "$1")" ] ;;
    *) return 1 ;;
    esac
}

# The doctor looks at counts for a second: of all nodes at once.
doctors_agree() {
    local node codes code looking=()
    for node; do
        doctor "$node" &
        looking+=($!)
    done
    wait "${looking[@]}"
    for node; do
        codes=$(expected "$node")
        code=1
        [ -n "$codes" ] || code=0
        [ "$codes" != agent-not-running ] || code=3
        [ "$(diagnosis "$node")" = "$code $codes" ] || return 1
    done
}

# doctor NODE ARG...: what it says, into $SCRATCH/doctor-NODE, and its exit code.
doctor() {
    local code=0
    tartan "$1" doctor -o json "${FLAGS[@]}" "${@:2}" >"$SCRATCH/doctor-$1" || code=$?
    echo "$code" >"$SCRATCH/code-$1"
}

# diagnosis NODE: the exit code of the doctor, and the codes of what it found, each once.
diagnosis() {
    echo "$(cat "$SCRATCH/code-$1") $(jq -r '[.checks[].findings[].code] | unique | join(" ")' "$SCRATCH/doctor-$1")"
}

# all_said NODE: each finding is complete, and has the words that are expected of it.
all_said() {
    local row node code words word
    equal "incomplete findings of $1" "" "$(jq -c '.checks[].findings[] | select(any(.sentence, .remedy, .severity,
        .evidence[0] // "", .reference[0] // ""; . == ""))' "$SCRATCH/doctor-$1")"
    for row in "${EXPECTED[@]}"; do
        read -r node code words <<<"$row"
        [ "$node" = "$1" ] || continue
        while read -rd '|' word; do evidence "$node" "$code" "$word"; done <<<"$words|"
    done
}

# evidence NODE CODE WORDS: a finding of that code has them.
evidence() {
    jq -e --arg code "$2" --arg words "$3" 'any(.checks[].findings[] | select(.code == $code)
        | .sentence, .evidence[], .remedy; contains($words))' "$SCRATCH/doctor-$1" >/dev/null ||
        fail "no finding $2 of $1 says '$3': $(jq -c '.checks[].findings[]' "$SCRATCH/doctor-$1")"
}

# net_conf NODE [FILTER]: changes its net-conf by a filter of jq, or back; its service starts anew with that.
net_conf() {
    local file=$LAB_STATE/$1/net-conf.json
    [ -e "$SCRATCH/net-conf-$1" ] || cp "$file" "$SCRATCH/net-conf-$1"
    if [ $# = 2 ]; then jq "$2" "$SCRATCH/net-conf-$1" >"$file"; else cat "$SCRATCH/net-conf-$1" >"$file"; fi
    kill -HUP "$(cat "$LAB_STATE/$1/pid")"
}

# flannel_chain NODE: the rules of a flannel that is gone.
flannel_chain() {
    in_ns "$1" iptables-nft -w -t nat -N FLANNEL-POSTRTG
    in_ns "$1" iptables-nft -w -t nat -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
}

# foreign_firewall NODE: another program's, whose policy is to drop what is forwarded.
foreign_firewall() {
    in_ns "$1" nft 'table inet strict { chain forward { type filter hook forward priority 0; policy drop; }; }'
}
