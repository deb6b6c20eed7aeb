#!/usr/bin/env bash
# What the agent does for attached pods beside delivering to them, and the installation of the plugin.
#
#   pod1 (limited), pod2 ── node1: tartan ══ underlay ══ tartan node2 ── pod3, pod4
#                                               │
#                                            mallory: an outside host
#
# limits   pod1 is limited both ways: towards and from a pod beside it, a pod of the other node and an outside host the
#          rate is that, within 15 %; limits that are removed are put back, a killed service changes nothing, and with the
#          pod all of it goes; a second limiter in the chain is refused by name
# leaks    a pod whose namespace ends without DEL is taken away within two minutes, and no sooner than after one; a
#          living pod whose path leads nowhere is not
# churn    the plugin is exchanged 16 times under loops of ADD and DEL: none fails; uninstalled, nothing of it is left
# mixed    on one node a pod on the bridge of the stock plugin and a pod of tartan-cni reach each other, both ways, and
#          the node says that it is mixed; tartan cleanup takes the setting back
# alone limits: it measures rates
# full: limits
# full: mixed
# case: churn
# full: leaks
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

# Bits per second.
TO_POD=20000000
FROM_POD=10000000
# Seconds that each figure of a flow's is about.
WINDOW=0.25
OUTSIDE=192.0.2.250
RECORDS=$LAB_STATE/node1/run/tartan/attachments

# call VERB NODE POD [CONFIGURATION]: the plugin as a runtime calls it, with further keys of the configuration.
call() {
    jq -nc --arg root "$LAB_STATE/$2" --argjson more "${4:-{\}}" \
        '{cniVersion: "1.0.0", name: "tartan", type: "tartan-cni", $root} + $more' |
        ip netns exec "$PREFIX-$2" env CNI_COMMAND="$1" CNI_CONTAINERID="$PREFIX-$3" \
            CNI_NETNS="/var/run/netns/$PREFIX-$3" CNI_IFNAME=eth0 CNI_PATH="$BIN" "$BIN/tartan-cni"
}

# The limits as containerd gives them: no burst is named.
limited() {
    jq -nc --argjson to "$TO_POD" --argjson from "$FROM_POD" '{runtimeConfig: {bandwidth:
        {IngressRate: $to, IngressBurst: 4294967295, EgressRate: $from, EgressBurst: 4294967295}}}'
}

pod_of() {
    agent_json node1 pods | jq -c --arg container "$PREFIX-$1" '.pods[] | select(.container == $container)'
}

tells_of() {
    [ -n "$(pod_of "$1")" ]
}

host_ifname() {
    pod_of "$1" | jq -r .host_ifname
}

# near WHAT RATE FILE: the median of its windows, the first number there, is within 15 %. A flow may have to wait for its
# turn, which takes from a few windows and from the mean, the second number, but it never has more.
near() {
    local median mean
    read -r median mean <"$3"
    if awk -v rate="$2" -v median="$median" -v mean="$mean" \
        'BEGIN { exit !(median > 0.85 * rate && median < 1.15 * rate && mean < 1.15 * rate) }'; then
        say "$1: $median bit/s, $mean in all (limit $2)"
    else
        fail "$1: $median bit/s, $mean in all; the limit is $2"
    fi
}

# pull ADDRESS PORT FILE [iperf3 arguments]: what arrived of one flow of pod1, bits per second: in the median window, and
# in all.
pull() {
    in_ns pod1 iperf3 --client "$1" --port "$2" --json --get-server-output --interval "$WINDOW" "${@:4}" |
        jq -r --argjson window "$WINDOW" '
            (if .start.test_start.reverse == 1 then . else .server_output_json end)
            | [.intervals[].sum | select((.omitted | not) and .seconds > $window / 2) | .bits_per_second]
            | "\(sort[length / 2 | floor] | floor) \(add / length | floor)"' >"$3"
}

serve() {
    start_in "$1" iperf3 --server --port "$2" --one-off --json --interval "$WINDOW" >/dev/null
    until_true 5 "iperf3 listens in $1" is_bound "$1" tcp "$2"
}

