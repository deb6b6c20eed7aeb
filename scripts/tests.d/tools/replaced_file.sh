# shellcheck shell=bash
# An agent on node1 of a lab whose program is replaced as a package does it, by another file of the name. Sourced after test_case.sh
# and kill_service.sh; the test has set BIN.

INSTALLED=$SCRATCH/bin/tartan

# install_program PROGRAM
install_program() {
    cp "$1" "$INSTALLED.new"
    mv "$INSTALLED.new" "$INSTALLED"
}

# run_installed PROGRAM: node1 runs it from the file that can be replaced.
run_installed() {
    mkdir -p "$SCRATCH/bin"
    cp "$BIN/tartan-cni" "$SCRATCH/bin/"
    install_program "$1"
    lab stop node1 >/dev/null
    # The lab starts the programs that it was set up with.
    echo "declare -g -- LAB_BIN=\"$SCRATCH/bin\"" >>"$LAB_STATE/settings"
    lab start node1 >/dev/null
}

# is_of WHAT PROCESS PROGRAM: the process runs the bytes of the program, whatever its file is called by now.
is_of() {
    if cmp -s "/proc/$2/exe" "$3"; then say "$1: of $3"; else fail "$1 is not of $3"; fi
}

# next_service SIGNAL PROGRAM OTHER: the service ends by the signal, and the next is of the program that is installed, below a keeper
# that stays, of the other.
next_service() {
    local pid
    pid=$(service_pid node1)
    kill "-$1" "$pid"
    until_true 5 "another service" another_service node1 "$pid" || return 0
    is_of "the service" "$(service_pid node1)" "$2"
    is_of "the keeper" "$(cat "$LAB_STATE/node1/pid")" "$3"
    sleep 0.2
}
