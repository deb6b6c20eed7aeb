#!/usr/bin/env bash
# containerd on two nodes, by its CRI, which a kubelet speaks, and by `ctr run --cni`: pods of both families reach each
# other whole, also over a kill of containerd, and nothing is left of them. `tartan cni install` is noticed at once, and
# exchanges the plugin while pods come and go. Debian's portmap, bandwidth, tuning and firewall chained behind us find
# in our result what they need, and take back what they made before we take our interface. A sandbox that cannot have a
# network says why. A container of `ctr` that ends by itself is taken away; for a detached one, or one whose `ctr` is
# killed, no program calls DEL: the agent sees that it is gone, and leaves a living one alone.
#
#   pod1, pod3 ── node1 tartan ══ underlay ══ tartan node2 ── pod2, web1, web2
#
# case:
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/runtimes.sh"

CONF=/etc/cni/net.d/10-tartan.conflist
CHAIN='[{"type": "tuning", "mtu": 1400}, {"type": "bandwidth", "capabilities": {"bandwidth": true}}, .plugins[1],
    {"type": "firewall"}]'

# cri NODE METHOD ARG...; Debian's python3 alone has Debian's python3-grpcio.
cri() {
    in_runtime_host "$1" /usr/bin/python3 "$TOOLS/cri.py" /run/containerd/containerd.sock "${@:2}"
}

# cri_run NODE NAME OPTION...: a sandbox, noted as a pod.
cri_run() {
    local id
    id=$(cri "$1" RunPodSandbox "$2" "/$PREFIX-runtimes" "${@:3}") || die "RunPodSandbox of $2 on $1"
    note_pod "$2" "$1" "$id"
}

# cri_end POD: stopped twice, as after a restart of a kubelet, the second time without a namespace; and removed.
cri_end() {
    local verb
    for verb in Stop Stop Remove; do
        cri "${POD_NODE[$1]}" "${verb}PodSandbox" "${POD_ID[$1]}" || fail "${verb}PodSandbox of $1"
    done
}

# network_is true|false: what the CRI of node1 says.
network_is() {
    [ "$(cri node1 Status | grep -cx NetworkPluginNotReady)" = "$([ "$1" = true ]; echo $?)" ]
}

# Pods come and go, while two programs that differ are exchanged 16 times.
exchange_programs() {
    local turn from id
    install <(cat "$BIN/tartan-cni" <(echo)) "$SCRATCH/other"
    until [ -e "$SCRATCH/enough" ]; do
        id=$(cri node1 RunPodSandbox churned "/$PREFIX-runtimes") && cri node1 StopPodSandbox "$id" &&
            cri node1 RemovePodSandbox "$id" || echo "failed"
    done >"$SCRATCH/churned" 2>&1 &
    for turn in {1..8}; do
        for from in "$SCRATCH/other" "$BIN/tartan-cni"; do
            contains "exchange $turn" "replaced /opt/cni/bin/tartan-cni" "$(cni node1 install --from "$from" 2>&1)"
        done
    done
    touch "$SCRATCH/enough"
    wait "$!"
    equal "what failed meanwhile" '' "$(cat "$SCRATCH/churned")"
}

# The rates of the token buckets of node1 in bytes a second: towards a pod on its veth, from it on an IFB.
buckets() {
    tc -n "$PREFIX-node1" -j qdisc show | jq -r '[.[] | select(.kind == "tbf") |
        (if .dev | startswith("tt") then "towards" else "from" end) + " \(.options.rate)"] | sort | join(", ")'
}

# A container's cgroup is /NAMESPACE/ID.
ctr_in() {
    in_runtime_host node2 ctr -n "$PREFIX-runtimes" "$@"
}

# ctr_run OPTION NAME COMMAND...: --rm for a container in the foreground, -d for one that ctr leaves to itself.
ctr_run() {
    ctr_in run "$1" --cni --rootfs "$SCRATCH/node2/rootfs" "${@:2}"
}

