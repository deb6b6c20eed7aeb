# shellcheck shell=bash
# A node of a lab as a machine with systemd: a file system, processes and control groups of its own, in the node's
# network namespace (machine_init.sh). Nothing of the host's own systemd is used or seen. Sourced after test_case.sh.
#
#   pod0 ── PREFIX-node1: systemd, tartan.service, /etc, /run ... ══ underlay ══ node2: tartan ── pod1
#
# The machine ends with the process that made it, however that ends.

. "$TOOLS/held_load.sh"
. "$TOOLS/kill_service.sh"
export FAMILIES=(4) LOAD_FROM=pod0 LOAD_TO=pod1
DEPLOY=$(readlink -f "$SCRIPTS/../deploy")

# In the hierarchy of version 2, also where the host has those of version 1 beside it.
machine_group() {
    awk -v group="$PREFIX-machine-$1" '$3 == "cgroup2" { print $2 "/" group; exit }' /proc/mounts
}

# machine_up NODE: boots it; `in_machine CMD...` then finds a systemd that has started all there is.
# MACHINE is its first process, and ROOT its root as the host sees it.
machine_up() {
    local group
    group=$(machine_group "$1")
    mkdir -p "$group"
    # shellcheck disable=SC2016
    setpriv --pdeathsig KILL bash -c 'echo $$ >"$1/cgroup.procs" && exec nsenter --net="$2" \
        unshare --mount --pid --uts --ipc --cgroup --fork --kill-child "$3" "$4"' - \
        "$group" "/run/netns/$PREFIX-$1" "$TOOLS/machine_init.sh" "$1" >"$SCRATCH/boot" 2>&1 </dev/null &
    PARENT=$!
    STARTED+=("$PARENT")
    # Its control groups are all that outlives its processes: they go when it has ended, also when this test is killed.
    # shellcheck disable=SC2016
    setsid --fork bash -c 'cd /; tail --pid="$1" -f /dev/null
        for ((wait = 0; wait < 100; wait++)); do
            if find "$2" -depth -type d -exec rmdir {} + || [ ! -d "$2" ]; then exit; fi
            sleep 0.1
        done' - "$PARENT" "$group" >/dev/null 2>&1 </dev/null
    until_true 30 "systemd of $1 runs" pgrep -P "$PARENT" -x systemd || die "no machine for $1: $(cat "$SCRATCH/boot")"
    MACHINE=$(pgrep -P "$PARENT")
    ROOT=/proc/$MACHINE/root
    until_true 60 "the machine of $1 has booted" in_machine systemctl is-system-running ||
        die "$(in_machine systemctl --failed --no-pager 2>&1)"
}

in_machine() {
    nsenter --target "$MACHINE" --all -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 TERM=dumb PYTHONDONTWRITEBYTECODE=1 "$@"
}

# machine_down: as where the test is killed: with its parent it ends, and nothing of it is left.
machine_down() {
    stop "$PARENT" KILL
    until_true 10 "the machine and its control group are gone" test ! -e "$(machine_group node1)" || true
}

# A lab whose node1 is a machine, without a trace of the lab's agent.
machine_lab() {
    lab_up --pods 0
    lab attach node2 >/dev/null
    lab stop node1 >/dev/null
    in_ns node1 tartan cleanup >/dev/null
    machine_up node1
    configure_machine
    # As in every test: probes are off.
    echo "probe = $TARTAN_PROBE" >"$ROOT/etc/tartan/tartan.toml"
}

# The lab's configuration, where Tartan looks for it.
configure_machine() {
    install -D -m 644 -t "$ROOT/etc/tartan" "$LAB_STATE/node1/net-conf.json" "$LAB_STATE/node1/nodes.toml"
}

# What docs/install.md has one do from a clone that is built.
install_by_hand() {
    configure_machine
    install -t "$ROOT/usr/local/bin" "$BIN/tartan" "$BIN/tartan-cni"
    install -m 644 -t "$ROOT/etc/systemd/system" "$DEPLOY/tartan.service"
    install -m 644 -t "$ROOT/etc/systemd/network" "$DEPLOY/network/10-tartan.network"
    drop_in "$DEPLOY/network/tartan-networkd.conf" systemd/networkd.conf.d/tartan.conf
    in_machine tartan manual --dir /usr/local/share >/dev/null
    in_machine systemctl daemon-reload
    in_machine systemctl --quiet enable --now tartan
    install_plugin
}

install_plugin() {
    machine_forwards 0
    in_machine tartan cni install >/dev/null || fail "tartan cni install ended with $?"
}

# drop_in FILE PLACE: below the machine's /etc.
drop_in() {
    install -D -m 644 "$1" "$ROOT/etc/$2"
}

# property NAME...: of tartan.service.
property() {
    local name
    for name; do in_machine systemctl show --value --property "$name" tartan; done | paste -sd ' '
}

