#!/usr/bin/env bash
# Firewalls on a node, there before Tartan or appearing later: pods go on talking, what the firewall says about some
# of them goes on to hold, and `tartan cleanup` leaves the firewall as it was. Rules of iptables-legacy, which Tartan
# neither reads nor changes: the log names their tables and the command that prints them, and the documented accept
# rules open them.
#
#   pod1, pod2 ── node1: tartan, and a firewall ══ underlay ══ tartan node2 ── pod3, pod4
#
# firewall.sh FAMILIES FIREWALL...: FAMILIES, of the pods, is v4, v6 or dual
# alone: it measures gaps
# case: dual docker ufw firewalld
# full: dual redhat legacy
# full: v4 docker ufw redhat firewalld legacy
# full: dual docker ufw firewalld kernel-path=stateless
# full: dual redhat legacy kernel-path=stateless
# full: dual docker ufw firewalld kernel-path=auto
# full: dual redhat legacy kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/firewalls.sh
. "$TOOLS/firewalls.sh"

INSIDE=$1
FIREWALLS=("${@:2}")
declare -A NUMBERS=([v4]=4 [v6]=6 [dual]="4 6")
ECHO=7001
EXCHANGE=7002
# Milliseconds.
LONGEST_GAP=2000
# 20 ms apart: had the rules cut new flows off for good, the gap would be over twice the longest allowed.
PROBES=250
# Of the mark that our rules carry.
OURS='tartan: pod traffic'

serve() {
    local pod family addresses
    for pod in pod1 pod2 pod3 pod4; do
        addresses=()
        for family in ${NUMBERS[$INSIDE]}; do addresses+=("$(address_of "$pod" "$family")"); done
        start_in "$pod" python3 "$TOOLS/probe.py" serve "$ECHO" "${addresses[@]}"
        start_in "$pod" python3 "$TOOLS/exchange.py" serve "$pod" "$EXCHANGE" "${addresses[@]}"
        until_true 5 "$pod serves" listens "$pod" "${#addresses[@]}"
    done
}

listens() {
    [ "$(ip netns exec "$PREFIX-$1" ss -Hltn "sport = $EXCHANGE" | wc -l)" = "$2" ] &&
        [ "$(ip netns exec "$PREFIX-$1" ss -Hlun "sport = $ECHO" | wc -l)" = "$2" ]
}

# Pods of both nodes and of one, and the firewall's node itself, reach each other by new flows of TCP and UDP.
all_talk() {
    local pair from to family expected askers=()
    local pairs=("pod1 pod3" "pod3 pod1" "pod1 pod2" "node1 pod3")
    for pair in "${pairs[@]}"; do
        read -r from to <<<"$pair"
        for family in ${NUMBERS[$INSIDE]}; do echo "any $(address_of "$to" "$family") $EXCHANGE"; done >"$SCRATCH/ask $pair"
        # shellcheck disable=SC2016
        start_in "$from" sh -c 'python3 "$0" ask <"$1"' "$TOOLS/exchange.py" "$SCRATCH/ask $pair" >"$SCRATCH/answers $pair"
        askers+=("$PID")
    done
    wait "${askers[@]}"
    for pair in "${pairs[@]}"; do
        read -r from to <<<"$pair"
        expected=$(for family in ${NUMBERS[$INSIDE]}; do echo "tcp $to udp $to"; done | paste -sd ' ')
        equal "$from to $to, $1" "$expected" "$(cut -d ' ' -f 1,2 "$SCRATCH/answers $pair" | paste -sd ' ')"
    done
}

# no_answers FROM TO WHY [FAMILIES]
no_answers() {
    local family askers=()
    for family in ${4:-${NUMBERS[$INSIDE]}}; do
        start_in "$1" python3 "$TOOLS/probe.py" ask "$(address_of "$2" "$family")" "$ECHO" 5 0.02 >"$SCRATCH/probe$family"
        askers+=("$PID")
    done
    wait "${askers[@]}"
    for family in ${4:-${NUMBERS[$INSIDE]}}; do
        equal "answers of $2 to $1 over IPv$family, $3" 0 "$(jq .answered "$SCRATCH/probe$family")"
    done
}

# appears FIREWALL: while new flows are on their way, in each family.
appears() {
    local family probes=()
    for family in ${NUMBERS[$INSIDE]}; do
        start_in pod1 python3 "$TOOLS/probe.py" ask "$(address_of pod3 "$family")" "$ECHO" "$PROBES" 0.02 >"$SCRATCH/probe$family"
        probes+=("$PID")
    done
    sleep 0.5
    firewall "$1" node1
    wait "${probes[@]}"
    for family in ${NUMBERS[$INSIDE]}; do
        measured_at_most "longest gap over IPv$family, ms, while $1's rules appear" "$LONGEST_GAP" "$(jq .gap "$SCRATCH/probe$family")"
    done
}