# both_ways NAME ADDRESS: pod1 and NAME send at once, half as much again as they may. Datagrams: the acknowledgements of
# one way would be a part of the other's rate. A flow begins with one datagram each way, which the other may push out of a
# bucket: what never began is no measure, and is begun anew. So is what seldom filled its bucket, as where the processor
# is wanted by others; a bucket that nothing fills is too large. And so is, but for the last, what was measured while the
# machine's host took its cores: a bucket that stands still gives less.
both_ways() {
    local try began end buckets before
    end=$(host_ifname pod1)
    for try in 1 2 3; do
        before=$(cores_now)
        start_in node1 python3 "$TOOLS/bucket.py" "$end" "tl${end#tt}" >"$SCRATCH/buckets"
        buckets=$PID
        began=yes
        send_both "$@" "$((5300 + 10 * try))" || began=no
        stop "$buckets"
        if [ "$try" != 3 ] && disturbed "$before"; then
            say "pod1 and $1: made again, for the machine's cores were taken away"
            continue
        fi
        if [ "$began" = yes ] && jq -e 'all(.[]; .windows >= 4)' "$SCRATCH/buckets" >/dev/null; then
            near "pod1 to $1" "$FROM_POD" <(through "tl${end#tt}" "$SCRATCH/sent")
            near "$1 to pod1" "$TO_POD" <(through "$end" "$SCRATCH/received")
            return 0
        fi
        say "pod1 and $1: a flow did not begin, or seldom filled its bucket: $(cat "$SCRATCH/buckets")"
    done
    fail "pod1 and $1: $try times a flow did not begin, or seldom filled its bucket"
}

# through DEVICE FILE: what its bucket let through while it was full, and what arrived in all, of what pull found.
through() {
    echo "$(jq --arg device "$1" '.[$device].rate' "$SCRATCH/buckets") $(cut -d ' ' -f 2 "$2")"
}

# send_both NAME ADDRESS PORT: whether both flows came about.
send_both() {
    local sending receiving missing=0 much=(--udp --length 1200 --time 3)
    serve "$1" "$3"
    serve "$1" "$(($3 + 1))"
    pull "$2" "$3" "$SCRATCH/sent" "${much[@]}" --bitrate $((FROM_POD * 3 / 2)) &
    sending=$!
    pull "$2" "$(($3 + 1))" "$SCRATCH/received" "${much[@]}" --bitrate $((TO_POD * 3 / 2)) --reverse &
    receiving=$!
    wait "$sending" || missing=1
    wait "$receiving" || missing=1
    return "$missing"
}

# one_by_one NAME ADDRESS: the same over TCP, one after the other; the first second, in which a flow grows, not counted.
one_by_one() {
    local try before
    for try in 1 2 3; do
        before=$(cores_now)
        serve "$1" $((5400 + 10 * try))
        pull "$2" $((5400 + 10 * try)) "$SCRATCH/sent" --time 5 --omit 1 || fail "TCP of pod1 to $1"
        serve "$1" $((5401 + 10 * try))
        pull "$2" $((5401 + 10 * try)) "$SCRATCH/received" --time 5 --omit 1 --reverse || fail "TCP of $1 to pod1"
        disturbed "$before" || break
    done
    near "pod1 to $1 over TCP" "$FROM_POD" "$SCRATCH/sent"
    near "$1 to pod1 over TCP" "$TO_POD" "$SCRATCH/received"
}

# Without -q, grep reads to the end: tc would end by SIGPIPE.
# in_force END: whether both buckets of pod1 are there, and what comes from it goes through one.
in_force() {
    local limiter=tl${1#tt}
    tc -n "$PREFIX-node1" qdisc show dev "$1" | grep "^qdisc tbf .* root .*rate 20Mbit" >/dev/null &&
        tc -n "$PREFIX-node1" qdisc show dev "$limiter" | grep "^qdisc tbf .* root .*rate 10Mbit" >/dev/null &&
        tc -n "$PREFIX-node1" filter show dev "$1" ingress | grep "Redirect to device $limiter" >/dev/null
}

limiters() {
    ip -n "$PREFIX-node1" -j link show type ifb | jq -r '.[].ifname'
}

no_limiters() {
    [ -z "$(limiters)" ]
}

limits() {
    local end repairs answer
    lab_up --nodes 2 --pods 2
    call DEL node1 pod1
    call ADD node1 pod1 "$(limited)" >"$SCRATCH/result" || die "ADD with limits: $(cat "$SCRATCH/result")"
    end=$(host_ifname pod1)
    in_force "$end" || fail "the limits are not in force when ADD returns"
    equal "limits that the agent reports" "$FROM_POD $TO_POD" "$(pod_of pod1 | jq -r '"\(.bandwidth.egress.rate) \(.bandwidth.ingress.rate)"')"
    both_ways pod2 "$(address_of pod2)"
    both_ways pod3 "$(address_of pod3)"
    both_ways mallory "$OUTSIDE"
    one_by_one pod3 "$(address_of pod3)"
    [ "$(pod_of pod1 | jq .traffic.received_bytes)" -gt 1000000 ] || fail "the agent reports no traffic of pod1"
    say "limits that are removed"
    repairs=$(agent_json node1 status | jq .repairs)
    tc -n "$PREFIX-node1" qdisc delete dev "$end" ingress
    tc -n "$PREFIX-node1" qdisc delete dev "$end" root
    until_true 5 "the limits are back" in_force "$end"
    equal "of that repaired" 2 "$(($(agent_json node1 status | jq .repairs) - repairs))"
    ip -n "$PREFIX-node1" link delete "tl${end#tt}"
    until_true 5 "the limiter is back" in_force "$end"
    say "the service is killed"
    kill -KILL "$(service_pid node1)"
    in_force "$end" || fail "the limits went with the service"
    until_true 10 "the next one tells the pod" tells_of pod1
    say "the pod goes"
    call DEL node1 pod1 || fail "DEL of pod1"
    equal "limiters left" '' "$(limiters)"
    say "a second limiter in the chain"
    mkdir -p "$LAB_STATE/node1/etc/cni/net.d"
    jq -n '{bandwidth: true} as $capabilities | {name: "tartan", plugins:
        [{type: "tartan-cni", $capabilities}, {type: "bandwidth", $capabilities}]}' \
        >"$LAB_STATE/node1/etc/cni/net.d/10-tartan.conflist"
    if answer=$(call ADD node1 pod1 "$(limited)"); then
        fail "a pod that two limit is attached: $answer"
    else
        grep -q 'the plugin bandwidth, and both would limit' <<<"$answer" || fail "the refusal does not name it: $answer"
    fi
    equal "records left of it" '' "$(find "$RECORDS" -name "*pod1*")"
    rm -r "$LAB_STATE/node1/etc/cni"
    call ADD node1 pod1 >/dev/null || fail "ADD without limits"
}

state_is() {
    [ "$(pod_of "$1" | jq -r .state)" = "$2" ]
}

leaks() {
    local end record address started
    lab_up --nodes 1 --pods 2
    call DEL node1 pod1
    call ADD node1 pod1 "$(limited)" >/dev/null || fail "ADD with limits"
    equal "limiters of pod1" "tl$(host_ifname pod1 | cut -c3-)" "$(limiters)"
    address=$(pod_of pod1 | jq -r '.addresses[0] | split("/")[0]')
    equal "the state of pod2" attached "$(pod_of pod2 | jq -r .state)"
    # Another mount or process namespace shows the runtime's path otherwise, or not at all.
    record=$(find "$RECORDS" -name "*pod2*")
    jq -c '.netns = "/run/netns/nowhere" | .netns_inode = 1' "$record" >"$RECORDS/.edited"
    mv "$RECORDS/.edited" "$record"
    started=$SECONDS
    ip netns delete "$PREFIX-pod1"
    until_true 10 "pod1 leaves" state_is pod1 leaving
    until_true 5 "what shaped it is gone" no_limiters || true
    sleep $((started + 55 - SECONDS))
    state_is pod1 leaving || fail "pod1 was taken away within a minute"
    until_true 60 "pod1 is taken away" test ! -e "$RECORDS/$PREFIX-pod1:eth0.json"
    measured_at_most "seconds until it was" 120 $((SECONDS - started))
    equal "reclaimed" 1 "$(agent_json node1 status | jq .reclaimed)"
    agent_json node1 status | jq -r .last_reclaimed | grep "$address of .* no runtime deleted" >/dev/null ||
        fail "status does not tell whom: $(agent_json node1 status | jq .last_reclaimed)"
    equal "the state of pod2, whose path leads nowhere" attached "$(pod_of pod2 | jq -r .state)"
    in_ns pod2 ping -n -q -c 3 -i 0.2 -W 1 10.244.1.0 >/dev/null || fail "pod2 does not live any more"
    end=$(host_ifname pod2)
    ip -n "$PREFIX-node1" link show "$end" >/dev/null || fail "the interface of pod2 is gone"
    make_namespace pod1
    call DEL node1 pod1 || fail "DEL of a pod that was reclaimed"
    call ADD node1 pod1 >/dev/null || fail "ADD after it"
}

mixed() {
    local old new
    # shellcheck source=scripts/tests.d/tools/stock.sh
    . "$TOOLS/stock.sh"
    lab_up --nodes 1 --pods 2
    lab detach node1
    old=$(stock ADD node1 pod1 | jq -r '.ips[0].address | split("/")[0]') || die "the stock plugin refuses pod1"
    new=$(call ADD node1 pod2 | jq -r '.ips[0].address | split("/")[0]') || die "tartan-cni refuses pod2"
    [ "$old" != "$new" ] || die "both pods have $old"
    until_true 5 "the bridge answers for the new pod" \
        in_ns node1 grep -q 1 /proc/sys/net/ipv4/conf/cni0/proxy_arp
    # The kernel takes its time, up to 0.8 s, to answer for another host.
    until_true 5 "the old pod reaches the new one" in_ns pod1 ping -n -q -c 1 -W 1 "$new" || true
    equal "ping of the old pod" "5 received" "$(in_ns pod1 python3 "$TOOLS/pings.py" "$new" 5 0.05 2)"
    equal "ping of the new pod" "5 received" "$(in_ns pod2 python3 "$TOOLS/pings.py" "$old" 5 0.05 2)"
    equal "drops" 0 "$(($(dropped node1 outbound) + $(dropped node1 inbound)))"
    agent_json node1 status | jq -r '.problems[].sentence' | grep 'cni0 live beside' >/dev/null || fail "status does not say that the node is mixed"
    equal "rows of the bridge's prefix and address" 2 "$(tartan node1 pods | grep -c '^- .* kernel-routed .*$')"
    call DEL node1 pod2 || fail "DEL of the new pod"
    until_true 5 "the bridge answers for no pod, once the last new pod is gone" \
        in_ns node1 grep -q 0 /proc/sys/net/ipv4/conf/cni0/proxy_arp
    call ADD node1 pod2 >/dev/null || fail "ADD of a new pod"
    until_true 5 "the bridge answers again" in_ns node1 grep -q 1 /proc/sys/net/ipv4/conf/cni0/proxy_arp
    lab stop node1
    tartan node1 cleanup >/dev/null || fail "tartan cleanup ended with $?"
    call DEL node1 pod2 || fail "DEL without an agent"
    equal "proxy_arp of the bridge after it" 0 "$(in_ns node1 cat /proc/sys/net/ipv4/conf/cni0/proxy_arp)"
    # Its plugin reads it, when it takes the pod away.
    stock DEL node1 pod1 >/dev/null 2>&1 || true
}

# Attaches and detaches a pod until the test ends it; calls that failed are in a file.
churn_pod() {
    local count=0 answer
    while [ ! -e "$SCRATCH/enough" ]; do
        for verb in ADD DEL; do
            answer=$(call "$verb" node1 "$1" 2>&1) || echo "$verb: $answer" >>"$SCRATCH/failed $1"
        done
        count=$((count + 1))
    done
    echo "$count" >"$SCRATCH/rounds $1"
}

churn() {
    local round pod loops=() installed=$SCRATCH/bin conf_dir=$SCRATCH/net/net.d foreign answer
    lab_up --nodes 1 --pods 2
    lab detach node1
    cp "$BIN/tartan-cni" "$SCRATCH/one"
    # Another program to the installation, the same to the kernel.
    { cat "$BIN/tartan-cni" && echo two; } >"$SCRATCH/two"
    foreign=$conf_dir/87-podman-bridge.conflist
    mkdir -p "$conf_dir"
    echo '{"name":"podman","plugins":[{"type":"bridge"}]}' >"$foreign"
    install_from() {
        tartan node1 cni install --from "$1" --bin-dir "$installed" --conf-dir "$conf_dir" "${@:2}"
    }
    install_from "$SCRATCH/one" >/dev/null || fail "the first installation ended with $?"
    BIN=$installed
    for pod in pod1 pod2; do
        churn_pod "$pod" &
        loops+=("$!")
    done
    for ((round = 0; round < 8; round++)); do
        for file in two one; do
            answer=$(install_from "$SCRATCH/$file" -o json) || fail "round $round: $answer"
            equal "round $round" replaced "$(jq -r '.steps[0].action' <<<"$answer")" >/dev/null
            jq -e '.cniVersion' "$conf_dir/10-tartan.conflist" >/dev/null || fail "no configuration in round $round"
        done
    done
    touch "$SCRATCH/enough"
    for pod in "${loops[@]}"; do wait "$pod"; done
    for pod in pod1 pod2; do
        at_most "calls of $pod that failed" 0 "$(wc -l 2>/dev/null <"$SCRATCH/failed $pod" || echo 0)"
        [ ! -e "$SCRATCH/failed $pod" ] || head -n 3 "$SCRATCH/failed $pod" >&2
        [ "$(cat "$SCRATCH/rounds $pod")" -gt 5 ] || fail "$pod was attached $(cat "$SCRATCH/rounds $pod") times only"
    done
    call ADD node1 pod1 >/dev/null || fail "ADD by the installed plugin"
    if answer=$(tartan node1 cni uninstall --bin-dir "$installed" --conf-dir "$conf_dir" 2>&1); then
        fail "uninstalled under a pod: $answer"
    fi
    grep -q 'drain the node' <<<"$answer" || fail "the refusal does not say what to do: $answer"
    call DEL node1 pod1 || fail "DEL by the installed plugin"
    tartan node1 cni uninstall --bin-dir "$installed" --conf-dir "$conf_dir" >"$SCRATCH/uninstalled" || fail "uninstall"
    equal "first removed" "removed $conf_dir/10-tartan.conflist" "$(head -n 1 "$SCRATCH/uninstalled")"
    equal "left of the installation" "$foreign" "$(find "$installed" "$SCRATCH/net" -type f)"
}

BIN=${LAB_BIN:-$SCRIPTS/../target/fast}
say "the agent and its pods: $1"
"$1"
