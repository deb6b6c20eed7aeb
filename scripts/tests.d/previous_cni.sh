#!/usr/bin/env bash
# What flannel left on a node is shown, and removed where it is told to, beside a running Tartan: each thing that this
# kernel can make, as flannel makes it. What is not flannel's stays, what Tartan uses stays, and beside its daemon
# nothing goes. The lab is afterwards as it was before; no datagram between pods is lost meanwhile. (How things of other
# CNIs are known, cargo's tests of the agent's module `previous` show.)
#
#   pod1 ── node1: keeper, service, leftovers ══ underlay ══ node2 ── pod2
# case:
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/registry.sh"

ROOT=$LAB_STATE/node1

# The lab's facts and the older packet filter of node1. Tartan's own plugin is installed meanwhile.
census() {
    lab facts | grep -vE '^process |/(10-tartan.conflist|tartan-cni|cni-installed.json)$'
    in_ns node1 iptables-legacy-save 2>/dev/null | grep -v '^#' | sed -E 's/\[[0-9]+:[0-9]+\]//'
}

# chain COMMAND TABLE HOOK COMMENT CHAIN: to which a rule of the hook leads.
chain() {
    in_ns node1 "$1" -t "$2" -N "$5"
    in_ns node1 "$1" -t "$2" -A "$5" -s 10.9.0.0/16 -m comment --comment "$4" -j RETURN
    in_ns node1 "$1" -t "$2" -I "$3" -m comment --comment "$4" -j "$5"
}

# files PATH...: below the agent's root.
files() {
    local path
    for path; do
        mkdir -p "$ROOT/$(dirname "$path")"
        echo another >"$ROOT/$path"
    done
}

# Not flannel.1: a VXLAN device of the port would be in Tartan's way.
leave_flannel() {
    ip -n "$PREFIX-node1" -batch - <<'IP'
link add flannel.77 type vxlan id 77 dev eth0 dstport 18472 nolearning
address add 10.77.1.0/32 dev flannel.77
link set flannel.77 up
route add 10.77.2.0/24 via 10.77.2.0 dev flannel.77 onlink
link add flannel-v6.77 type vxlan id 77 dev eth0 dstport 18473 nolearning
link add cni0 type bridge
route add 10.244.9.0/24 via 192.0.2.2 dev eth0
IP
    chain iptables-nft nat POSTROUTING "flanneld masq" FLANNEL-POSTRTG
    chain iptables-nft filter FORWARD "flanneld forward" FLANNEL-FWD
    chain iptables-legacy nat POSTROUTING "flanneld masq" FLANNEL-POSTRTG
    in_ns node1 nft 'table ip flannel-ipv4 { chain postrtg { type nat hook postrouting priority srcnat; }; }'
    files etc/cni/net.d/10-flannel.conflist var/lib/cni/flannel/0123 var/lib/cni/networks/cbr0/10.77.1.2
}

# What has a name or a kind that is nearly one of flannel's. It is on the node all the time.
leave_others() {
    local command
    ip -n "$PREFIX-node1" -batch - <<'IP'
link add docker0 type bridge
link add vxlan-1 type vxlan id 99 dev eth0 dstport 19999
route add 10.88.0.0/16 via 192.0.2.2 dev eth0
route add 10.89.0.0/16 via 192.0.2.2 dev eth0 proto 12
rule add fwmark 0x4000/0x4000 lookup 7 priority 98
IP
    for command in iptables-nft iptables-legacy; do
        chain $command nat POSTROUTING "kubernetes service portals" KUBE-SERVICES
        chain $command filter FORWARD "a rule that names FLANNEL-FWD" MINE-FORWARD
    done
    in_ns node1 nft add table ip mine
    files etc/cni/net.d/87-podman.conflist var/lib/cni/networks/podman/10.88.0.2 var/lib/other/file
}

# cleanup CODE [OPTION...]: it ends with this exit code; what it prints is in $SCRATCH/said.
cleanup() {
    local code=0
    tartan node1 cleanup --previous flannel "${@:2}" >"$SCRATCH/said" 2>&1 || code=$?
    equal "exit code of cleanup --previous flannel ${*:2}" "$1" "$code"
}

# rows COUNT CONDITION: so many it lists.
rows() {
    equal "rows where $2" "$1" "$(jq "[.leftovers[] | select($2)] | length" "$SCRATCH/said")"
}

# beside PROGRAM: while it runs, it is named and nothing is removed.
beside() {
    cp "$(command -v sleep)" "$SCRATCH/$1"
    start_in node1 "$SCRATCH/$1" 60
    until_true 5 "$1 runs" grep -qx "$1" "/proc/$PID/comm"
    cleanup 1 --remove
    grep -q "nothing was removed: .* process $PID (.*$1" "$SCRATCH/said" || fail "not $1: $(cat "$SCRATCH/said")"
    same "the node beside $1" "$LEFT" "$(census)"
    stop "$PID"
}

lab_up --nodes 2
leave_others
answering pod2
steady pod1 pod2 4
BEFORE=$(census)
cleanup 0
leave_flannel
LEFT=$(census)
[ "$LEFT" != "$BEFORE" ] || fail "flannel has left nothing: nothing is shown by its removal"
# What flannel's plugin needs beside Tartan is kept, until Tartan's own is installed.
cleanup 1 -o json
rows 0 '.why == "" or .place == "" or .effect == ""'
rows 4 '.outcome == "kept" and (.what == "cni-configuration" or .what == "directory")'
equal "what could not be read" '[]' "$(jq -c .unread "$SCRATCH/said")"
same "the node after it was shown" "$LEFT" "$(census)"
beside flanneld
beside k3s-server
tartan node1 cni install >"$SCRATCH/installed" 2>&1 || say "tartan cni install: $(tail -n 1 "$SCRATCH/installed")"
cleanup 0 --remove -o json
rows 0 '.outcome == "failed"'
# The agent's own subnet.env.
rows 1 '.outcome == "kept"'
same "the node, before flannel and after it was removed" "$BEFORE" "$(census)"
cleanup 0 --remove
none_lost 0
law_one node1
