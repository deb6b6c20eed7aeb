#!/usr/bin/env bash
# Pods talk through a firewall that drops forwarded packets, whether it appears later or was there before Tartan; what
# it says about some of them goes on to hold; and `tartan cleanup` leaves it byte for byte. A lab has one of three
# firewalls, with --full each. Rules of iptables-legacy, with --full: the log names their tables and the command that
# prints them, and the documented accept rules open them.
# labs: format=vxlan inside=dual
# last: it starts an agent anew
# seconds: 600
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

PORT=7002
# Of the mark that our rules carry.
OURS='tartan: pod traffic'
declare -A OF_KERNEL_PATH=([off]=docker [auto]=ufw [stateless]=firewalld)

# The shapes in which Docker 28, ufw with `default reject routed`, Red Hat's iptables service and firewalld leave their
# rules on a host, and for the tools that they use. What is said to whom Red Hat's refuses differs by family.
declare -A RULES=(
    [docker]=':FORWARD DROP
:DOCKER-FORWARD -
:DOCKER-USER -
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER-FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -i docker0 -j ACCEPT'
    [ufw]=':FORWARD DROP
:ufw-before-forward -
:ufw-user-forward -
:ufw-reject-forward -
-A FORWARD -j ufw-before-forward
-A FORWARD -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
-A FORWARD -j ufw-reject-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-reject-forward -j REJECT'
    [redhat]=':FORWARD ACCEPT
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -j REJECT --reject-with'
    [firewalld]='table inet firewalld {
    chain filter_FORWARD {
        type filter hook forward priority filter + 10; policy accept;
        ct state { established, related } accept
        jump filter_FORWARD_ZONES
        ct state { invalid } drop
        reject with icmpx type admin-prohibited
    }
    chain filter_FORWARD_ZONES { iifname "eth0" goto filter_FWD_public; goto filter_FWD_public; }
    chain filter_FWD_public { reject with icmpx type admin-prohibited; }
}'
)

# firewall NAME: appears on node1, and on mallory, which has no other rules.
firewall() {
    local host rules=${RULES[$1]}
    for host in mallory node1; do
        if [ "$1" = firewalld ]; then
            in_ns "$host" nft -f - <<<"$rules"
        else
            printf '*filter\n%s\nCOMMIT\n' "${rules/%reject-with/reject-with icmp-host-prohibited}" |
                in_ns "$host" iptables-nft-restore --noflush
            printf '*filter\n%s\nCOMMIT\n' "${rules/%reject-with/reject-with icmp6-adm-prohibited}" |
                in_ns "$host" ip6tables-nft-restore --noflush
        fi
    done
}

# Pods of both nodes and of one, and the firewall's node itself, reach each other by new flows of TCP and UDP.
all_talk() {
    local from to
    while read -r from to; do
        equal "$from to $to, $1" "tcp $to udp $to tcp $to udp $to" \
            "$(printf 'any %s '"$PORT"'\n' "$(address_of "$to" 4)" "$(address_of "$to" 6)" |
                in_ns "$from" python3 "$TOOLS/exchange.py" ask | cut -d ' ' -f 1,2 | paste -sd ' ')"
    done <<<$'pod1 pod3\npod3 pod1\npod1 pod2\nnode1 pod3'
}

# answered FROM TO FAMILY COUNT: how many echo requests are.
answered() {
    in_ns "$1" python3 "$TOOLS/pings.py" "$(address_of "$2" "$3")" "$4" 0.02 0.3
}

reaches() {
    [ "$(answered "$@" 1)" = "1 received" ]
}

# no_answers FROM TO WHY
no_answers() {
    local family
    for family in "${FAMILIES[@]}"; do
        equal "of 5 requests of $1 to $2 over IPv$family, $3" "0 received" "$(answered "$1" "$2" "$family" 5)"
    done
}

# The rules of a host, without what they have counted. (To nft the tables of iptables-nft are worth a warning.)
rules() {
    in_ns "$1" nft -s list ruleset 2>"$SCRATCH/nft" | sed -E 's/ packets [0-9]+ bytes [0-9]+//'
}

