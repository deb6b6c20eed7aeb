#!/usr/bin/env bash
# Pods talk through a firewall that drops forwarded packets, whether it appears later or was there before Tartan; what
# it says about some of them goes on to hold; and `tartan cleanup` leaves it byte for byte. A lab has one of three
# firewalls. (agent/src/host/firewall and agent/tests/host have more shapes, and iptables-legacy.)
# labs: format=vxlan inside=dual
# last: it starts an agent anew

PORT=7002
# The shapes in which Docker 28, ufw with `default reject routed` and firewalld leave their rules on a host, and for the
# tools that they use; by the kernel path of the labs that have them.
declare -A RULES=(
    [off]='*filter
:FORWARD DROP
:DOCKER-FORWARD -
:DOCKER-USER -
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER-FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -i docker0 -j ACCEPT
COMMIT'
    [auto]='*filter
:FORWARD DROP
:ufw-before-forward -
:ufw-user-forward -
:ufw-reject-forward -
-A FORWARD -j ufw-before-forward
-A FORWARD -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
-A FORWARD -j ufw-reject-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-reject-forward -j REJECT
COMMIT'
    [stateless]='table inet firewalld {
    chain filter_FORWARD {
        type filter hook forward priority filter + 10; policy accept; ct state { established, related } accept
        jump filter_FORWARD_ZONES; ct state { invalid } drop; reject with icmpx type admin-prohibited
    }
    chain filter_FORWARD_ZONES { iifname "eth0" goto filter_FWD_public; goto filter_FWD_public; }
    chain filter_FWD_public { reject with icmpx type admin-prohibited; }
}'
)

# firewall RULES: appears on node1, and on mallory, which has no other rules.
firewall() {
    local host command commands=("iptables-nft-restore --noflush" "ip6tables-nft-restore --noflush")
    if [[ $1 == table* ]]; then commands=("nft -f -"); fi
    for host in mallory node1; do
        # shellcheck disable=SC2086
        for command in "${commands[@]}"; do in_ns "$host" $command <<<"$1"; done
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

# no_answers FROM TO WHY
no_answers() {
    for FAMILY in "${FAMILIES[@]}"; do
        equal "of 5 requests of $1 to $2 over IPv$FAMILY, $3" "0 received" \
            "$(in_ns "$1" python3 "$TOOLS/pings.py" "$(address_of "$2" "$FAMILY")" 5 0.02 0.3)"
    done
}

# The rules of a host, without what they have counted. (To nft the tables of iptables-nft are worth a warning.)
rules() {
    in_ns "$1" nft -s list ruleset 2>"$SCRATCH/nft" | sed -E 's/ packets [0-9]+ bytes [0-9]+//'
}

# After the agent's end and a clean-up the firewall is as on a host that never had one.
cleaned_up() {
    lab stop node1
    tartan node1 cleanup >"$SCRATCH/cleanup" || fail "tartan cleanup ended with code $?: $(cat "$SCRATCH/cleanup")"
    same "rules on node1 after cleanup, $1" "$(rules mallory)" "$(rules node1)"
}

# some_are_refused CHAIN: what a firewall says about some packets goes on to hold.
some_are_refused() {
    in_ns node1 iptables-nft -A "$1" -s "$(address_of pod2 4)" -d "$(address_of pod3 4)" -j DROP
    in_ns node1 ip6tables-nft -A "$1" -s "$(address_of pod2 6)" -d "$(address_of pod3 6)" -j DROP
    no_answers pod2 pod3 "which $1 drops"
    for COMMAND in iptables-nft ip6tables-nft; do in_ns node1 "$COMMAND" -F "$1"; done
}

for POD in pod1 pod2 pod3; do
    start_in "$POD" python3 "$TOOLS/exchange.py" serve "$POD" "$PORT" "$(address_of "$POD" 4)" "$(address_of "$POD" 6)"
done
for POD in pod1 pod2 pod3; do until_true 5 "$POD serves" is_bound "$POD" udp "$PORT"; done
firewall "${RULES[$KERNEL_PATH]}"
for FAMILY in "${FAMILIES[@]}"; do
    until_true 2 "new flows of IPv$FAMILY go on beside the firewall" \
        in_ns pod1 ping -q -c 1 -W 0.3 "$(address_of pod3 "$FAMILY")"
done
all_talk "the firewall's rules there"
[ "$KERNEL_PATH" != off ] || some_are_refused DOCKER-USER
[ "$KERNEL_PATH" != auto ] || some_are_refused ufw-user-forward
cleaned_up "the firewall later"
# So it was Tartan's rules that let pods through.
in_ns node1 sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
no_answers pod1 pod2 "with the firewall alone"
in_ns node1 sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0
lab start node1
# The mark that our rules carry.
grep -q 'tartan: pod traffic' <<<"$(rules node1)" || fail "no rule of ours stands in the firewall's"
all_talk "the firewall's rules there first"
no_problem node1 || fail "with the firewall there is a problem: $(agent_json node1 status | jq -c .problems)"
cleaned_up "the firewall first"
in_ns node1 nft flush ruleset
in_ns mallory nft flush ruleset
lab start node1
agents_are_ready
