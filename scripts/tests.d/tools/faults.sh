# shellcheck shell=bash
# Faults, several at once. After they are made `tartan status` and `tartan doctor` show on every node the problems that they
# cause and no others, both with exit code 1; after their end none, with exit code 0. Sourced behind law.sh.
#
#   fault MAKE END EXPECTATION...    makes it; END is done by `no_more`, and at the law's end in any case
#   found [NODE...]                  each node (default: all with Tartan) shows what is expected of it
#   no_more                          ends all faults; `found` then expects no problem
#
# An EXPECTATION is "NODE CODE [WORDS|WORDS...]": a finding of this code, each of whose WORDS its sentence, evidence or remedy
# has. A fault and the end of another may be looked for at once.

EXPECTED=()
ENDS=()
# Of the doctor, in the law that stops the agent.
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
    for ((step = ${#ENDS[@]} - 1; step >= 0; step--)); do eval "${ENDS[step]}" || fail "to end a fault: ${ENDS[step]}"; done
    ENDS=()
    EXPECTED=()
    BEGAN=$SECONDS
}
undo no_more

found() {
    local node nodes=("$@")
    if [ $# = 0 ]; then nodes=("${TARTAN[@]}"); fi
    for node in "${nodes[@]}"; do shown_by "$node"; done
    measured_at_most "seconds until all nodes show that" 10 $((SECONDS - BEGAN))
}

# shown_by NODE: what is expected of it.
shown_by() {
    local codes row node code words word
    codes=$(printf '%s\n' "${EXPECTED[@]}" | awk -v node="$1" '$1 == node { print $2 }' | LC_ALL=C sort -u | paste -sd ' ')
    until_true 10 "$1 shows ${codes:-no problem}" agree "$1" "$codes" || {
        jq -c '.problems // .' "$SCRATCH/status" >&2 || true
        jq -c '.checks[].findings[]' "$SCRATCH/doctor" >&2 || true
        return 0
    }
    equal "incomplete findings of $1" "" "$(jq -c '.checks[].findings[]
        | select([.sentence, .remedy, .severity, .evidence[0] // "", .reference[0] // ""] | any(. == ""))' "$SCRATCH/doctor")"
    for row in "${EXPECTED[@]}"; do
        read -r node code words <<<"$row"
        [ "$node" = "$1" ] || continue
        while read -rd '|' word; do evidence "$code" "$word"; done <<<"$words|"
    done
}

# evidence CODE WORDS: a finding of that code has them.
evidence() {
    jq -e --arg code "$1" --arg words "$2" '[.checks[].findings[] | select(.code == $code) | .sentence, .evidence[], .remedy]
        | any(contains($words))' "$SCRATCH/doctor" >/dev/null ||
        fail "no finding $1 says '$2': $(jq -c '.checks[].findings[]' "$SCRATCH/doctor")"
}

# agree NODE CODES: status and doctor show these and no others, and say so by their exit codes. Of a stopped agent status knows
# no problems.
agree() {
    local code=0 expected=1
    case $2 in
    '') expected=0 ;;
    agent-not-running*) expected=3 ;;
    esac
    tartan "$1" status -o json >"$SCRATCH/status" || code=$?
    [ "$code" = "$expected" ] || return 1
    if [ "$code" != 3 ]; then [ "$(jq -r '[.problems[].code] | unique | join(" ")' "$SCRATCH/status")" = "$2" ] || return 1; fi
    if [ "$2" != agent-not-running ] && [ "$code" = 3 ]; then expected=1; fi
    doctor "$1"
    [ "$CODE" = "$expected" ] && [ "$(codes)" = "$2" ]
}

# doctor NODE ARG...: what it says, into $SCRATCH/doctor; its exit code into $CODE.
doctor() {
    CODE=0
    tartan "$1" doctor -o json "${FLAGS[@]}" "${@:2}" >"$SCRATCH/doctor" || CODE=$?
}

# The codes of what the doctor found, each once.
codes() {
    jq -r '[.checks[].findings[].code] | unique | join(" ")' "$SCRATCH/doctor"
}