forwards() {
    in_ns node1 sysctl -qw "net.ipv4.ip_forward=$1" "net.ipv6.conf.all.forwarding=$1"
}

# After the agent's end and a clean-up the firewall is as on a host that never had one.
cleaned_up() {
    lab stop node1
    tartan node1 cleanup >"$SCRATCH/cleanup" || fail "tartan cleanup ended with code $?: $(cat "$SCRATCH/cleanup")"
    same "rules on node1 after cleanup, $1" "$(rules mallory)" "$(rules node1)"
}

# some_are_refused CHAIN: what a firewall says about some packets goes on to hold.
some_are_refused() {
    local command
    in_ns node1 iptables-nft -A "$1" -s "$(address_of pod2 4)" -d "$(address_of pod3 4)" -j DROP
    in_ns node1 ip6tables-nft -A "$1" -s "$(address_of pod2 6)" -d "$(address_of pod3 6)" -j DROP
    no_answers pod2 pod3 "which $1 drops"
    for command in iptables-nft ip6tables-nft; do in_ns node1 "$command" -F "$1"; done
}

# One firewall, from its appearance to the last trace of Tartan, and again with the firewall there first.
round() {
    local family
    firewall "$1"
    for family in "${FAMILIES[@]}"; do
        until_true 2 "new flows of IPv$family go on beside $1" reaches pod1 pod3 "$family"
    done
    all_talk "$1's rules there"
    case $1 in
    docker) some_are_refused DOCKER-USER ;;
    ufw) some_are_refused ufw-user-forward ;;
    esac
    cleaned_up "$1"
    # So it was Tartan's rules that let pods through.
    forwards 1
    no_answers pod1 pod2 "with the firewall alone"
    forwards 0
    lab start node1
    grep -q "$OURS" <<<"$(rules node1)" || fail "no rule of ours stands in $1's"
    all_talk "$1's rules there first"
    no_problem node1 || fail "with $1's rules there is a problem: $(agent_json node1 status | jq -c .problems)"
    cleaned_up "$1, there first"
    in_ns node1 nft flush ruleset
    in_ns mallory nft flush ruleset
    lab start node1
}

# The tables of a command of iptables-legacy, as the agent's log names them, with the command that prints them.
logged() {
    grep -E "tables of iptables-legacy exist.*$1 filter" "$LAB_STATE/node1/log" | grep "\`$1-save\`"
}

# The policy cuts pods off in every family; the log says where to look, docs/operate.md what to add.
legacy() {
    local command network
    for command in iptables-legacy ip6tables-legacy; do
        undo in_ns node1 "$command" -P FORWARD ACCEPT
        undo in_ns node1 "$command" -F FORWARD
        in_ns node1 "$command" -P FORWARD DROP
        until_true 15 "the tables of $command are logged" logged "$command"
        grep -q ':FORWARD DROP' <<<"$(in_ns node1 "$command-save")" || fail "$command-save shows no policy"
    done
    no_answers pod1 pod3 "with iptables-legacy's policy"
    no_problem node1 || fail "existing tables of iptables-legacy are a problem"
    while read -r command network; do
        in_ns node1 "$command" -I FORWARD -s "$network" -j ACCEPT
        in_ns node1 "$command" -I FORWARD -d "$network" -j ACCEPT
    done <<<$'iptables-legacy 10.244.0.0/16\nip6tables-legacy fd00:10:244::/48'
    all_talk "iptables-legacy's policy remedied"
}

for POD in pod1 pod2 pod3; do
    start_in "$POD" python3 "$TOOLS/exchange.py" serve "$POD" "$PORT" "$(address_of "$POD" 4)" "$(address_of "$POD" 6)"
    until_true 5 "$POD serves" is_bound "$POD" udp "$PORT"
done
if [ -n "${FULL:-}" ]; then
    for NAME in "${!RULES[@]}"; do round "$NAME"; done
    legacy
else
    round "${OF_KERNEL_PATH[$KERNEL_PATH]}"
fi
agents_are_ready
