# shellcheck shell=bash
# One fault at a time: by one clock, `tartan doctor` finds it and `tartan status` shows it within 10 s of its making, both
# with exit code 1, and both are clean again, with `tartan peers`, within 10 s of its end. Sourced after test_case.sh.
#
# begins; make it; found ...; begins; end it; gone ...

# Hundredths of a second.
AT_MOST=1000
# A pattern of codes of what this fault may bring with it: they are not looked at, and are gone at its end.
BESIDE='^$'
CODE=0
STATUS_CODE=0

# The clock of what is made or ended next.
begins() {
    BEGAN=$(clock)
}

# doctor NODE ARG...: what it says, into $SCRATCH/doctor.json; its exit code into $CODE.
doctor() {
    CODE=0
    tartan "$1" doctor -o json "${@:2}" >"$SCRATCH/doctor.json" || CODE=$?
}

status() {
    STATUS_CODE=0
    tartan "$1" status -o json >"$SCRATCH/status.json" 2>/dev/null || STATUS_CODE=$?
}

# The codes of what the doctor found, each once.
codes() {
    jq -r --arg beside "$BESIDE" '[.checks[].findings[].code | select(test($beside) | not)] | unique | join(" ")' "$SCRATCH/doctor.json"
}

status_codes() {
    jq -r --arg beside "$BESIDE" '[.problems[].code | select(test($beside) | not)] | unique | join(" ")' "$SCRATCH/status.json" 2>/dev/null || echo '?'
}

# With the agent stopped, status knows of no problems: it says that no agent answers, by exit code 3.
status_agrees() {
    case " $1 " in
    *" agent-not-running "*) [ "$STATUS_CODE" = 3 ] ;;
    "  ") [ "$STATUS_CODE" = 0 ] && [ -z "$(status_codes)" ] ;;
    *) [ "$STATUS_CODE" = 1 ] && [ "$(status_codes)" = "$1" ] ;;
    esac
}

# agree NODE WHAT CODES EXIT-CODE ARG...: within 10 s of `begins` status has these problems and the doctor, with the
# arguments, finds these and nothing else, and ends with that code.
agree() {
    local node=$1 what=$2 expected=$3 code=$4 by_status='' by_doctor='' status_now doctor_now
    shift 4
    while true; do
        status_now='' doctor_now=''
        status "$node"
        if status_agrees "$expected"; then
            status_now=$(($(clock) - BEGAN))
            by_status=${by_status:-$status_now}
            doctor "$node" "$@"
            if [ "$(codes)" = "$expected" ] && [ "$CODE" = "$code" ]; then doctor_now=$(($(clock) - BEGAN)); fi
            by_doctor=${by_doctor:-$doctor_now}
        fi
        if [ -n "$doctor_now" ] || (($(clock) - BEGAN > 3 * AT_MOST)); then break; fi
        sleep 0.1
    done
    if [ -z "$doctor_now" ]; then
        fail "$what: not within $((3 * AT_MOST / 100)) s: status '$(status_codes)' and exit code $STATUS_CODE" \
            "(hundredths of a second: ${by_status:--}), doctor '$(codes)' and exit code $CODE (${by_doctor:--}): $(findings)"
        return 1
    fi
    say "$what: ${expected:-nothing} (status $(hundredths "$by_status"), doctor $(hundredths "$by_doctor"))"
    in_time "$what"
}

# in_time WHAT: it is no more than 10 s since `begins`; later, that is too late and nothing else is wrong.
in_time() {
    local passed
    passed=$(($(clock) - BEGAN))
    [ "$passed" -le "$AT_MOST" ] || too_late "$1: after $(hundredths "$passed") instead of $((AT_MOST / 100)) s"
}

findings() {
    jq -c '.checks[].findings[]' "$SCRATCH/doctor.json" | cut -c 1-400
}

# found NODE WHAT CODES EXIT-CODE ARG...: these, each complete.
found() {
    local incomplete
    agree "$@" || return 0
    incomplete=$(jq -c '.checks[].findings[] | select(([.sentence, .remedy, .severity, (.evidence[0] // ""), (.reference[0] // "")]
        | any(. == "")))' "$SCRATCH/doctor.json")
    [ -z "$incomplete" ] || fail "$2: incomplete findings: $incomplete"
    jq -r '.checks[].findings[] | "    \(.code): \(.sentence) (\(.evidence | join("; ")))"' "$SCRATCH/doctor.json" | cut -c 1-240
}

# gone NODE WHAT: nothing is wrong any more, by all three in turn, within 10 s of `begins`. A problem of a path is posted some
# seconds after `tartan peers` shows its state, so status and doctor may have nothing to say while a path is still recovering.
gone() {
    local BESIDE='^$' code
    while true; do
        agree "$1" "$2" "" 0 || return 0
        code=0
        tartan "$1" peers >"$SCRATCH/peers" || code=$?
        if [ "$code" = 0 ]; then
            in_time "$2, by peers"
            return 0
        fi
        if (($(clock) - BEGAN > 3 * AT_MOST)); then
            fail "$2: not within $((3 * AT_MOST / 100)) s: 'tartan peers' ends with code $code: $(cat "$SCRATCH/peers")"
            return 0
        fi
        sleep 0.1
    done
}

# evidence WORDS: a finding has them.
evidence() {
    jq -e --arg words "$1" '[.checks[].findings[] | .sentence, .evidence[], .remedy] | any(contains($words))' \
        "$SCRATCH/doctor.json" >/dev/null || fail "no finding says '$1': $(findings)"
}
