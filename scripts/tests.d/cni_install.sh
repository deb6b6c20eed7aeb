#!/usr/bin/env bash
# `tartan cni install` and `uninstall` under a living containerd: it takes notice of the configuration at once, pods come
# and go while the program is exchanged, and removal refuses to strand a pod, goes in the safe order and leaves others'
# files alone.
#
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"

CONF=/etc/cni/net.d/10-tartan.conflist
PROGRAM=/opt/cni/bin/tartan-cni
THEIRS=/etc/cni/net.d/99-other.conflist
# Pods made and removed while the program is exchanged.
ROUNDS=6

# What an operator calls on the node.
cni() {
    in_runtime_host node1 "$(dirname "$(plugin)")/tartan" --root "$LAB_STATE/node1" cni "$@" \
        --bin-dir "${PROGRAM%/*}" --conf-dir "${CONF%/*}" 2>&1
}

network_is() {
    [[ $(cri node1 status) == "NetworkReady $1"* ]]
}

# files: which of ours are there.
ours() {
    in_runtime_host node1 find "${CONF%/*}" "${PROGRAM%/*}" -name '*tartan*' | sort | paste -sd ' '
}

# come_and_go: pods of containerd, one after the other, ROUNDS times.
come_and_go() {
    local round id failed=0
    for ((round = 0; round < ROUNDS; round++)); do
        id=$(cri node1 run "churn$round" "/$PREFIX-runtimes") && cri node1 stop "$id" && cri node1 rm "$id" || failed=$((failed + 1))
    done
    echo "$failed failed" >"$SCRATCH/churn"
}

# Two programs that differ, exchanged all the time that pods come and go.
exchange_programs() {
    local churn exchanged=0 from="$SCRATCH/programs"
    mkdir -p "$from"
    cp "$(plugin)" "$from/even"
    { cat "$(plugin)" && echo; } >"$from/odd"
    chmod 755 "$from"/*
    come_and_go &
    churn=$!
    while kill -0 "$churn" 2>/dev/null; do
        cni install --from "$from/odd" >/dev/null || fail "install of a new program"
        cni install --from "$from/even" >/dev/null || fail "install of the old program"
        exchanged=$((exchanged + 2))
        sleep 0.05
    done
    equal "pods that came and went while the program was exchanged $exchanged times" "0 failed" "$(cat "$SCRATCH/churn")"
    [ "$exchanged" -gt "$ROUNDS" ] || fail "the program was exchanged only $exchanged times"
}

lab_up --pods 0
runtime_host_up node1
in_runtime_host node1 rm "$PROGRAM"
containerd_up node1
podman_up node1
remember node1
until_true 5 "containerd has no network" network_is false || true

say "install"
cni install || fail "install"
until_true 5 "containerd has a network" network_is true || true
equal "ours" "$CONF $PROGRAM" "$(ours)"
equal "podman's networks and their drivers" 'tartan tartan-cni' "$(podman node1 network ls --format '{{.Name}} {{.Driver}}')"
cri_run node1 pod1
reaches pod1 10.244.2.0
exchange_programs

say "uninstall"
in_runtime_host node1 sh -c "echo '{\"cniVersion\": \"1.0.0\", \"name\": \"other\", \"plugins\": [{\"type\": \"bridge\"}]}' >$THEIRS"
if cni uninstall; then fail "a pod was stranded"; fi
equal "ours, while a pod is attached" "$CONF $PROGRAM" "$(ours)"
cri node1 stop "${POD_ID[pod1]}"
cri node1 rm "${POD_ID[pod1]}"
equal "what was removed, in this order" "$CONF $PROGRAM" \
    "$(cni uninstall -o json | jq -r '[.steps[] | select(.action == "removed") | .file] | join(" ")')"
equal "ours" '' "$(ours)"
in_runtime_host node1 test -e "$THEIRS" || fail "$THEIRS, a file of another program, is gone"
in_runtime_host node1 rm "$THEIRS"
until_true 5 "containerd has no network" network_is false || true
cni uninstall || fail "a second uninstall"
forgotten node1
law_one node1
