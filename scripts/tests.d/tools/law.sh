#!/usr/bin/env bash
# law.sh FILE: runs a law in the lab LAB_PREFIX, which is up. A law is one thing that must hold: a script of ../laws,
# which says in its head what and in which labs (labs.py has the words), and leaves the lab as it found it. This is what
# it is written with.
#
#   pod1, pod2 ── node1: Tartan ══╗          ╔══ node3: Tartan or, with `third` kernel-vxlan, its device ── pod5, pod6
#   pod3, pod4 ── node2: Tartan ══╩ underlay ╩══ mallory, no node's peer
#
# Variables: BACKEND INSIDE OUTSIDE UNDERLAY DEVICE DEVICE_TYPE WORKERS KERNEL_PATH REGISTRY PEER are the lab's;
# FAMILIES are those that its pods have, TARTAN its nodes with Tartan; FULL is set with --full. At its end what a law
# started is ended, what it gave to `undo` is done, and then the lab's facts are those of before, law 1 holds on every
# node and no node has a problem.
# shellcheck source=scripts/tests.d/tools/checks.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/checks.sh"

# The exit code of a law that held and left the lab another than it was.
LEFT_ANOTHER=3
UNDO=()
# Of the lab before its first law, and so before each.
FACTS=$LAB_STATE/facts

[ -e "$LAB_STATE/settings" ] || {
    echo "there is no lab '$PREFIX': scripts/test --only LAW --lab LAB brings one up and runs the law in it" >&2
    exit 2
}
# shellcheck disable=SC1091
. "$LAB_STATE/settings"
KERNEL_PATH=${KERNEL_PATH:-off}
# shellcheck disable=SC2034 # The laws use it.
read -ra FAMILIES < <(families "$INSIDE")
# Those that the nodes have too; without the other a Service has none.
# shellcheck disable=SC2034
mapfile -t SERVED < <(comm -12 <(families "$INSIDE" | tr ' ' '\n') <(families "$OUTSIDE" | tr ' ' '\n'))
mapfile -t TARTAN < <(awk '$2 == "tartan" { print $1 }' "$LAB_STATE/nodes")

# undo CMD...: to be done at the end of the law, whatever becomes of it; the last one first.
undo() {
    UNDO+=("${*@Q}")
}

# agents_with NAME=VALUE...: starts the agents of the lab anew with these variables; at the law's end without them.
agents_with() {
    undo restart_agents
    restart_agents "$@"
}

# as_wire NAME:DEVICE...: these ends of an underlay with all offloads send without any, until the end of the law.
as_wire() {
    [ "$UNDERLAY" = offload ] || return 0
    undo offloads on "$@"
    offloads off "$@"
}

# offloads on|off NAME:DEVICE...
offloads() {
    local end
    for end in "${@:2}"; do
        in_ns "${end%:*}" ethtool -K "${end#*:}" tx-udp_tnl-segmentation "$1" tx-udp_tnl-csum-segmentation "$1" \
            tx-udp-segmentation "$1" tx-checksumming "$1" >/dev/null
    done
}

restart_agents() {
    local node
    for node in "${TARTAN[@]}"; do
        lab stop "$node"
        env "$@" "$SCRIPTS/lab" start --prefix "$PREFIX" "$node"
    done
    agents_are_ready
}

agents_are_ready() {
    local node
    for node in "${TARTAN[@]}"; do
        if kernel_path_carries; then until_true 10 "the kernel path of $node is in use" kernel_path_in_use "$node"; fi
    done
}

# Whether the lab's facts are those of before.
as_before() {
    lab facts >"$SCRATCH/facts.after"
    cmp -s "$FACTS" "$SCRATCH/facts.after"
}

# What the law left behind, or took away. How long it takes until the lab is as it was is no bar.
left_behind() {
    local node names before=$FAILURES
    # Path MTUs that its kernels have learned, or were made to believe.
    mapfile -t names < <(sed -E "s/^$PREFIX-([^ ]*).*/\1/" "$LAB_STATE/namespaces")
    forget_paths "${names[@]}"
    FULL='' until_true 10 "the lab is as it was" as_before ||
        diff "$FACTS" "$SCRATCH/facts.after" | grep '^[<>]' | head -n 20
    for node in "${TARTAN[@]}"; do
        law_one "$node"
        FULL='' until_true 10 "no problem on $node" no_problem "$node" || agent_json "$node" status | jq -c .problems
    done
    [ "$FAILURES" = "$before" ]
}

finish() {
    local code=$? pid step
    trap - EXIT
    set +e
    for pid in "${STARTED[@]}"; do stop "$pid" KILL; done
    for ((step = ${#UNDO[@]} - 1; step >= 0; step--)); do eval "${UNDO[step]}" || fail "to undo: ${UNDO[step]}"; done
    if [ "$FAILURES" != 0 ]; then code=1; fi
    if [ -e "$FACTS" ] && ! left_behind && [ "$code" = 0 ]; then code=$LEFT_ANOTHER; fi
    if [ "$code" != 0 ]; then show_logs; fi
    rm -rf "$SCRATCH"
    [ "$code" = 0 ] && say "held"
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM
agents_are_ready
[ -e "$FACTS" ] || lab facts >"$FACTS"
# shellcheck source=/dev/null
. "$1"
