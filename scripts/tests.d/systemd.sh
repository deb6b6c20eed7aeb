#!/usr/bin/env bash
# The unit under a real systemd: installed as docs/install.md says, with all that hardens it, it forwards; reload, `tartan
# upgrade`, a crash of the service and of the keeper, stop and start do what deploy/README.md says; networkd leaves the device
# alone; scripts/uninstall leaves the machine as it was, also when it or the installation before it was killed at any step.
#
#   pod ── machine node1: systemd, tartan.service ══ underlay ══ node2: tartan ── pod1
#
# systemd.sh PART: unit, networkd or uninstall
# alone unit: it measures pauses
# seconds uninstall everywhere: 3600: it installs and removes a hundred times
# seconds uninstall: 900: twenty times
# case: unit
# full: unit kernel-path
# full: unit watchdog
# case: networkd
# case: uninstall
# full: uninstall installation
# full: uninstall everywhere
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/machine.sh
. "$TOOLS/machine.sh"

PART=${1:-unit}
HOW=${2:-}
BIN=${LAB_BIN:-$SCRIPTS/../target/fast}
DEPLOY=$SCRIPTS/../deploy
# Milliseconds: of a crash of the service, and of one of the keeper, which systemd waits 0.5 s to start again.
LARGEST_GAP=1000
LARGEST_GAP_OF_KEEPER=8000
# Of an upgrade: the tests' programs are slow, and the machine is shared.
LARGEST_GAP_OF_UPGRADE=500

# As docs/install.md says, from a clone that is built: a word for each step.
INSTALLATION=(program plugin unit network networkd manuals reload enable cni)

# installation_step WORD
installation_step() {
    case $1 in
    program) into_machine node1 755 "$BIN/tartan" /usr/local/bin ;;
    plugin) into_machine node1 755 "$BIN/tartan-cni" /usr/local/bin ;;
    unit) into_machine node1 644 "$DEPLOY/tartan.service" /etc/systemd/system ;;
    network) into_machine node1 644 "$DEPLOY/network/10-tartan.network" /etc/systemd/network ;;
    networkd) install -D -m 644 "$DEPLOY/network/tartan-networkd.conf" "/proc/${MACHINE[node1]}/root/etc/systemd/networkd.conf.d/tartan.conf" ;;
    manuals) in_machine node1 tartan manual --dir /usr/local/share >/dev/null ;;
    reload) in_machine node1 systemctl daemon-reload ;;
    enable) in_machine node1 systemctl --quiet enable --now tartan ;;
    cni)
        until_true 15 "node1 forwards" forwarding node1 || die "$(in_machine node1 journalctl --no-pager -u tartan | tail -n 30)"
        in_machine node1 tartan cni install >/dev/null || fail "tartan cni install ended with $?"
        ;;
    esac
}

install_by_hand() {
    local word
    for word in "${INSTALLATION[@]}"; do installation_step "$word"; done
}

# What systemd-analyze finds open must be what deploy/README.md argues, no more and no less.
exposure() {
    local found argued
    found=$(in_machine node1 systemd-analyze security --no-pager --json=short tartan.service |
        jq -r '.[] | select(.set == false and .exposure != null and (.exposure | tonumber) > 0) | .name' | sort)
    # shellcheck disable=SC2016
    argued=$(sed -nE 's/^\| `([^`]+)` \| [0-9.]+ \| .*/\1/p' "$DEPLOY/README.md" | sed 's/\\|/|/g' | sort)
    [ -n "$found" ] || fail "systemd-analyze lists nothing"
    same "what is left open, and what deploy/README.md argues" "$argued" "$found"
    say "$(in_machine node1 systemd-analyze security --no-pager tartan.service | tail -n 1)"
}

# privileges PID
privileges() {
    in_machine node1 sed -nE 's/^(CapEff|CapBnd|NoNewPrivs|Seccomp):\s*//p' "/proc/$1/status" | paste -sd ' '
}

reaches_peer() {
    equal "ping of a pod to pod1, $1" "5 received" "$(in_machine node1 ip netns exec pod python3 "$TOOLS/pings.py" "$(address_of pod1)" 5 0.02 3)"
}

