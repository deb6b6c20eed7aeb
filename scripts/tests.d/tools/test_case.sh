# shellcheck shell=bash
# A test with a lab of its own: brings it up, and takes it down with a census at the end. Sourced by every test of
# tests.d.
# shellcheck source=scripts/tests.d/tools/checks.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/checks.sh"

# Most tests count every packet, or bring about what the probes of peers would report beside what they look for: probes
# are off but where a test says otherwise before it sources this (metrics.sh).
export TARTAN_PROBE=${TARTAN_PROBE:-false}
# Words of a case that every test knows: workers=N, device=KIND, device-type=TYPE and kernel-path=MODE are the agents';
# the rest is the test's own.
AGENTS=()
WORDS=()
for WORD in "$@"; do
    case $WORD in
    workers=* | device=* | device-type=* | kernel-path=*) AGENTS+=("--${WORD%%=*}" "${WORD#*=}") ;;
    *) WORDS+=("$WORD") ;;
    esac
done
set -- "${WORDS[@]}"

# agents_option NAME: what the case says of it, or nothing.
agents_option() {
    local word
    for ((word = 0; word < ${#AGENTS[@]}; word += 2)); do
        if [ "${AGENTS[word]}" = "--$1" ]; then echo "${AGENTS[word + 1]}"; fi
    done
}

# off, stateless or auto.
KERNEL_PATH=$(agents_option kernel-path)
KERNEL_PATH=${KERNEL_PATH:-off}

# A lab of this test alone. What an interrupted run left is taken away first.
lab_up() {
    local pid node
    "$SCRIPTS/lab" down --prefix "$PREFIX" >/dev/null
    lab up "${AGENTS[@]}" "$@"
    kernel_path_carries || return 0
    for pid in "$LAB_STATE"/node*/pid; do
        node=$(basename "$(dirname "$pid")")
        until_true 10 "the kernel path of $node is in use" kernel_path_in_use "$node" ||
            die "the kernel path of $node: $(agent_json "$node" status | jq -c .kernel_path)"
    done
}

# Always runs: ends what was started, shows the agents' logs after a failure, takes the lab down. The
# census of `lab down` is part of every test.
finish() {
    local code=$? pid
    trap - EXIT
    set +e
    for pid in "${STARTED[@]}"; do stop "$pid" KILL; done
    if [ "$code" != 0 ] || [ "$FAILURES" != 0 ]; then show_logs; fi
    "$SCRIPTS/lab" down --prefix "$PREFIX" || fail "the census after 'lab down'"
    rm -rf "$SCRATCH"
    if [ "$code" = 0 ] && [ "$FAILURES" != 0 ]; then code=1; fi
    [ "$code" = 0 ] && say "all held"
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM
