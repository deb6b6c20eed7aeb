#!/usr/bin/env bash
# What another CNI left on a node is shown, and removed where it is told to, beside a running Tartan: each thing that
# this kernel can make, as that CNI makes it. What is not that CNI's stays, what Tartan uses stays, and a CNI whose
# daemon runs is refused. The lab is afterwards as it was before; no datagram between pods is lost meanwhile.
#
#   pod1 ── node1: keeper, service, leftovers of a CNI ══ underlay ══ node2 ── pod2
# previous_cni.sh CNI...: one after another
# case: flannel
# full: calico cilium weave
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/registry.sh
. "$TOOLS/registry.sh"

ROOT=$LAB_STATE/node1
declare -A DAEMON=([flannel]=flanneld [calico]=calico-node [cilium]=cilium-agent [weave]=weaver)

node() {
    in_ns node1 "$@"
}

# The lab's facts, the older packet filter of node1, its sets and its files.
census() {
    # Tartan's own plugin is installed meanwhile.
    lab facts 2>/dev/null | grep -vE '^process |/(10-tartan.conflist|tartan-cni|cni-installed.json)$'
    node iptables-legacy-save 2>/dev/null | grep -v '^#' | sed -E 's/\[[0-9]+:[0-9]+\]//'
    node python3 "$TOOLS/sets.py" list
}

# ip_of_node: commands of ip, a line each.
ip_of_node() {
    ip -n "$PREFIX-node1" -batch -
}

# file PATH...: below the agent's root.
file() {
    local path
    for path; do
        mkdir -p "$ROOT/$(dirname "$path")"
        echo "of $CNI" >"$ROOT/$path"
    done
}

# pod_end NAME: a veth whose other end is in a namespace of its own, as a pod's.
pod_end() {
    [ -e "/run/netns/$PREFIX-old" ] || make_namespace old
    ip -n "$PREFIX-node1" link add "$1" type veth peer name "$1" netns "$PREFIX-old"
}