kept_by_systemd() {
    equal "$1: systemd has restarted the keeper" "$2 times" "$(unit_property node1 NRestarts) times"
    unit_is node1 active || fail "$1: the unit is $(unit_property node1 ActiveState)"
}

other_service() {
    local now
    now=$(machine_service node1)
    [ -n "$now" ] && [ "$now" != null ] && [ "$now" != "$1" ]
}

other_keeper() {
    local now
    now=$(unit_property node1 MainPID)
    [ "$now" != 0 ] && [ "$now" != "$1" ] && forwarding node1
}

unit_runs() {
    local keeper service sockets
    equal "systemd-analyze verify" '' "$(in_machine node1 systemd-analyze verify /etc/systemd/system/tartan.service 2>&1)"
    exposure
    # What the agent has: one capability, a filter of system calls, no way to gain more.
    equal "capabilities (effective, bounding), no new privileges, and filter of the service" \
        "0000000000001000 0000000000001000 1 2" "$(privileges "$(machine_service node1)")"
    # Where it refuses these, threads keep files that they would renounce, and nothing says so.
    equal "calls of Landlock that the unit allows" "landlock_create_ruleset landlock_restrict_self" \
        "$(unit_property node1 SystemCallFilter | tr ' ' '\n' | grep landlock | sort | paste -sd ' ')"
    equal "problems that the agent reports" '[]' "$(in_machine node1 tartan status -o json | jq -c '[.problems[].code]')"
    machine_pod node1 pod
    reaches_peer "after the start"

    say "reload"
    keeper=$(unit_property node1 MainPID)
    service=$(machine_service node1)
    start_pings node1 pod "$(address_of pod1)"
    in_machine node1 systemctl reload tartan
    until_true 5 "the agent has read its files again" reloaded && say "the agent has read its files again"
    equal "keeper and service after a reload" "$keeper $service" "$(unit_property node1 MainPID) $(machine_service node1)"

    stop_pings "reload" "$LARGEST_GAP"

    upgrades
    keeper=$(unit_property node1 MainPID)
    service=$(machine_service node1)

    say "a crash of the service"
    start_pings node1 pod "$(address_of pod1)"
    in_machine node1 kill -KILL "$service"
    until_true 5 "another service" other_service "$service"
    until_true 5 "it forwards" forwarding node1
    stop_pings "crash of the service" "$LARGEST_GAP"
    equal "the keeper" "$keeper" "$(unit_property node1 MainPID)"
    kept_by_systemd "a crash of the service" 0

    say "a crash of the keeper"
    start_pings node1 pod "$(address_of pod1)"
    in_machine node1 kill -KILL "$keeper"
    until_true 10 "another keeper, which forwards" other_keeper "$keeper"
    sleep 0.5
    stop_pings "crash of the keeper" "$LARGEST_GAP_OF_KEEPER"
    kept_by_systemd "a crash of the keeper" 1

    say "a restart"
    [ "$(unit_property node1 NFileDescriptorStore)" -gt 3 ] || fail "systemd keeps only $(unit_property node1 NFileDescriptorStore) descriptors"
    keeper=$(unit_property node1 MainPID)
    sockets=$(sockets)
    [ -n "$sockets" ] || fail "ss shows no socket of the overlay"
    start_pings node1 pod "$(address_of pod1)"
    in_machine node1 systemctl restart tartan
    until_true 10 "another keeper, which forwards" other_keeper "$keeper"
    sleep 0.5
    stop_pings "restart" "$LARGEST_GAP_OF_KEEPER"
    equal "the socket of the overlay, which systemd kept" "$sockets" "$(sockets)"

    say "stop, and start"
    in_machine node1 systemctl stop tartan
    equal "the unit, and its processes" "inactive 0" "$(unit_property node1 ActiveState) $(pgrep -c -x tartan --ns "${MACHINE[node1]}" --nslist pid || true)"
    equal "attachment records of running pods" 1 "$(in_machine node1 find /run/tartan/attachments -name '*.json' | wc -l)"
    in_machine node1 systemctl start tartan
    until_true 10 "node1 forwards again" forwarding node1
    reaches_peer "after a stop and a start"
    with_notify
    machine_pod_gone node1 pod
}

# With Type=notify `systemctl restart` ends once the agent forwards, and not before.
with_notify() {
    say "Type=notify"
    printf '[Service]\nType=notify\n' >"$SCRATCH/notify.conf"
    into_machine node1 644 "$SCRATCH/notify.conf" /etc/systemd/system/tartan.service.d
    in_machine node1 systemctl daemon-reload
    in_machine node1 systemctl restart tartan || fail "systemctl restart ended with $?"
    forwarding node1 || fail "the agent does not forward when systemctl restart has ended"
    equal "type and state of the unit" "notify active running" \
        "$(unit_property node1 Type) $(unit_property node1 ActiveState) $(unit_property node1 SubState)"
    reaches_peer "with Type=notify"
    in_machine node1 rm -r /etc/systemd/system/tartan.service.d
    in_machine node1 systemctl daemon-reload
}

# Keeper and service are replaced below all that hardens the unit: by a file beside the one that runs, and by the file that is
# replaced, as a package does it. For systemd nothing happens.
upgrades() {
    local next=/usr/local/lib/tartan-next/tartan before
    say "upgrades"
    into_machine node1 755 "$BIN/tartan" "$(dirname "$next")"
    before=$(seen_by_systemd)
    start_pings node1 pod "$(address_of pod1)"
    upgrade "$next" --program "$next"
    in_machine node1 install -m 755 "$next" /usr/local/bin/tartan.new
    in_machine node1 mv /usr/local/bin/tartan.new /usr/local/bin/tartan
    upgrade /usr/local/bin/tartan
    not_seen "$next"
    sleep 0.5
    stop_pings "upgrades" "$LARGEST_GAP_OF_UPGRADE"
    equal "pings lost" 0 "$(pings_lost)"
    equal "main process, restarts, state and store of the unit" "$before" "$(seen_by_systemd)"
    equal "problems that the agent reports" '[]' "$(in_machine node1 tartan status -o json | jq -c '[.problems[].code]')"
    equal "repairs" 0 "$(in_machine node1 tartan status -o json | jq .repairs)"
    watched
}

# upgrade PROGRAM [ARGUMENT]...: service and keeper are of it afterwards, and as restricted as before.
upgrade() {
    local program=$1 keeper service rights
    shift
    keeper=$(unit_property node1 MainPID)
    service=$(machine_service node1)
    rights="$(privileges "$keeper"), $(privileges "$service")"
    in_machine node1 tartan upgrade -o json "$@" >"$SCRATCH/upgrade" 2>&1 ||
        fail "tartan upgrade $* ended with $?: $(cat "$SCRATCH/upgrade"; in_machine node1 journalctl --no-pager -u tartan | tail -n 20)"
    equal "outcome for service and keeper" '["upgraded",true,null]' "$(jq -c '[.outcome, .keeper, .reason]' "$SCRATCH/upgrade")"
    say "packets waited for $(jq .pause_us "$SCRATCH/upgrade") µs"
    other_service "$service" || fail "the service is the same process"
    service=$(machine_service node1)
    equal "programs of keeper and service" "$program $program" \
        "$(in_machine node1 readlink "/proc/$keeper/exe" "/proc/$service/exe" | paste -sd ' ')"
    equal "capabilities (effective, bounding), no new privileges, and filter of keeper and service" \
        "$rights" "$(privileges "$keeper"), $(privileges "$service")"
}

# not_seen PROGRAM: where the unit sees none, the command says so, and all goes on.
not_seen() {
    local hidden service code=0
    service=$(machine_service node1)
    for hidden in /root/tartan-next /tmp/tartan-next; do
        in_machine node1 install -m 755 "$1" "$hidden"
        code=0
        in_machine node1 tartan upgrade -o json --program "$hidden" >"$SCRATCH/upgrade" 2>&1 || code=$?
        equal "exit code, and outcome of an upgrade to $hidden" "1 unchanged" "$code $(jq -r .outcome "$SCRATCH/upgrade")"
        grep -q 'the systemd unit does not see' <<<"$(jq -r .reason "$SCRATCH/upgrade")" ||
            fail "the reason does not say that the unit does not see it: $(cat "$SCRATCH/upgrade")"
        equal "the service" "$service" "$(machine_service node1)"
        in_machine node1 rm "$hidden"
    done
}

# What would differ after a restart, or where systemd took a descriptor for broken.
seen_by_systemd() {
    local property
    for property in MainPID NRestarts ActiveState SubState StatusText ExecMainStartTimestampMonotonic NFileDescriptorStore; do
        unit_property node1 "$property"
    done | paste -sd ' '
}

# The keeper of the new program says every second that it works, and systemd takes its word.
watched() {
    local since
    since=$(unit_property node1 WatchdogTimestampMonotonic)
    until_true 5 "systemd has heard of the keeper" heard_since "$since" && say "systemd hears of the keeper"
}

heard_since() {
    [ "$(unit_property node1 WatchdogTimestampMonotonic)" -gt "$1" ]
}

# After an upgrade systemd watches on: a keeper that hangs is killed, which nothing else would do, and another forwards.
hanging() {
    local keeper
    printf '[Service]\nWatchdogSec=10s\n' >"$SCRATCH/watchdog.conf"
    into_machine node1 644 "$SCRATCH/watchdog.conf" /etc/systemd/system/tartan.service.d
    in_machine node1 systemctl daemon-reload
    in_machine node1 systemctl restart tartan
    until_true 10 "node1 forwards" forwarding node1
    machine_pod node1 pod
    upgrades
    keeper=$(unit_property node1 MainPID)
    in_machine node1 kill -STOP "$keeper"
    until_true 20 "another keeper, which forwards" other_keeper "$keeper"
    kept_by_systemd "a keeper that hangs" 1
    reaches_peer "after a keeper that hung"
    machine_pod_gone node1 pod
}

# The inodes of the sockets that receive from other nodes.
sockets() {
    in_machine node1 ss -Hlune 'sport = :8472' 2>/dev/null | grep -o 'ino:[0-9]*' | sort | paste -sd ' '
}

reloaded() {
    grep -qi 'SIGHUP' <<<"$(in_machine node1 journalctl --no-pager -u tartan)"
}

# With the drop-in: two capabilities, and programs in the kernel.
with_kernel_path() {
    install -D -m 644 "$DEPLOY/tartan-kernel-path.conf" "/proc/${MACHINE[node1]}/root/etc/systemd/system/tartan.service.d/kernel-path.conf"
    echo 'kernel-path = "auto"' >>"/proc/${MACHINE[node1]}/root/etc/tartan/tartan.toml"
    in_machine node1 systemctl daemon-reload
    in_machine node1 systemctl restart tartan
    until_true 15 "the kernel path of node1 is in use" machine_kernel_path ||
        die "$(in_machine node1 tartan status -o json | jq -c '{kernel_path, problems}')"
    equal "problems that the agent reports" '[]' "$(in_machine node1 tartan status -o json | jq -c '[.problems[].code]')"
    machine_pod node1 pod
    reaches_peer "with the kernel path"
    upgrades
    until_true 15 "the kernel path of node1 is in use after upgrades" machine_kernel_path || true
    reaches_peer "with the kernel path, after upgrades"
    machine_pod_gone node1 pod
}

machine_kernel_path() {
    in_machine node1 tartan status -o json | jq -e .kernel_path.in_use
}

# A networkd that is told to take every device, as images of some clouds tell theirs.
networkd() {
    local before
    printf '[Match]\nName=*\n[Network]\nLinkLocalAddressing=no\n' |
        in_machine node1 dd of=/etc/systemd/network/99-all.network status=none
    printf '[Match]\nName=eth0\n[Network]\nLinkLocalAddressing=no\nKeepConfiguration=yes\n' |
        in_machine node1 dd of=/etc/systemd/network/20-eth0.network status=none
    machine_pod node1 pod
    before=$(in_machine node1 tartan status -o json | jq .repairs)
    start_pings node1 pod "$(address_of pod1)"
    in_machine node1 systemctl start systemd-networkd
    until_true 10 "networkd has set eth0 up" networkd_has eth0 configured
    equal "networkd and the tunnel device" unmanaged "$(networkd_state tartan0)"
    in_machine node1 systemctl restart systemd-networkd
    until_true 10 "networkd has set eth0 up again" networkd_has eth0 configured
    sleep 1
    stop_pings "networkd's start and restart" "$LARGEST_GAP"
    equal "what Tartan had to repair" 0 "$(($(in_machine node1 tartan status -o json | jq .repairs) - before))"
    equal "networkd and Tartan's devices" unmanaged "$(for device in tartan0 $(pod_ends); do networkd_state "$device"; done | sort -u)"
    # What the file is there for: without it networkd takes the device.
    in_machine node1 rm /etc/systemd/network/10-tartan.network
    in_machine node1 systemctl restart systemd-networkd
    until_true 10 "without the file networkd takes the device" networkd_has tartan0 configured && say "without the file networkd takes the device"
    machine_pod_gone node1 pod
    in_machine node1 systemctl stop systemd-networkd systemd-networkd.socket
}

