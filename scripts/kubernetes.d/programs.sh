# shellcheck shell=bash
# The cluster's programs and the runtime host of every node: where their files lie, how one is started and ended, and
# what shows that nothing of them is left. Sourced by scripts/kubernetes.
#
#   STATE/control/        the control plane: certificates, kubeconfigs, etcd's data
#   STATE/host-nodeI/     what a node's kubelet is given; base/, where its runtime host has its files
#       PROGRAM.log  PROGRAM.pid       in both: its log, and its process id as this machine sees it

KUBERNETES_BIN=${KUBERNETES_BIN:-}

find_kubernetes() {
    KUBERNETES_BIN=$(readlink -m "${KUBERNETES_BIN:-$REPOSITORY/target/kubernetes/bin}")
    kubernetes_is_built || die "$KUBERNETES_BIN has no '$(kubernetes_stamp)': run 'scripts/kubernetes build'"
    PATH=$KUBERNETES_BIN:$PATH
}

# within SECONDS CMD...: waits until the command succeeds.
within() {
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        [ "$SECONDS" -le "$end" ] || return 1
        sleep 0.1
    done
}

folder_of() {
    if [ "$1" = control ]; then echo "$STATE/control"; else echo "$STATE/host-$1"; fi
}

# program_lives NAME PROGRAM: not one that has ended and is not collected, nor another that has its number now.
program_lives() {
    local pid
    pid=$(cat "$(folder_of "$1")/$2.pid" 2>/dev/null) || return 1
    # Of one whose file was replaced: "... (deleted)".
    [[ "$(readlink "/proc/$pid/exe") " == */"$2 "* ]]
}

program_ended() {
    ! program_lives "$@"
}

# program_run NAME PROGRAM CMD...: in the background, in a session of its own. CMD or its child becomes the program.
program_run() {
    local folder
    folder=$(folder_of "$1")
    (
        cd "$folder" || exit
        exec setsid "${@:3}"
    ) </dev/null >>"$folder/$2.log" 2>&1 &
    disown
    within 10 program_began "$1" "$2" "$!" || die "$2 of $1 did not start: $(tail -n 10 "$folder/$2.log")"
}

program_began() {
    { pgrep -P "$3" || echo "$3"; } >"$(folder_of "$1")/$2.pid"
    program_lives "$1" "$2"
}

# program_answers NAME PROGRAM SECONDS CMD...: waits until the command succeeds.
program_answers() {
    local log
    log=$(folder_of "$1")/$2.log
    within "$3" "${@:4}" >"$log.answer" 2>&1 || die "$2 of $1 does not answer:
$(tail -n 5 "$log.answer")
Its log ends:
$(tail -n 25 "$log")
Take the cluster away with: scripts/kubernetes down --prefix $PREFIX"
}

# cluster_start NAME PROGRAM
cluster_start() {
    [ $# -eq 2 ] || wrong "start needs a name and a program: scripts/kubernetes start control kube-apiserver"
    if program_lives "$1" "$2"; then die "$2 of $1 runs already"; fi
    if [ "$1" = control ]; then control_start "$2"; else member_start "$1" "$2"; fi
}

# cluster_stop NAME PROGRAM [SIGNAL]: waits for its end, at most 20 seconds.
cluster_stop() {
    [ $# -ge 2 ] || wrong "stop needs a name and a program: scripts/kubernetes stop control kube-apiserver"
    program_lives "$1" "$2" || die "$1 runs no $2"
    kill -"${3:-TERM}" "$(cat "$(folder_of "$1")/$2.pid")"
    within 20 program_ended "$1" "$2" || die "$2 of $1 (process $(cat "$(folder_of "$1")/$2.pid")) does not end"
}

# host_up NODE: the runtime host of a node, and the control groups of its pods.
host_up() {
    local folder=$STATE/host-$1 place
    mkdir -p "$folder/base"
    program_run "$1" catatonit nsenter --net="/run/netns/$PREFIX-$1" unshare --mount --pid --fork --kill-child \
        --mount-proc "$LAB_HOME/kubernetes.d/host.sh" "$folder/base" "$STATE"
    awk '$2 ~ "^/sys/fs/cgroup" && $3 ~ /^cgroup/ { print $2 }' /proc/mounts |
        xargs -I '{}' mkdir -p "{}/$PREFIX-kubernetes/$1"
    # A group of processors is none before it has some.
    for place in "/sys/fs/cgroup/cpuset/$PREFIX-kubernetes"/{,"$1/"}cpuset.{cpus,mems}; do
        [ ! -e "$place" ] || [ -n "$(cat "$place")" ] || cat "${place%/*}/../${place##*/}" >"$place"
    done
}

# in_host NODE CMD...: in the runtime host of a node, and in its network namespace.
in_host() {
    nsenter --target "$(cat "$STATE/host-$1/catatonit.pid")" --mount --pid --net -- \
        env PATH="$PATH" "${@:2}"
}

# host_run NODE PROGRAM OPTION...: a kubelet would wait for the answer of a cloud that is not there.
host_run() {
    program_run "$1" "$2" nsenter --target "$(cat "$STATE/host-$1/catatonit.pid")" --mount --pid --net -- \
        env AWS_EC2_METADATA_DISABLED=true "${@:2}"
}

# One that is not empty yet is tried again.
groups_down() {
    within 10 remove_groups || die "control groups of the cluster are not empty: $(groups | tail -n 3)"
}

remove_groups() {
    groups | sort -r | xargs -r rmdir 2>/dev/null
}

groups() {
    find /sys/fs/cgroup -type d -path "*/$PREFIX-kubernetes" -o -type d -path "*/$PREFIX-kubernetes/*"
}

# What the machine holds, beside what a lab's census says: one fact a line.
kubernetes_census() {
    local path
    # Its processes too, once it has gone down.
    census
    groups | sed 's/^/group /'
    sysctl -e vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys \
        kernel.keys.root_maxbytes net.netfilter.nf_conntrack_max net.netfilter.nf_conntrack_tcp_timeout_established
    for path in /etc/cni/net.d /etc/kubernetes /opt/cni/bin /var/lib/{cni,kubelet} /var/log/pods /run/containerd; do
        if [ -e "$path" ]; then echo "path $path: $(find "$path" | wc -l)"; fi
    done
    awk -v state="$STATE/" 'index($5, state) == 1 { print "mount " $5 }' /proc/self/mountinfo
}
