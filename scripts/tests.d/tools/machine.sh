# shellcheck shell=bash
# A node of a lab as a machine with systemd: a file system, processes and control groups of its own, in the node's network
# namespace (machine_init.sh). Nothing of the host's own systemd is used or seen. Sourced after test_case.sh.
#
#   PREFIX-node1 ── machine of node1: systemd, /etc, /run, /usr/local/bin ... ── its pods
#
# The machine ends with the process that made it, however that ends.

# The first process of each machine.
declare -A MACHINE

# The hierarchy of version 2, also where the machine has those of version 1 beside it.
unified_hierarchy() {
    awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts
}

machine_group() {
    echo "$(unified_hierarchy)/$PREFIX-machine-$1"
}

# machine_up NODE: boots it; `in_machine NODE CMD...` then finds a systemd that has started all there is.
machine_up() {
    local node=$1 group parent
    group=$(machine_group "$node")
    mkdir -p "$group"
    # shellcheck disable=SC2016
    setpriv --pdeathsig KILL bash -c 'echo $$ >"$1/cgroup.procs" && exec nsenter --net="$2" \
        unshare --mount --pid --uts --ipc --cgroup --fork --kill-child "$3" "$4"' - \
        "$group" "/run/netns/$PREFIX-$node" "$TOOLS/machine_init.sh" "$node" >"$SCRATCH/$node.boot" 2>&1 </dev/null &
    parent=$!
    STARTED+=("$parent")
    remove_group_after "$parent" "$group"
    until_true 30 "systemd of $node runs" systemd_runs "$parent" || die "no machine for $node: $(cat "$SCRATCH/$node.boot")"
    MACHINE[$node]=$(pgrep -P "$parent")
    until_true 60 "the machine of $node has booted" in_machine "$node" systemctl is-system-running ||
        die "$(in_machine "$node" systemctl --failed --no-pager 2>&1)"
}

systemd_runs() {
    [ "$(cat "/proc/$(pgrep -P "$1")/comm")" = systemd ]
}

# The machine's control groups are all that outlives its processes: they go when it has ended, also when this test is killed.
remove_group_after() {
    # shellcheck disable=SC2016
    setsid --fork bash -c '
        cd /
        tail --pid="$1" -f /dev/null
        for ((wait = 0; wait < 100; wait++)); do
            [ -d "$2" ] || exit 0
            find "$2" -depth -type d -exec rmdir {} + && exit 0
            sleep 0.1
        done' - "$1" "$2" >/dev/null 2>&1 </dev/null
}

# Runs a command in a machine.
in_machine() {
    nsenter --target "${MACHINE[$1]}" --all -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 TERM=dumb PYTHONDONTWRITEBYTECODE=1 "${@:2}"
}

# machine_down NODE: as when its power fails.
machine_down() {
    kill -KILL "${MACHINE[$1]}" 2>/dev/null || true
    until_true 10 "the control group of $1 is gone" machine_gone "$1"
    unset "MACHINE[$1]"
}

machine_gone() {
    [ ! -e "$(machine_group "$1")" ]
}

# into_machine NODE MODE FILE DIRECTORY: copies a file of the host's into it.
into_machine() {
    install -D -m "$2" "$3" "/proc/${MACHINE[$1]}/root$4/$(basename "$3")"
}

# machine_node NODE: the lab's agent of this node ends without a trace, and a machine takes its place, with the lab's
# configuration where Tartan looks for it.
machine_node() {
    local file
    lab stop "$1" >/dev/null
    in_ns "$1" tartan cleanup >/dev/null
    machine_up "$1"
    for file in net-conf.json nodes.toml; do into_machine "$1" 644 "$LAB_STATE/$1/$file" /etc/tartan; done
    # As in every test: probes are off.
    echo "probe = $TARTAN_PROBE" | in_machine "$1" dd of=/etc/tartan/tartan.toml status=none
}

# unit_is NODE STATE [UNIT]
unit_is() {
    [ "$(unit_property "$1" ActiveState "${3:-tartan}")" = "$2" ]
}

# unit_property NODE PROPERTY [UNIT]
unit_property() {
    in_machine "$1" systemctl show --value --property "$2" "${3:-tartan}"
}

# forwarding NODE: its agent answers and says that it forwards.
forwarding() {
    in_machine "$1" tartan status -o json >"$SCRATCH/$1.status" || [ $? = 1 ] || return 1
    jq -e .snapshot_adopted "$SCRATCH/$1.status"
}

# machine_status NODE: what its agent says of itself; exit code 1, which means that there is a problem, is no error.
machine_status() {
    in_machine "$1" tartan status -o json || [ $? = 1 ]
}

# machine_service NODE: the process id of the service, as the machine sees it.
machine_service() {
    machine_status "$1" | jq .service_pid
}