# The rules of a host, without what they have counted. (To nft the tables of iptables-nft are worth a warning.)
rules() {
    local ruleset
    ruleset=$(ip netns exec "$PREFIX-$1" nft -s list ruleset 2>"$SCRATCH/nft") || die "nft on $1: $(cat "$SCRATCH/nft")"
    sed -E 's/ packets [0-9]+ bytes [0-9]+//' <<<"$ruleset"
}

count_ours() {
    rules node1 | grep -c "$OURS" || true
}

# After the agent's end and a clean-up the firewall is as on a host that never had one, and cuts pods off: so it
# was Tartan's rules that let them through.
as_it_was() {
    lab stop node1
    tartan node1 cleanup >"$SCRATCH/cleanup" || fail "tartan cleanup ended with code $?: $(cat "$SCRATCH/cleanup")"
    same "rules on node1 after cleanup, $1" "$(rules mallory)" "$(rules node1)"
    ip netns exec "$PREFIX-node1" sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    no_answers pod1 pod2 "with the firewall alone"
    ip netns exec "$PREFIX-node1" sysctl -q -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0
}

# What a firewall says about some packets goes on to hold.
some_are_refused() {
    local family command
    for family in ${NUMBERS[$INSIDE]}; do
        command=iptables-nft
        [ "$family" = 4 ] || command=ip6tables-nft
        ip netns exec "$PREFIX-node1" "$command" -A "$1" \
            -s "$(address_of pod2 "$family")" -d "$(address_of pod3 "$family")" -j DROP
    done
    no_answers pod2 pod3 "which $1 drops"
    for family in ${NUMBERS[$INSIDE]}; do
        command=iptables-nft
        [ "$family" = 4 ] || command=ip6tables-nft
        ip netns exec "$PREFIX-node1" "$command" -F "$1"
    done
}

no_problem() {
    [ "$(agent_json node1 status | jq '.problems | length')" = 0 ]
}

# One firewall, from its appearance to the last trace of Tartan, and again with the firewall there first.
round() {
    local name=$1
    say "$name"
    firewall "$name" mallory
    appears "$name"
    all_talk "$name's rules there"
    case $name in
    docker) some_are_refused DOCKER-USER ;;
    ufw) some_are_refused ufw-user-forward ;;
    esac
    as_it_was "$name"
    lab start node1
    [ "$(count_ours)" -gt 0 ] || fail "no rule of ours stands in $name's"
    all_talk "$name's rules there first"
    no_problem || fail "with $name's rules there is a problem: $(agent_json node1 status | jq -c .problems)"
    lab stop node1
    tartan node1 cleanup >/dev/null || fail "tartan cleanup ended with code $?"
    same "rules on node1 after another cleanup, $name" "$(rules mallory)" "$(rules node1)"
    for host in node1 mallory; do ip netns exec "$PREFIX-$host" nft flush ruleset; done
    lab start node1
}

# The tables of a command of iptables-legacy, as the agent's log names them.
logged() {
    grep -E "tables of iptables-legacy exist.*$1 filter" "$LAB_STATE/node1/log"
}

# The policy cuts pods off in every family; the log says where to look, docs/operate.md what to add.
legacy() {
    local family command network
    declare -A commands=([4]=iptables-legacy [6]=ip6tables-legacy)
    declare -A networks=([4]=10.244.0.0/16 [6]=fd00:10:244::/48)
    say "iptables-legacy"
    for command in "${commands[@]}"; do ip netns exec "$PREFIX-node1" "$command" -P FORWARD DROP; done
    for family in ${NUMBERS[$INSIDE]}; do
        command=${commands[$family]}
        network=${networks[$family]}
        until_true 15 "the tables of $command are logged" logged "$command" || return 0
        grep -q "\`$command-save\`" <<<"$(logged "$command")" || fail "the log does not name $command-save"
        grep -q ':FORWARD DROP' <<<"$(ip netns exec "$PREFIX-node1" "$command-save")" || fail "$command-save shows no policy"
        no_answers pod1 pod3 "with $command's policy" "$family"
        no_problem || fail "existing tables of $command are a problem: $(agent_json node1 status | jq -c .problems)"
        ip netns exec "$PREFIX-node1" "$command" -I FORWARD -s "$network" -j ACCEPT
        ip netns exec "$PREFIX-node1" "$command" -I FORWARD -d "$network" -j ACCEPT
    done
    all_talk "iptables-legacy's policy remedied"
}

say "firewalls: ${FIREWALLS[*]}, families $INSIDE"
lab_up --pods 2 --inside "$INSIDE"
serve
for name in "${FIREWALLS[@]}"; do
    case $name in
    legacy) legacy ;;
    *) round "$name" ;;
    esac
done
# The counts are those of an agent that was started after the last cleanup.
if kernel_path_carries; then
    until_true 10 "the kernel path of node1 is in use" kernel_path_in_use node1
    in_ns pod1 ping -q -c 3 -i 0.1 "$(address_of pod3)" >"$SCRATCH/ping" || fail "ping at the end"
fi
law_one node1
law_one node2