# Of node1's agent the shared functions ask in the machine; what they know of its processes are the host's numbers.
tartan() {
    if [ "$1" = node1 ]; then in_machine tartan "${@:2}"; else in_ns "$1" tartan "${@:2}"; fi
}

keeper_of() {
    pgrep -o -x tartan --ns "$MACHINE" --nslist pid
}

no_problems() {
    equal "problems that the agent reports" '[]' "$(agent_json node1 status | jq -c '[.problems[].code]')"
}

forwarding() {
    agent_json node1 status | jq -e .snapshot_adopted
}

# machine_forwards PID: by a keeper that is not PID any more.
machine_forwards() {
    until_true 15 "node1 forwards" other_keeper "$1" ||
        die "$(in_machine journalctl --no-pager -u tartan | tail -n 30)"
}

other_keeper() {
    local now
    now=$(property MainPID)
    [ "$now" != 0 ] && [ "$now" != "$1" ] && forwarding
}

# machine_pod ADD|DEL: pod0, a network namespace that the plugin attaches, as docs/install.md says, or detaches. It has
# a name of the lab's too, by which the load is started in it.
machine_pod() {
    if [ "$1" = ADD ]; then
        in_machine ip netns add pod0
        touch "/run/netns/$PREFIX-pod0"
        mount --bind "$ROOT/run/netns/pod0" "/run/netns/$PREFIX-pod0"
        echo "$PREFIX-pod0 $(stat -L -c %i "/run/netns/$PREFIX-pod0")" >>"$LAB_STATE/namespaces"
    fi
    in_machine env CNI_COMMAND="$1" CNI_CONTAINERID=pod0 CNI_NETNS=/var/run/netns/pod0 CNI_IFNAME=eth0 \
        CNI_PATH=/opt/cni/bin /opt/cni/bin/tartan-cni >"$SCRATCH/cni" \
        <<<'{ "cniVersion": "1.0.0", "name": "tartan", "type": "tartan-cni" }' || die "CNI $1: $(cat "$SCRATCH/cni")"
    [ "$1" = ADD ] || in_machine ip netns delete pod0
}

# reaches_peer WHEN
reaches_peer() {
    equal "pings to pod1, $1" "5 received" "$(in_ns pod0 python3 "$TOOLS/pings.py" "$(address_of pod1)" 5 0.02 20)"
}

# under_load WHAT MILLISECONDS CMD...: datagrams go from pod0 to pod1 while CMD runs, and the longest time without an
# answer is at most this. LOST is how many had none.
under_load() {
    say "$1"
    start_datagrams pod0 pod1
    mark
    "${@:3}"
    sleep 0.5
    stop_datagrams
    measured_at_most "$1: longest time without an answer, ms" "$2" \
        "$(sed -n 's/^pauses //p' "$SCRATCH/sent" | tr ' ' '\n' | sort -n | tail -n 1)"
}

# Every file that differs from the host's, with its mode and size; directories that the host has not, by name: one of
# its own is written too where a file in it is; and the network. What systemd, its journal and dpkg write, caches, the
# test's own files and configuration, and the directories of CNI, which stay, are no traces.
traces() {
    # shellcheck disable=SC2016
    in_machine bash -c 'cd /mnt/written
        find . -type d -printf "%y %p\n" -o -type l -printf "%y %p %l\n" -o -printf "%y %p %m %s\n"
        find /run /tmp /dev -xdev -printf "%y %p\n"
        find /sys/fs/cgroup/system.slice -mindepth 1 -type d -name "*tartan*"' |
        grep -vE -e ' \./(root|etc/(tartan|machine-id)|var/(log|cache|lib/(dpkg|systemd)))(/| |$)' \
            -e ' /(run/(systemd|log|credentials|netns)|dev/(pts|shm)/)|/systemd-private-' \
            -e ' \./(opt|etc)/cni(/bin|/net.d)?( |$)' | sort |
        while read -r kind path rest; do
            [ "$kind" = d ] && [[ $path == ./* ]] && [ -d "${path#.}" ] || echo "$kind $path${rest:+ $rest}"
        done
    machine_network node1
}

# machine_network NODE: what its network namespace holds. Counters, lifetimes and numbers of the kernel's are no facts.
machine_network() {
    local space=$PREFIX-$1
    ip -n "$space" -j address show | jq -r '.[] | "link \(.ifname)", "address \(.ifname) \(.addr_info[].local)"'
    ip -n "$space" -4 -o route show table all | sed 's/^/route /'
    ip -n "$space" -6 -o route show table all | sed -E 's/ expires [^ ]+//; s/^/route /'
    ip -n "$space" rule show | sed 's/^/rule /'
    ip netns exec "$space" nft list ruleset | sed -E 's/\scounter packets [0-9]+ bytes [0-9]+//; s/^/nft /'
    ip netns exec "$space" sysctl -a 2>/dev/null | grep -E '^net\.ipv[46]\.(conf|ip_forward)' | grep -v stable_secret
}