# machine_pod NODE NAME: a network namespace that the plugin attaches, as docs/install.md says.
machine_pod() {
    in_machine "$1" ip netns add "$2"
    cni "$1" ADD "$2" >"$SCRATCH/$2.added" || die "CNI ADD of $2 on $1: $(cat "$SCRATCH/$2.added")"
}

machine_pod_gone() {
    cni "$1" DEL "$2"
    in_machine "$1" ip netns delete "$2"
}

# cni NODE VERB NAME
cni() {
    # shellcheck disable=SC2016
    in_machine "$1" env CNI_COMMAND="$2" CNI_CONTAINERID="$3" CNI_NETNS="/var/run/netns/$3" CNI_IFNAME=eth0 \
        CNI_PATH=/opt/cni/bin /opt/cni/bin/tartan-cni <<<'{ "cniVersion": "1.0.0", "name": "tartan", "type": "tartan-cni" }'
}

# start_pings NODE NAME ADDRESS: one hundred a second from a pod, in the background; stop_pings says what became of them.
start_pings() {
    in_machine "$1" ip netns exec "$2" ping -n -D -i 0.01 -W 1 "$3" >"$SCRATCH/pings" &
    PINGS=$!
    STARTED+=("$PINGS")
    until_true 5 "the first ping is answered" grep -q 'bytes from' "$SCRATCH/pings"
}

# stop_pings WHAT MILLISECONDS: the longest time without an answer is at most this.
stop_pings() {
    local longest now
    now=$(date +%s%3N)
    # A shell waits for nsenter, which waits for ping: that is to end, and to say how many it has sent.
    pkill -INT -P "$(pgrep -P "$PINGS")"
    wait "$PINGS" || true
    # A router's errors are no answers. None may come any more before the end.
    longest=$(sed -nE 's/^\[([0-9]+)\.([0-9]{3})[0-9]*\].*bytes from .*/\1\2/p' "$SCRATCH/pings" |
        awk -v now="$now" 'NR > 1 && $1 - last > most { most = $1 - last } { last = $1 }
            END { if (now - last > most) most = now - last; print most + 0 }')
    measured_at_most "$1: longest time without an answer, ms" "$2" "$longest"
}

# Of those that stop_pings has counted. What was sent behind the last that was answered may be on its way, up to 100 ms of it.
pings_lost() {
    local sent answers last
    sent=$(sed -nE 's/^([0-9]+) packets transmitted.*/\1/p' "$SCRATCH/pings")
    answers=$(grep -c 'bytes from' "$SCRATCH/pings")
    last=$(last_ping "$SCRATCH/pings")
    [ $((sent - last)) -gt 10 ] || sent=$last
    echo $((sent - answers))
}

# machine_files NODE: every file that differs from the host's, with its mode and size; directories that the host has not,
# by name. What systemd and its journal write, and caches, are no traces.
machine_files() {
    # shellcheck disable=SC2016
    in_machine "$1" bash -c '
        cd /mnt/written
        find . ! -path "./var/lib/systemd/*" ! -path "./var/cache/*" ! -path "./etc/machine-id" ! -path "./var/log/*" ! -path "./var/tmp/systemd-private-*" \
            \( -type d -printf "%y %p\n" -o -type l -printf "%y %p %l\n" -o -printf "%y %p %m %s\n" \) | sort
        find /run /tmp /dev -xdev ! -path "/run/systemd*" ! -path "/run/log*" ! -path "/dev/pts/*" ! -path "/dev/shm/*" \
            ! -path "/tmp/systemd-private-*" ! -path "/run/credentials*" ! -path "/run/netns*" -printf "%y %p\n" | sort
        find /sys/fs/cgroup/system.slice -mindepth 1 -type d -name "*tartan*"' | without_host_directories
}

# A file that is written in a directory of the host has the directory written too.
without_host_directories() {
    local kind path rest
    while read -r kind path rest; do
        if [ "$kind" = d ] && [[ $path == ./* ]] && [ -d "${path#.}" ]; then continue; fi
        echo "$kind $path${rest:+ $rest}"
    done
}

# machine_network NODE: what its network namespace holds. Counters, lifetimes and numbers that the kernel gives are no facts.
machine_network() {
    local space=$PREFIX-$1
    ip -n "$space" -j link show | jq -r '.[] | "link \(.ifname)"'
    ip -n "$space" -j address show | jq -r '.[] | .ifname as $i | .addr_info[] | "address \($i) \(.local)"'
    ip -n "$space" -4 -o route show table all | sed 's/^/route /'
    ip -n "$space" -6 -o route show table all | sed -E 's/ expires [^ ]+//; s/^/route /'
    ip -n "$space" rule show | sed 's/^/rule /'
    ip netns exec "$space" nft list ruleset | sed -E 's/\scounter packets [0-9]+ bytes [0-9]+//; s/^/nft /'
    ip netns exec "$space" sysctl -a 2>/dev/null | grep -E '^net\.ipv[46]\.(conf|ip_forward)' | grep -v stable_secret
}