networkd_has() {
    [ "$(networkd_state "$1")" = "$2" ]
}

# As networkd notes it; networkctl would need a D-Bus.
networkd_state() {
    in_machine node1 sed -n 's/^ADMIN_STATE=//p' "/run/systemd/netif/links/$(ip -n "$PREFIX-node1" -j link show "$1" | jq '.[0].ifindex')"
}

pod_ends() {
    ip -n "$PREFIX-node1" -j link show type veth | jq -r '.[].ifname | select(startswith("tt"))'
}

# uninstall [CMD...]: with the repository's script, which CMD starts.
uninstall() {
    in_machine node1 "$@" /root/uninstall --purge >"$SCRATCH/uninstall" 2>&1
}

# Directories of CNI stay; the configuration is this test's.
traces() {
    machine_files node1 | grep -vE ' \./(root/[a-z_.]*|opt/cni|opt/cni/bin|etc/cni|etc/cni/net.d|etc/tartan|etc/tartan/[^ ]*)( |$)'
    machine_network node1
}

uninstalled() {
    same "$1: files and network of the machine, before the installation and after" "$BEFORE" "$(traces)"
    if in_machine node1 test -e /etc/tartan; then fail "$1: --purge has left /etc/tartan"; fi
    equal "$1: the unit" "not-found inactive" "$(unit_property node1 LoadState) $(unit_property node1 ActiveState)"
}

# uninstalls_after WHAT: what an interrupted installation or removal has left goes with the next run.
uninstalls_after() {
    uninstall || fail "uninstall after $1 ended with $?: $(cat "$SCRATCH/uninstall")"
    uninstalled "$1"
}

# distinct_steps: of the steps that /root/steps lists, the first and the last of each command with the same callers; with
# `everywhere` all.
distinct_steps() {
    in_machine node1 cat /root/steps | if [ "$HOW" = everywhere ]; then cut -d ' ' -f 1; else
        awk '{ number = $1; $1 = ""; if (!($0 in first)) first[$0] = number; last[$0] = number }
            END { for (step in first) { print first[step]; print last[step] } }' | sort -nu
    fi
}

