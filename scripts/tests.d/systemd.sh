#!/usr/bin/env bash
# The unit under a real systemd (tools/machine.sh): installed as docs/install.md says, with all that hardens it, it
# forwards; reload, `tartan upgrade`, a crash of the service and of the keeper, restart, stop and start do what
# deploy/README.md says, under load; networkd leaves the device alone; scripts/uninstall leaves the machine as it was,
# also when it or the installation before it was killed at any step.
#
# systemd.sh uninstall
# systemd.sh unit ROUNDS: so often it crashes and restarts
# alone unit: it measures pauses
# case: unit 1
# case: uninstall
# full: unit 50
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/machine.sh"

# What systemd-analyze finds open must be what deploy/README.md argues, no more and no less.
exposure() {
    # shellcheck disable=SC2016
    same "what is left open, and what deploy/README.md argues" \
        "$(sed -nE 's/^\| `([^`]+)` \| [0-9.]+ \| .*/\1/p' "$DEPLOY/README.md" | sed 's/\\|/|/g' | sort | grep .)" \
        "$(in_machine systemd-analyze security --no-pager --json=short tartan.service |
            jq -r '.[] | select(.set == false and .exposure != null and (.exposure | tonumber) > 0) | .name' | sort)"
}

# Of keeper and service: capabilities (effective, bounding), no new privileges, and filter.
privileges() {
    sed -nE 's/^(CapEff|CapBnd|NoNewPrivs|Seccomp):\s*//p' "/proc/$(keeper_of)/status" \
        "/proc/$(service_of node1)/status" | paste -sd ' '
}

unit() {
    local processes
    equal "systemd-analyze verify" '' "$(in_machine systemd-analyze verify /etc/systemd/system/tartan.service 2>&1)"
    exposure
    # What the agent has: one capability, a filter of system calls, no way to gain more.
    equal "privileges of the service" "0000000000001000 0000000000001000 1 2" "$(privileges | cut -d ' ' -f 5-)"
    # Where it refuses these, threads keep files that they would renounce, and nothing says so.
    equal "calls of Landlock that the unit allows" "landlock_create_ruleset landlock_restrict_self" \
        "$(property SystemCallFilter | tr ' ' '\n' | grep landlock | sort | paste -sd ' ')"
    no_problems
    machine_pod ADD
    reaches_peer "after the start"
    start_load
    processes="$(keeper_of) $(service_of node1)"
    under_load "reload" 1000 reloaded
    equal "keeper and service after a reload" "$processes" "$(keeper_of) $(service_of node1)"
    # The tests' programs are slow, and the machine is shared.
    under_load "upgrades" 500 upgrades
    equal "datagrams lost" 0 "$LOST"
    equal "main process, restarts, state and store of the unit" "$SEEN" "$(seen_by_systemd)"
    equal "repairs" 0 "$(agent_json node1 status | jq .repairs)"
    # The new keeper says every second that it works.
    SEEN=$(property WatchdogTimestampMonotonic)
    until_true 5 "systemd hears of the keeper" hears_since "$SEEN" || true
    no_problems
    crashes
    stop_and_start
    networkd
    machine_pod DEL
}

reloaded() {
    in_machine systemctl reload tartan
    until_true 5 "the agent has read its files again" in_machine journalctl --quiet --unit tartan --grep sighup || true
}

# Keeper and service are replaced below all that hardens the unit: by a file beside the one that runs, and by the file
# that is replaced, as a package does it.
upgrades() {
    local next=/usr/local/lib/tartan-next/tartan
    install -D -t "$ROOT$(dirname "$next")" "$BIN/tartan"
    SEEN=$(seen_by_systemd)
    upgrade "$next" --program "$next"
    install "$BIN/tartan" "$ROOT/usr/local/bin/tartan.new"
    mv "$ROOT/usr/local/bin/tartan"{.new,}
    upgrade /usr/local/bin/tartan
    not_seen /root/tartan-next
    not_seen /tmp/tartan-next
}

# What would differ after a restart, or where systemd took a descriptor for broken.
seen_by_systemd() {
    property MainPID NRestarts ActiveState SubState StatusText ExecMainStartTimestampMonotonic NFileDescriptorStore
}

# upgrade PROGRAM [ARGUMENT]...: service and keeper are of it afterwards, and as restricted as before.
upgrade() {
    local service rights
    service=$(service_of node1)
    rights=$(privileges)
    mark
    tartan node1 upgrade -o json "${@:2}" >"$SCRATCH/upgrade" 2>&1 || fail "tartan upgrade ${*:2} ended with $?"
    equal "outcome for service and keeper" '["upgraded",true,null]' \
        "$(jq -c '[.outcome, .keeper, .reason]' "$SCRATCH/upgrade" || cat "$SCRATCH/upgrade")"
    another_service node1 "$service" >/dev/null || fail "the service is the same process"
    equal "programs of keeper and service" "$1 $1" \
        "$(readlink "/proc/$(keeper_of)/exe" "/proc/$(service_of node1)/exe" | paste -sd ' ')"
    equal "privileges of keeper and service" "$rights" "$(privileges)"
}