# chains COMMAND TABLE HOOK COMMENT CHAIN...: chains, the first of which a rule of the hook leads to.
chains() {
    local command=$1 table=$2 hook=$3 comment=$4 chain
    shift 4
    for chain; do node "$command" -t "$table" -N "$chain"; done
    node "$command" -t "$table" -A "$1" -s 10.9.0.0/16 -m comment --comment "$comment" -j RETURN
    node "$command" -t "$table" -I "$hook" -m comment --comment "$comment" -j "$1"
    [ $# = 1 ] || node "$command" -t "$table" -A "$1" -j "$2"
}

sets() {
    node python3 "$TOOLS/sets.py" create "$@"
}

# Not flannel.1: a VXLAN device of the port would be in Tartan's way.
leave_flannel() {
    ip_of_node <<'IP'
link add flannel.77 type vxlan id 77 dev eth0 dstport 18472 nolearning
address add 10.77.1.0/32 dev flannel.77
link set flannel.77 up
route add 10.77.2.0/24 via 10.77.2.0 dev flannel.77 onlink
link add flannel-v6.77 type vxlan id 77 dev eth0 dstport 18473 nolearning
link add cni0 type bridge
route add 10.244.9.0/24 via 192.0.2.2 dev eth0
IP
    chains iptables-nft nat POSTROUTING "flanneld masq" FLANNEL-POSTRTG
    chains iptables-nft filter FORWARD "flanneld forward" FLANNEL-FWD
    chains iptables-legacy nat POSTROUTING "flanneld masq" FLANNEL-POSTRTG
    node nft 'table ip flannel-ipv4 { chain postrtg { type nat hook postrouting priority srcnat; }; }'
    file etc/cni/net.d/10-flannel.conflist var/lib/cni/flannel/0123 var/lib/cni/networks/cbr0/10.77.1.2
}

leave_calico() {
    local command
    pod_end cali0123456789a
    ip_of_node <<'IP'
link set cali0123456789a up
route add 10.77.1.5/32 dev cali0123456789a scope link
link add vxlan.calico type vxlan id 4096 dev eth0 dstport 14789 nolearning
route add blackhole 10.77.1.0/26 proto 80
route add blackhole 10.77.2.0/26 proto 12
rule add not fwmark 0x100000/0x100000 lookup 1 priority 99
IP
    for command in iptables-nft iptables-legacy; do
        chains $command filter FORWARD "cali:wUHhoiAYhphO9Mso" cali-FORWARD cali-from-wl-dispatch
        node $command -A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT
    done
    chains iptables-nft nat POSTROUTING "cali:O3lYWMrLQYEMJtB5" cali-POSTROUTING
    node nft add table ip calico
    sets cali40s:abcdefgh cali40all-ipam-pools
    file etc/cni/net.d/10-calico.conflist etc/cni/net.d/calico-kubeconfig var/lib/calico/nodename
}

leave_cilium() {
    pod_end lxc0123456789ab
    ip_of_node <<'IP'
link add cilium_host type veth peer name cilium_net
link add cilium_vxlan type vxlan external dstport 18474
rule add fwmark 0x200/0xf00 lookup 2004 priority 9
-6 rule add fwmark 0x200/0xf00 lookup 2004 priority 9
route add local default dev lo table 2004
IP
    chains iptables-nft filter FORWARD "cilium-feeder: CILIUM_FORWARD" CILIUM_FORWARD OLD_CILIUM_FORWARD
    chains iptables-nft nat POSTROUTING "cilium-feeder: CILIUM_POST_nat" CILIUM_POST_nat
    sets cilium_node_set_v4
    file etc/cni/net.d/05-cilium.conflist run/cilium/state/x var/lib/cilium/bpf/x
}

leave_weave() {
    local command
    pod_end vethwepl0123456
    ip_of_node <<'IP'
link add weave type bridge
link add vethwe-bridge type veth peer name vethwe-datapath
link set vethwe-bridge master weave
link set vethwepl0123456 master weave
link add vxlan-6784 type vxlan id 7 dev eth0 dstport 16784
IP
    chains iptables-nft nat POSTROUTING "weave" WEAVE
    chains iptables-nft filter FORWARD "weave" WEAVE-NPC WEAVE-NPC-DEFAULT
    for command in iptables-nft iptables-legacy; do
        node $command -A FORWARD -o weave -j DROP
        node $command -A FORWARD -i weave ! -o weave -j ACCEPT
        node $command -A FORWARD -o weave -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    done
    sets weaver-no-masq-local weave-0123abcd
    file etc/cni/net.d/10-weave.conflist var/lib/weave/weave-netdata.db
}

# What has a name or a kind that is nearly one of a CNI's. It is on the node all the time.
leave_others() {
    local command CNI="another program"
    ip_of_node <<'IP'
link add docker0 type bridge
link add lxcbr0 type bridge
link add vxlan-1 type vxlan id 99 dev eth0 dstport 19999
link add calico0 type veth peer name veth0a1b2c3
route add 10.88.0.0/16 via 192.0.2.2 dev eth0
route add 10.89.0.0/16 via 192.0.2.2 dev eth0 proto 12
rule add fwmark 0x4000/0x4000 lookup 7 priority 98
IP
    for command in iptables-nft iptables-legacy; do
        chains $command nat POSTROUTING "kubernetes service portals" KUBE-SERVICES
        chains $command filter FORWARD "a rule that names FLANNEL-FWD, cali: and WEAVE" MINE-FORWARD
        node $command -A FORWARD -o weave2 -j ACCEPT
        # The operator's own, for Weave's bridge.
        node $command -A FORWARD -s 198.51.100.0/24 -o weave -j DROP
        node $command -A INPUT -i weave -j ACCEPT
    done
    node nft add table ip mine
    sets mine-weave
    file etc/cni/net.d/87-podman.conflist var/lib/cni/networks/podman/10.88.0.2 var/lib/other/file
}

# cleanup CODE [OPTION...]: it ends with this exit code; what it prints is in $SCRATCH/said.
cleanup() {
    local code=0
    tartan node1 cleanup --previous "$CNI" "${@:2}" >"$SCRATCH/said" 2>&1 || code=$?
    equal "exit code of cleanup --previous $CNI ${*:2}" "$1" "$code"
}

# says TEXT: what the last `cleanup` printed has it.
says() {
    grep -q "$1" "$SCRATCH/said" || fail "$CNI: '$1' is expected: $(cat "$SCRATCH/said")"
}

# rows CONDITION: how many it lists.
rows() {
    jq -r "[.leftovers[] | select($1)] | length" "$SCRATCH/said"
}

# beside PROGRAM: while it runs, it is named and nothing is removed.
beside() {
    cp "$(command -v sleep)" "$SCRATCH/$1"
    start_in node1 "$SCRATCH/$1" 60
    until_true 5 "$1 runs" grep -qx "$1" "/proc/$PID/comm"
    cleanup 1 --remove
    says "nothing was removed: .* process $PID (.*$1"
    same "the node beside $1" "$LEFT" "$(census)"
    stop "$PID"
}

# What flannel's plugin needs beside Tartan is kept, until Tartan's own is installed; also where flanneld wrote
# subnet.env, and Tartan found it right: there is no note of it then.
kept_for_the_plugin() {
    local note=$ROOT/var/lib/tartan/subnet-env.json of_plugin
    of_plugin='.outcome == "kept" and (.what == "cni-configuration" or .what == "directory")'
    cleanup 1 -o json
    equal "files that are kept" 4 "$(rows "$of_plugin")"
    mv "$note" "$SCRATCH/note"
    cleanup 1 -o json
    equal "files that are kept without a note" 4 "$(rows "$of_plugin")"
    mv "$SCRATCH/note" "$note"
    beside k3s-server
    # It warns of flannel's configuration, which sorts before its own.
    tartan node1 cni install >"$SCRATCH/installed" 2>&1 || say "tartan cni install: $(tail -n 1 "$SCRATCH/installed")"
}

# What is mounted below a directory of the CNI's stays.
mount_stays() {
    file var/lib/calico/nodename
    mkdir -p "$SCRATCH/data" "$ROOT/var/lib/calico/data"
    echo "of the operator" >"$SCRATCH/data/file"
    mount --bind "$SCRATCH/data" "$ROOT/var/lib/calico/data"
    cleanup 1 --remove
    umount "$ROOT/var/lib/calico/data"
    says 'FAILED: .*/var/lib/calico/data is a mount point'
    equal "the operator's file" "of the operator" "$(cat "$SCRATCH/data/file")"
    cleanup 0 --remove
}

previous() {
    local before kept=0
    before=$(census)
    cleanup 0
    # The agent's own subnet.env is there, and kept.
    [ "$CNI" = flannel ] || says 'nothing of .* is left'
    "leave_$CNI"
    LEFT=$(census)
    cleanup 1 -o json
    say "found: $(jq -c '[.leftovers[] | "\(.what) \(.place)"]' "$SCRATCH/said")"
    equal "rows without a reason, a place or an effect" 0 "$(rows '.why == "" or .place == "" or .effect == ""')"
    equal "what could not be read" '[]' "$(jq -c .unread "$SCRATCH/said")"
    cleanup 1
    says 'nothing was removed: --remove does that'
    same "the node after it was shown" "$LEFT" "$(census)"
    beside "${DAEMON[$CNI]}"
    if [ "$CNI" = flannel ]; then
        kept_for_the_plugin
        kept=1
    fi
    cleanup 0 --remove -o json
    equal "what failed" '[]' "$(jq -c '[.leftovers[] | select(.outcome == "failed")]' "$SCRATCH/said")"
    [ "$(rows '.outcome == "removed"')" -ge 8 ] || fail "little was removed: $(jq -c . "$SCRATCH/said")"
    equal "what is kept" $kept "$(rows '.outcome == "kept"')"
    same "the node, before $CNI and after it was removed" "$before" "$(census)"
    cleanup 0 --remove
    if [ "$CNI" = calico ]; then mount_stays; fi
}

lab_up --nodes 2
leave_others
answering pod2
steady pod1 pod2 4
for CNI in "$@"; do previous; done
none_lost 0
law_one node1