# The script is killed before each of its steps; and, with all that it has started, at moments that are spread over it.
removal_is_killed() {
    local steps delays=(0.02 0.3) step delay
    into_machine node1 644 "$TOOLS/kill_at.sh" /root
    reinstall
    uninstall env BASH_ENV=/root/kill_at.sh KILL_AT=0 LIST=/root/steps || fail "uninstall, whose steps are counted, ended with $?"
    mapfile -t steps < <(distinct_steps)
    say "steps: ${steps[*]}"
    [ ${#steps[@]} -ge 12 ] || fail "only ${#steps[@]} steps of uninstall are seen"
    for step in "${steps[@]}"; do
        reinstall
        if uninstall env BASH_ENV=/root/kill_at.sh KILL_AT="$step"; then fail "uninstall was not killed at step $step"; fi
        uninstalls_after "uninstall was killed before $(in_machine node1 sed -n "${step}s/^/step /p" /root/steps)"
    done
    [ "$HOW" != everywhere ] || mapfile -t delays < <(seq 0.02 0.06 1.8)
    for delay in "${delays[@]}"; do
        reinstall
        uninstall timeout --signal KILL "$delay" || true
        uninstalls_after "uninstall was killed after $delay s"
    done
}

# An installation ends behind each of its steps, and in the middle of those that take a moment.
installation_is_killed() {
    local word other delay
    for word in "${INSTALLATION[@]}"; do
        configure_again
        for other in "${INSTALLATION[@]}"; do
            installation_step "$other"
            [ "$other" != "$word" ] || break
        done
        uninstalls_after "an installation that ended behind the step $word"
    done
    for delay in 0.002 0.01 0.03; do
        configure_again
        for word in program plugin; do installation_step "$word"; done
        in_machine node1 timeout --signal KILL "$delay" tartan manual --dir /usr/local/share >/dev/null 2>&1 || true
        for word in unit reload enable; do installation_step "$word"; done
        until_true 15 "node1 forwards" forwarding node1
        in_machine node1 timeout --signal KILL "$delay" tartan cni install >/dev/null 2>&1 || true
        uninstalls_after "man pages and the plugin, each killed after $delay s"
    done
    configure_again
    half_a_program
    uninstalls_after "half of the program alone was copied"
    # Where an agent has run, no other program removes what it has left.
    reinstall
    in_machine node1 systemctl stop tartan
    half_a_program
    if uninstall; then fail "uninstall has done without the program"; fi
    grep -q 'install it again' "$SCRATCH/uninstall" || fail "uninstall does not say what to do: $(cat "$SCRATCH/uninstall")"
    installation_step program
    uninstalls_after "half of the program was copied over a whole one"
}

# As install(1) leaves it that is killed: the mode comes last.
half_a_program() {
    in_machine node1 rm -f /usr/local/bin/tartan
    head -c 100000 "$BIN/tartan" | in_machine node1 dd of=/usr/local/bin/tartan status=none
    in_machine node1 chmod 600 /usr/local/bin/tartan
}

reinstall() {
    configure_again
    install_by_hand
}

# --purge has taken it away.
configure_again() {
    local file
    for file in net-conf.json nodes.toml; do into_machine node1 644 "$LAB_STATE/node1/$file" /etc/tartan; done
}

removal() {
    into_machine node1 755 "$SCRIPTS/uninstall" /root
    machine_pod node1 pod
    # Under a pod it refuses, and has done nothing.
    if uninstall; then fail "uninstall took the plugin from under a pod"; fi
    grep -q 'kubectl drain' "$SCRATCH/uninstall" || fail "uninstall does not say what to do: $(cat "$SCRATCH/uninstall")"
    unit_is node1 active || fail "uninstall has stopped the agent under a pod"
    machine_pod_gone node1 pod
    in_machine node1 bash -c '/root/uninstall --dry-run' >"$SCRATCH/dry" || fail "uninstall --dry-run ended with $?"
    forwarding node1 >/dev/null || fail "uninstall --dry-run has done something: $(cat "$SCRATCH/dry")"
    uninstall || fail "uninstall ended with $?: $(cat "$SCRATCH/uninstall")"
    uninstalled uninstall
    uninstall || fail "a second uninstall ended with $?: $(cat "$SCRATCH/uninstall")"
    case $HOW in
    installation) installation_is_killed ;;
    *) removal_is_killed ;;
    esac
}

# The machine of a test that is killed ends with it, and nothing of it is left.
killed_test() {
    local other group pid
    group=$(machine_group node2)
    lab stop node2 >/dev/null
    (
        # No trap of ours: this is the end of a process that cannot do anything any more.
        trap - EXIT INT TERM
        STARTED=()
        machine_up node2
        echo "${MACHINE[node2]}" >"$SCRATCH/other"
        sleep 300
    ) &
    other=$!
    until_true 90 "the other machine is up" test -s "$SCRATCH/other"
    pid=$(cat "$SCRATCH/other")
    kill -KILL "$other"
    wait "$other" 2>/dev/null || true
    until_true 10 "the machine of a killed test is gone" bash -c "! [ -e '/proc/$pid/exe' ] && ! [ -e '$group' ]" &&
        say "the machine of a killed test is gone"
}

say "a real systemd, $PART"
lab_up --pods 0
lab attach node2 >/dev/null
machine_node node1
BEFORE=$(traces)
install_by_hand
case $PART in
unit)
    case $HOW in
    kernel-path) with_kernel_path ;;
    watchdog) hanging ;;
    *) unit_runs ;;
    esac
    killed_test
    ;;
networkd) networkd ;;
uninstall) removal ;;
*) die "unit, networkd or uninstall?" ;;
esac
machine_down node1
equal "control groups that are left" '' "$(find "$(unified_hierarchy)" -maxdepth 1 -name "$PREFIX-machine*")"
