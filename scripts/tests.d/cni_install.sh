#!/usr/bin/env bash
# `tartan cni install` and `uninstall` under a living containerd: it takes notice of the configuration at once; pods of
# containerd's, and loops of ADD and DEL, come and go while the program is exchanged 16 times, and none fails; removal
# refuses to strand a pod, goes in the safe order and leaves the files of others alone.
#
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"
# shellcheck source=scripts/tests.d/tools/cni.sh
. "$TOOLS/cni.sh"

CONF=/etc/cni/net.d/10-tartan.conflist
PROGRAM=/opt/cni/bin/tartan-cni
THEIRS=/etc/cni/net.d/99-other.conflist
EXCHANGES=16
# Rounds of each loop.
ROUNDS=6
# A call of cni.sh is one of the program that is installed.
export IN=in_runtime_host

# What an operator calls on the node.
cni() {
    in_runtime_host node1 "$BIN/tartan" --root "$LAB_STATE/node1" cni "$@" --bin-dir "${PROGRAM%/*}" \
        --conf-dir "${CONF%/*}" 2>&1
}

ours() {
    in_runtime_host node1 find "${CONF%/*}" "${PROGRAM%/*}" -name '*tartan*' | sort | paste -sd ' '
}

# loop KIND NAME: pods come and go, for ROUNDS at least and until the last exchange; what failed is in a file.
loop() {
    local round=0
    until [ "$round" -ge "$ROUNDS" ] && [ -e "$SCRATCH/enough" ]; do
        "$1" "$2" >>"$SCRATCH/failed" 2>&1 || echo "$2, in round $round" >>"$SCRATCH/failed"
        round=$((round + 1))
    done
}

by_containerd() {
    local id
    id=$(cri node1 run "$1" "/$PREFIX-runtimes") && cri node1 stop "$id" && cri node1 rm "$id"
}

by_calls() {
    call ADD node1 "$1" >/dev/null && call DEL node1 "$1"
}

# Two programs that differ, exchanged all the time that pods come and go.
exchange_programs() {
    local turn from=$SCRATCH/programs loops=() answer name
    mkdir -p "$from"
    cp "$BIN/tartan-cni" "$from/1"
    { cat "$BIN/tartan-cni" && echo; } >"$from/0"
    chmod 755 "$from"/*
    : >"$SCRATCH/failed"
    for name in called1 called2; do
        in_runtime_host node1 ip netns add "$PREFIX-$name"
        loop by_calls "$name" &
        loops+=("$!")
    done
    loop by_containerd churned &
    loops+=("$!")
    for ((turn = 0; turn < EXCHANGES; turn++)); do
        answer=$(cni install --from "$from/$((turn % 2))" -o json) || fail "install: $answer"
        equal "exchange $turn" replaced "$(jq -r '.steps[0].action' <<<"$answer")"
        in_runtime_host node1 jq -e .cniVersion "$CONF" >/dev/null || fail "no configuration after exchange $turn"
    done
    touch "$SCRATCH/enough"
    wait "${loops[@]}"
    same "what failed while the program was exchanged" '' "$(cat "$SCRATCH/failed")"
    for name in called1 called2; do in_runtime_host node1 ip netns delete "$PREFIX-$name"; done
}

NODES=(node1)
runtimes_up podman_up
in_runtime_host node1 rm "$PROGRAM" "$CONF"
containerd_up node1
holdings node1 >"$SCRATCH/node1.before"
until_true 5 "containerd has no network" network_is false

say "install"
cni install || fail "install"
until_true 5 "containerd has a network" network_is true
equal "ours" "$CONF $PROGRAM" "$(ours)"
equal "podman's networks" 'tartan tartan-cni' "$(podman node1 network ls --format '{{.Name}} {{.Driver}}')"
cri_run node1 pod1
reaches pod1 10.244.2.0
exchange_programs

say "uninstall"
write_on node1 "$THEIRS" <<<'{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "bridge"}]}'
if ANSWER=$(cni uninstall); then fail "a pod was stranded"; fi
contains "the refusal" 'drain the node' "$ANSWER"
equal "ours, while a pod is attached" "$CONF $PROGRAM" "$(ours)"
cri_end pod1
equal "what was removed, in this order" "$CONF $PROGRAM" \
    "$(cni uninstall -o json | jq -r '[.steps[] | select(.action == "removed") | .file] | join(" ")')"
equal "ours" '' "$(ours)"
in_runtime_host node1 test -e "$THEIRS" || fail "$THEIRS, a file of another program, is gone"
in_runtime_host node1 rm "$THEIRS"
until_true 5 "containerd has no network" network_is false
cni uninstall || fail "a second uninstall"
runtimes_end