# sleeper OPTION NAME: one that sleeps, noted as a pod, and reaches another; the process of ctr is in $CTR.
sleeper() {
    ctr_run "$@" /bin/sleep 600 &
    CTR=$!
    until_true 10 "$2 runs" is "$2" RUNNING || die "ctr does not start it"
    note_pod "$2" node2 "$PREFIX-runtimes-$2"
    reaches "$2" "${POD_ADDRESSES[pod1]##* }"
}

# is NAME STATE
is() {
    grep -q "^$1 .*$2" <<<"$(ctr_in task ls)"
}

# reclaimed NAME: ctr ends it and does not detach it; the agent sees that it is gone.
reclaimed() {
    ctr_in task kill -s KILL "$1"
    until_true 5 "the task $1 ends" is "$1" STOPPED
    ctr_in task rm "$1" >/dev/null
    ctr_in container rm "$1"
    if is_detached "$1"; then fail "ctr has detached $1 itself: nothing leaks, and nothing is shown"; fi
    until_true 120 "$1 is reclaimed" is_detached "$1"
    contains node2 "${POD_ADDRESSES[$1]%% *}" "$(agent_json node2 status | jq .last_reclaimed)"
    in_runtime_host node2 rm -f "/var/lib/cni/results/tartan-${POD_ID[$1]}-eth0"
}

# Seconds until the agent takes away what has no interface any more; with --full its default, a minute.
if [ -z "${FULL:-}" ]; then export TARTAN_RECLAIM_AFTER=5; fi
runtimes_up containerd_up
until_true 5 "containerd has no network" network_is false
for NODE in node1 node2; do cni "$NODE" install || fail "install on $NODE"; done
until_true 5 "containerd has a network" network_is true
in_runtime_host node1 jq ".plugins[0].capabilities.bandwidth = false | .plugins[1:] = $CHAIN" "$CONF" >"$SCRATCH/chain"
write_on node1 "$CONF" <"$SCRATCH/chain"
cri_run node1 pod1 port=8081:5003
cri_run node2 pod2
cri_run node1 pod3 ingress=20M egress=10M
ADDRESS=${POD_ADDRESSES[pod1]%% *}
contains "the CRI on pod1" "${POD_ADDRESSES[pod1]}" "$(cri node1 PodSandboxStatus "${POD_ID[pod1]}" | xargs)"
equal "what the agent says of pod1" 'default/pod1 attached' "$(agent_json node1 pods |
    jq -r --arg container "${POD_ID[pod1]}" '.pods[] | select(.container == $container) | "\(.pod) \(.state)"')"
exchange pod1 pod2
transfer pod2 pod1 "$(underlay_of node1 4)" 8081
contains "a rule of portmap" "--to-destination $ADDRESS:5003" "$(in_ns node1 iptables -t nat -S)"
contains "a rule of firewall" "-A CNI-FORWARD -s $ADDRESS/32 -j ACCEPT" "$(in_ns node1 iptables -S)"
equal "MTU, by tuning" 1400 "$(in_pod pod1 ip -j link show eth0 | jq '.[0].mtu')"
equal "bandwidth, of pod3 alone" "from 1250000, towards 2500000" "$(buckets)"
reaches pod3 "${POD_ADDRESSES[pod2]%% *}"
cri_end pod3
exchange_programs
kill -KILL "${CONTAINERD[node1]}"
until_true 10 "containerd ends" test ! -e "/proc/${CONTAINERD[node1]}/exe"
containerd_start node1
reaches pod1 "${POD_ADDRESSES[pod2]%% *}"

# No agent: it is waited for, and named.
lab stop node1
if ANSWER=$(cri node1 RunPodSandbox pod4 "/$PREFIX-runtimes" 2>&1); then fail "a pod runs without an agent"; fi
contains "run" 'the Tartan agent does not answer on' "$ANSWER"
lab start node1

# One that ends by itself, one that ctr leaves to itself, and one whose ctr is killed.
ANSWER=$(ctr_run --rm once /bin/ping -c 3 -W 5 "$ADDRESS" 2>&1) || true
contains "a container that ends by itself" "3 packets received" "$ANSWER"
sleeper -d web1
exchange web1 pod1
sleeper --rm web2
kill_inside "$CTR" ctr
reclaimed web2
reaches web1 "$ADDRESS"
reclaimed web1
cri_end pod1
cri_end pod2
runtimes_end