# not_seen PLACE: where the unit sees no program, the command says so, and all goes on.
not_seen() {
    local service code=0
    service=$(service_of node1)
    in_machine install /usr/local/bin/tartan "$1"
    tartan node1 upgrade -o json --program "$1" >"$SCRATCH/upgrade" 2>&1 || code=$?
    equal "code, outcome and reason of an upgrade to $1, and the service" "1 unchanged true $service" "$code $(jq -r \
        '"\(.outcome) \(.reason | contains("the systemd unit does not see"))"' "$SCRATCH/upgrade") $(service_of node1)"
    in_machine rm "$1"
}

hears_since() {
    [ "$(property WatchdogTimestampMonotonic)" -gt "$1" ]
}

# Each time the keeper replaces a service that is killed, and systemd a keeper, which takes the overlay's sockets from
# it. A restart loses no datagram, no connection ends, and nothing is left open.
crashes() {
    local round overlay device left
    note_held node1
    device=$(device_and_routes node1)
    left=$(left_by_unit)
    for ((round = 1; round <= ROUNDS; round++)); do
        under_load "crash of the service" 1000 kill_service node1
        equal "keeper, state and restarts" "$KEEPER active 0" "$(property MainPID ActiveState NRestarts)"
        # systemd waits 500 ms.
        under_load "crash of the keeper" 1500 replaced kill -KILL "$KEEPER"
        equal "state and restarts, which a restart by hand resets" "active 1" "$(property ActiveState NRestarts)"
        overlay=$(sockets)
        under_load "restart" 300 replaced systemctl restart tartan
        equal "datagrams lost" 0 "$LOST"
        equal "the socket of the overlay, which systemd kept" "ino:${overlay#ino:}" "$(sockets)"
        all_go_on "after round $round"
    done
    load_survived
    still_held node1
    same "store of systemd, processes, files, network and records of pods" "$left" "$(left_by_unit)"
    same "device, addresses and routes of node1" "$device" "$(device_and_routes node1)"
    law_one node1
    no_problems
}

# The inodes of the sockets that receive from other nodes.
sockets() {
    ip netns exec "$PREFIX-node1" ss -Hlune 'sport = :8472' | grep -o 'ino:[0-9]*' | sort | paste -sd ' '
}

# replaced CMD...: after which another keeper takes the place of KEEPER.
replaced() {
    in_machine "$@"
    machine_forwards "$KEEPER"
    KEEPER=$(property MainPID)
}

# Beside what it holds. Sizes of what it writes anew are no leak, and what a set of nftables forgets by itself neither.
left_by_unit() {
    echo "store: $(property NFileDescriptorStore), processes: $(pgrep -c -x tartan --ns "$MACHINE" --nslist pid)"
    traces 2>/dev/null | awk '/ expires / { next } $1 == "f" { $4 = "" } { print }'
    in_machine bash -c 'cd /run/tartan/attachments && sha256sum -- *'
}

# With Type=notify `systemctl restart` ends once the agent forwards, and not before. With the drop-in of the kernel path
# there are two capabilities, and programs in the kernel.
stop_and_start() {
    in_machine systemctl stop tartan
    equal "the unit, its processes, and records of running pods" "inactive 0 1" "$(property ActiveState) $(
        pgrep -c -x tartan --ns "$MACHINE" --nslist pid) $(find "$ROOT/run/tartan/attachments" -name '*.json' | wc -l)"
    in_machine systemctl start tartan
    machine_forwards 0
    drop_in /dev/stdin systemd/system/tartan.service.d/notify.conf <<<$'[Service]\nType=notify'
    drop_in "$DEPLOY/tartan-kernel-path.conf" systemd/system/tartan.service.d/kernel-path.conf
    echo 'kernel-path = "auto"' >>"$ROOT/etc/tartan/tartan.toml"
    in_machine systemctl daemon-reload
    in_machine systemctl restart tartan || fail "systemctl restart ended with $?"
    forwarding >/dev/null || fail "the agent does not forward when systemctl restart has ended"
    equal "type and state of the unit" "notify active running" "$(property Type ActiveState SubState)"
    until_true 15 "the kernel path is in use" kernel_path_in_use node1 || true
    no_problems
    reaches_peer "with Type=notify and the kernel path"
}

