# shellcheck shell=bash
# The cluster's programs: where their files lie, how one is started and ended. Sourced by scripts/kubernetes.
#
#   STATE/control/        the control plane: certificates, kubeconfigs, etcd's data
#   STATE/host-nodeI/     what a node's kubelet is given; base/, where its runtime host has its files
#       PROGRAM.log  PROGRAM.pid       in both: its log, and its process id as this machine sees it
#   STATE/nodeI/          Tartan's --root, as in a lab

KUBERNETES_BIN=${KUBERNETES_BIN:-}

die() {
    echo "scripts/kubernetes: $*" >&2
    exit 1
}

wrong() {
    echo "scripts/kubernetes: $*" >&2
    exit 2
}

find_kubernetes() {
    KUBERNETES_BIN=$(readlink -m "${KUBERNETES_BIN:-$REPOSITORY/target/kubernetes/bin}")
    kubernetes_is_built || die "$KUBERNETES_BIN has no '$(kubernetes_stamp)': run 'scripts/kubernetes build'"
}

folder_of() {
    case $1 in
    control) echo "$STATE/control" ;;
    *) echo "$STATE/host-$1" ;;
    esac
}

# pid_file NAME PROGRAM: Tartan's keeper has its own, as in a lab.
pid_file() {
    case $2 in
    tartan) echo "$STATE/$1/pid" ;;
    *) echo "$(folder_of "$1")/$2.pid" ;;
    esac
}

# program_lives NAME PROGRAM: not one that has ended and is not collected, nor another that has its number now.
program_lives() {
    local pid
    pid=$(cat "$(pid_file "$1" "$2")" 2>/dev/null) || return 1
    case $(readlink "/proc/$pid/exe") in
    */"$2" | */"$2 (deleted)") ;;
    *) return 1 ;;
    esac
}

# program_stop NAME PROGRAM SIGNAL: waits for its end, at most 20 seconds.
program_stop() {
    local wait pid
    program_lives "$1" "$2" || die "$1 runs no $2: see 'scripts/kubernetes list --prefix $PREFIX'"
    pid=$(cat "$(pid_file "$1" "$2")")
    kill -"$3" "$pid"
    for ((wait = 0; wait < 200; wait++)); do
        program_lives "$1" "$2" || return 0
        sleep 0.1
    done
    die "$2 of $1 (process $pid) does not end"
}

# program_answers NAME PROGRAM SECONDS CMD...: waits until the command succeeds, for as long as the program lives.
program_answers() {
    local name=$1 program=$2 end=$((SECONDS + $3)) log
    shift 3
    log=$(folder_of "$name")/$program.log
    while [ "$SECONDS" -lt "$end" ]; do
        if "$@" >"$log.answer" 2>&1; then
            rm -f "$log.answer"
            return 0
        fi
        program_lives "$name" "$program" || break
        sleep 0.2
    done
    die "$program of $name does not answer:
$(tail -n 5 "$log.answer")
Its log ends:
$(tail -n 25 "$log")
Take the cluster away with: scripts/kubernetes down --prefix $PREFIX"
}

# program_began NAME PROGRAM: waits until the process has become the program, which is at once.
program_began() {
    local wait
    for ((wait = 0; wait < 50; wait++)); do
        if program_lives "$1" "$2"; then return 0; fi
        sleep 0.1
    done
    die "$2 of $1 did not start: $(tail -n 10 "$(folder_of "$1")/$2.log")"
}
