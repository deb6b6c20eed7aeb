# shellcheck shell=bash
# The runtime host of every node, the control groups of its pods, and what shows that nothing of them is left. Sourced by
# scripts/kubernetes.

# host_up NUMBER
host_up() {
    local folder=$STATE/host-node$1 parent wait group
    mkdir -p "$folder/base"
    (
        cd "$folder" || exit
        exec setsid nsenter --net="/run/netns/$PREFIX-node$1" unshare --mount --pid --fork --kill-child --mount-proc \
            "$LAB_HOME/kubernetes.d/host.sh" "$folder/base" "$STATE"
    ) </dev/null >>"$folder/catatonit.log" 2>&1 &
    parent=$!
    disown
    for ((wait = 0; wait < 100; wait++)); do
        pgrep -P "$parent" >"$folder/catatonit.pid" || true
        if program_lives "node$1" catatonit; then break; fi
        sleep 0.1
    done
    program_lives "node$1" catatonit || die "node$1 has no runtime host: $(tail -n 5 "$folder/catatonit.log")"
    for group in $(hierarchies); do mkdir -p "$group/$PREFIX-kubernetes/node$1"; done
    # A group of processors is none before it has some.
    for group in "$PREFIX-kubernetes" "$PREFIX-kubernetes/node$1"; do
        copy_processors "/sys/fs/cgroup/cpuset/$group"
    done
}

# The mount points of the control groups' hierarchies: the one of version 2, or all of version 1.
hierarchies() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        echo /sys/fs/cgroup
    else
        awk '$3 == "cgroup" { print $2 }' /proc/mounts
    fi
}

copy_processors() {
    local file
    [ -e "$1/cpuset.mems" ] || return 0
    for file in cpuset.cpus cpuset.mems; do
        [ -n "$(cat "$1/$file")" ] || cat "$(dirname "$1")/$file" >"$1/$file"
    done
}

host_lives() {
    program_lives "$1" catatonit
}

# in_host NAME CMD...: in the runtime host of a node, and in its network namespace.
in_host() {
    nsenter --target "$(cat "$STATE/host-$1/catatonit.pid")" --mount --pid --net -- \
        env PATH="${LAB_BIN:+$LAB_BIN:}$KUBERNETES_BIN:$PATH" TARTAN_ROOT="$STATE/$1" "${@:2}"
}

# host_run NAME PROGRAM OPTION...: in the background, with a session of its own. A kubelet would wait for the answer of a
# cloud that is not there.
host_run() {
    local name=$1 program=$2 folder=$STATE/host-$1 path entered wait
    shift 2
    path=$KUBERNETES_BIN/$program
    [ -x "$path" ] || path=$(command -v "$program")
    (
        cd "$folder" || exit
        exec setsid nsenter --target "$(cat "$folder/catatonit.pid")" --mount --pid --net -- \
            env AWS_EC2_METADATA_DISABLED=true "$path" "$@"
    ) </dev/null >>"$folder/$program.log" 2>&1 &
    entered=$!
    disown
    for ((wait = 0; wait < 50; wait++)); do
        pgrep -P "$entered" >"$folder/$program.pid" || true
        if program_lives "$name" "$program"; then return 0; fi
        sleep 0.1
    done
    die "$program of $name did not start: $(tail -n 10 "$folder/$program.log")"
}

# note_hosts: the process namespaces of all runtime hosts, while their first processes are known.
note_hosts() {
    local file
    HOST_INODES=
    for file in "$STATE"/host-*/catatonit.pid; do
        [ -e "$file" ] || continue
        file=${file#"$STATE/host-"}
        if host_lives "${file%%/*}"; then
            HOST_INODES+=" $(stat -L -c %i "/proc/$(cat "$STATE/host-$file")/ns/pid")"
        fi
    done
}

host_processes() {
    { stat -c %N /proc/[0-9]*/ns/pid 2>/dev/null || true; } |
        awk -F"'" -v inodes="$HOST_INODES" '
            BEGIN { split(inodes, list, " "); for (i in list) ours["pid:[" list[i] "]"] }
            $4 in ours { split($2, path, "/"); print path[3] }'
}

hosts_down() {
    local file
    for file in "$STATE"/host-*/catatonit.pid; do
        [ -e "$file" ] || continue
        file=${file#"$STATE/host-"}
        host_down "${file%%/*}"
    done
}

# host_down NAME: its first process takes all others with it, those of pods too.
host_down() {
    local wait
    if ! host_lives "$1"; then return 0; fi
    kill -KILL "$(cat "$STATE/host-$1/catatonit.pid")" 2>/dev/null || true
    for ((wait = 0; wait < 100; wait++)); do
        host_lives "$1" || return 0
        sleep 0.1
    done
    die "the runtime host of $1 does not end"
}

# groups_down [NAME]: of a node, or all. One that is not empty yet is tried again, at most 10 seconds.
groups_down() {
    local wait
    for ((wait = 0; wait < 100; wait++)); do
        groups "${1:-}" | sort -r | xargs -r rmdir 2>/dev/null && return 0
        sleep 0.1
    done
    die "control groups of the cluster are not empty: $(groups "${1:-}" | tail -n 3)"
}

groups() {
    find /sys/fs/cgroup -type d -path "*/$PREFIX-kubernetes${1:+/$1}" -o -type d -path "*/$PREFIX-kubernetes${1:+/$1}/*"
}

# What the machine holds, beside what a lab's census says: one fact a line.
kubernetes_census() {
    local path
    census
    groups | sed 's/^/group /'
    for path in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
        kernel/keys/root_maxbytes net/netfilter/nf_conntrack_max net/netfilter/nf_conntrack_tcp_timeout_established; do
        if [ -e "/proc/sys/$path" ]; then echo "sysctl $path $(cat "/proc/sys/$path")"; fi
    done
    for path in /etc/cni/net.d /etc/kubernetes /opt/cni/bin /var/lib/cni /var/lib/kubelet /var/log/pods /run/containerd; do
        if [ -e "$path" ]; then echo "path $path: $(find "$path" | wc -l)"; fi
    done
    awk -v state="$STATE/" 'index($5, state) == 1 { print "mount " $5 }' /proc/self/mountinfo
    [ -n "${HOST_INODES+noted}" ] || return 0
    for path in $(host_processes); do
        echo "process $path of a node: $(tr '\0' ' ' <"/proc/$path/cmdline" 2>/dev/null)"
    done
    { grep -slF "$STATE/" /proc/[0-9]*/cmdline || true; } | while IFS= read -r path; do
        case $(readlink "${path%/cmdline}/exe") in
        */etcd* | */kube* | */containerd* | */catatonit* | */nsenter*) echo "process $path: $(tr '\0' ' ' <"$path" 2>/dev/null)" ;;
        esac
    done
}