# A networkd that is told to take every device, as images of some clouds tell theirs, leaves those of Tartan alone.
networkd() {
    local before device
    drop_in /dev/stdin systemd/network/99-all.network <<<$'[Match]\nName=*\n[Network]\nLinkLocalAddressing=no'
    drop_in /dev/stdin systemd/network/20-eth0.network \
        <<<$'[Match]\nName=eth0\n[Network]\nLinkLocalAddressing=no\nKeepConfiguration=yes'
    before=$(agent_json node1 status | jq .repairs)
    under_load "networkd's start and restart" 1000 networkd_comes
    equal "repairs" "$before" "$(agent_json node1 status | jq .repairs)"
    for device in $(ip -n "$PREFIX-node1" -j link show type veth | jq -r '.[].ifname | select(startswith("tt"))'); do
        networkd_has "$device" unmanaged || fail "networkd manages $device"
    done
    # What the file is there for.
    in_machine rm /etc/systemd/network/10-tartan.network
    in_machine systemctl restart systemd-networkd
    until_true 10 "without the file networkd takes the device" networkd_has tartan0 configured || true
}

networkd_comes() {
    local way
    for way in start restart; do
        in_machine systemctl "$way" systemd-networkd
        until_true 10 "networkd has set eth0 up after its $way" networkd_has eth0 configured || true
        networkd_has tartan0 unmanaged || fail "networkd manages tartan0"
    done
}

# networkd_has DEVICE STATE: as it notes it; networkctl would need a D-Bus.
networkd_has() {
    grep -q "^ADMIN_STATE=$2" "$ROOT/run/systemd/netif/links/$(in_machine cat "/sys/class/net/$1/ifindex")"
}

# uninstall [CMD...]: with the repository's script, which CMD starts.
uninstall() {
    in_machine "$@" /root/uninstall --purge >"$SCRATCH/uninstall" 2>&1
}

# uninstalls_after WHAT: all is gone with the next run. Directories of CNI stay; the configuration is this test's.
uninstalls_after() {
    uninstall || fail "uninstall after $1 ended with $?: $(cat "$SCRATCH/uninstall")"
    same "$1: files and network of the machine, before the installation and after" "$BEFORE" "$(traces)"
    equal "$1: the unit, and /etc/tartan" "not-found inactive gone" \
        "$(property LoadState ActiveState) $([ -e "$ROOT/etc/tartan" ] || echo gone)"
}

# refuses WHY TEXT: uninstall has done nothing, and says so.
refuses() {
    if uninstall; then fail "uninstall does not refuse $1"; fi
    grep -q "$2" "$SCRATCH/uninstall" || fail "uninstall does not say what to do: $(cat "$SCRATCH/uninstall")"
}

removal() {
    local step code=137 delay
    install -t "$ROOT/root" "$SCRIPTS/uninstall"
    machine_pod ADD
    refuses "under a pod" 'kubectl drain'
    equal "the unit after an uninstall under a pod" active "$(property ActiveState)"
    machine_pod DEL
    in_machine /root/uninstall --dry-run >"$SCRATCH/dry" || fail "uninstall --dry-run ended with $?"
    forwarding >/dev/null || fail "uninstall --dry-run has done something: $(cat "$SCRATCH/dry")"
    # Of a copy that is killed the mode comes last. Where an agent has run, no other program removes what it has left.
    in_machine systemctl stop tartan
    chmod 600 "$ROOT/usr/local/bin/tartan"
    refuses "with half a program" 'install it again'
    install -t "$ROOT/usr/local/bin" "$BIN/tartan"
    uninstalls_after "an installation, the program of which was copied twice"
    uninstalls_after "an uninstall"
    # Before each of its commands that change something: the first and the last ones, and some of the many between, that
    # remove a file each. bash runs this first.
    cat >"$ROOT/root/kill_at" <<'BASH'
set -o functrace
CHANGES='^(rm|rmdir|networkctl|systemctl|"\$BIN/tartan") '
trap '[[ $BASH_COMMAND =~ $CHANGES ]] && ((++STEP == KILL_AT)) && kill -KILL $$' DEBUG
BASH
    for ((step = 1; code == 137; step += step < 8 || step > 41 ? 1 : 7)); do
        install_by_hand
        code=0
        uninstall env BASH_ENV=/root/kill_at STEP=0 KILL_AT="$step" || code=$?
        uninstalls_after "an uninstall that ended before step $step with code $code"
    done
    equal "code of an uninstall that has fewer steps, and whether they are enough" "0 1" "$code $((step > 42))"
    # With all that it has started, in the middle of it.
    for delay in 0.02 0.3; do
        install_by_hand
        uninstall timeout --signal KILL "$delay" || true
        uninstalls_after "an uninstall that was killed after $delay s"
    done
}

ROUNDS=${2:-1}
machine_lab
BEFORE=$(traces)
install_by_hand
KEEPER=$(property MainPID)
case ${1:-unit} in
unit) unit ;;
uninstall) removal ;;
*) die "unit or uninstall?" ;;
esac
machine_down
