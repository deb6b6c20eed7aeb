#!/usr/bin/env bash
# Brings a lab of scripts/tests.d/labs up and runs laws in it, one after another.
#
#   lab_run.sh [--keep] LAB LAW...      --keep: leaves it up, as LAB_PREFIX (default: test)
#
# A law that does not hold, or leaves the lab another than it was, gets a lab made anew behind it. RESULTS names a file
# that gets a line for each law: passed or FAILED, its seconds, its name, and what was wrong. Each has a log of its own
# in LOGS. Descriptor 3, where it is open, is told each result at once.
set -uo pipefail
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
SCRIPTS=$(readlink -f "$HERE/../..")
export LAB_PREFIX=${LAB_PREFIX:-test} PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
LOGS=${LOGS:-$SCRIPTS/../target/test-logs}
RESULTS=${RESULTS:-/dev/null}
# Seconds, unless the law's head says "# seconds: NUMBER".
LONGEST=180
KEEP=
if [ "${1:-}" = --keep ]; then
    KEEP=1
    shift
fi
LAB=$1
shift
{ : >&3; } 2>/dev/null || exec 3>/dev/null
TARTAN_PROBE=$([ "$(python3 "$HERE/labs.py" probes "$LAB")" = on ] && echo true || echo false)
export TARTAN_PROBE

up() {
    local options
    mapfile -t options < <(python3 "$HERE/labs.py" options "$LAB")
    "$SCRIPTS/lab" down --prefix "$LAB_PREFIX" >/dev/null
    echo "lab $LAB: ${options[*]}"
    "$SCRIPTS/lab" up --prefix "$LAB_PREFIX" "${options[@]}"
}

down() {
    "$SCRIPTS/lab" down --prefix "$LAB_PREFIX"
}

# told LINE...: here, and to descriptor 3. (tee(1) would open what that leads to anew, and cut a file.)
told() {
    printf '%s\n' "$@"
    printf '%s\n' "$@" >&3
}

# result HOW SECONDS LAW WHAT
result() {
    printf '%s\t%s\t%s %s\t%s\n' "$1" "$2" "$3" "$LAB" "$4" >>"$RESULTS"
    told "$(printf '%(%T)T  %-48s %s %d s' -1 "$3 $LAB" "$1" "$2")"
}

# run LAW: its exit code.
run() {
    local file=$HERE/../laws/$1.sh log=$LOGS/$1-$LAB.log began=$SECONDS code limit
    limit=$(sed -n 's/^# seconds: //p' "$file")
    timeout --kill-after=30 "${limit:-$LONGEST}" bash "$HERE/law.sh" "$file" >"$log" 2>&1 </dev/null 3>&-
    code=$?
    if [ "$code" = 0 ]; then
        result passed $((SECONDS - began)) "$1" ''
    else
        result FAILED $((SECONDS - began)) "$1" "$({ grep -a '^FAILED: ' "$log" || tail -n 1 "$log"; } |
            sed 's/^FAILED: //' | paste -sd ';' | cut -c -400)"
        told "$(tail -n 60 "$log" | sed 's/^/    /')" "    again: scripts/test --only '$1' --lab $LAB"
    fi
    return "$code"
}

mkdir -p "$LOGS"
trap 'down; exit 130' INT TERM
FAILED=0
BEGAN=$SECONDS
up || {
    result FAILED $((SECONDS - BEGAN)) "up" "the lab did not come up"
    down
    exit 1
}
for LAW in "$@"; do
    run "$LAW" && continue
    FAILED=1
    down
    up || {
        result FAILED 0 "up" "the lab did not come up behind $LAW"
        break
    }
done
if [ -z "$KEEP" ]; then
    BEGAN=$SECONDS
    if LEFT=$(down 2>&1); then
        result passed $((SECONDS - BEGAN)) census ''
    else
        echo "$LEFT"
        result FAILED $((SECONDS - BEGAN)) census "$(paste -sd ' ' <<<"$LEFT" | cut -c -400)"
        FAILED=1
    fi
fi
exit "$FAILED"
