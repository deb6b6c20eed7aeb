# shellcheck shell=bash
# The census: what the host holds, one fact a line, before a lab and after it. Sourced by scripts/lab.

# Facts of the host's own namespace, which a lab must not change at all, and of whatever carries the
# lab's name. Counters and lifetimes are no facts.
census() {
    local path device hook
    ip -j link show | jq -r '.[] | "link \(.ifname)"'
    ip -j address show | jq -r '.[] | .ifname as $i | .addr_info[] | "address \($i) \(.local)/\(.prefixlen)"'
    ip -o route show table all | sed -E 's/ expires [^ ]+//; s/^/route /'
    ip -o -6 route show table all | sed -E 's/ expires [^ ]+//; s/^/route6 /'
    ip rule show | sed 's/^/rule /'
    # Their handles are numbers that the kernel gives anew.
    tc qdisc show | sed -nE 's/^qdisc (clsact|ingress) [^ ]+ dev ([^ ]+).*/\1 \2/p' | while read -r path device; do
        echo "qdisc $path $device"
        for hook in ingress egress; do tc filter show dev "$device" "$hook" | sed "s/^/filter $device $hook /"; done
    done
    nft list ruleset | sed -E 's/ counter packets [0-9]+ bytes [0-9]+//; s/^/nft /'
    sysctl -e net.ipv4.ip_forward net.ipv6.conf.all.forwarding | sed 's/^/sysctl /'
    lab_namespaces | sed 's/^/namespace /'
    for path in /run/tartan /var/lib/tartan /etc/tartan /run/flannel; do
        if [ -e "$path" ]; then echo "file $path"; fi
    done
    lab_leftovers
}

# BPF objects that the lab's nodes held, files below the lab's directory, and processes: those in its namespaces, and agents that were started
# from its directory, wherever they are. The two are found in different ways, so that neither hides a
# mistake of the other.
lab_leftovers() {
    local pid file
    [ -n "${NAMESPACE_INODES+noted}" ] || return 0
    python3 "$LAB_HOME/lab.d/bpf_objects.py" alive <<<"${BPF_OBJECTS:-}" | sed 's/^/bpf /'
    if [ -e "$STATE" ]; then find "$STATE" | sed 's/^/file /'; fi
    for pid in $(lab_processes); do
        echo "process $pid in a namespace: $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)"
    done
    { grep -slF "$STATE/" /proc/[0-9]*/cmdline || true; } | while IFS= read -r file; do
        case $(readlink "${file%/cmdline}/exe") in
        */tartan | */tartan-cni | */tartan-test-apiserver | */etcd | */tartan\ * | */tartan-cni\ *) echo "process $file: $(tr '\0' ' ' <"$file" 2>/dev/null)" ;;
        esac
    done
}

# The BPF programs and maps of the lab's nodes, noted while their processes and devices are there.
note_bpf_objects() {
    local spaces
    mapfile -t spaces < <(lab_namespaces | grep "^$PREFIX-node")
    BPF_OBJECTS=$(python3 "$LAB_HOME/lab.d/bpf_objects.py" held "${spaces[@]}")
}

# The kernel gives the number of a namespace that is gone to the next one: what bears a name now is another lab's.
# (One of ours that still has its name is in the census by that.)
forget_numbers_of_others() {
    NAMESPACE_INODES=$(comm -23 <(sort <<<"$NAMESPACE_INODES") <({ stat -L -c %i /run/netns/* 2>/dev/null || true; } | sort))
}

# $1 the census before `up`, empty when the lab never came that far; $2 the function that takes it, if not `census`.
# Leftovers may take a moment to go (the kernel removes a namespace in the background), so a difference counts when it
# stays.
census_compare() {
    local before=$1 after wait difference=''
    for ((wait = 0; wait < 25; wait++)); do
        forget_numbers_of_others
        after=$("${2:-census}")
        if [ -n "$before" ]; then
            difference=$(diff <(sort <<<"$before") <(sort <<<"$after") | grep '^[<>]') || true
        else
            difference=$(grep -E '^(namespace|process|bpf) ' <<<"$after") || true
        fi
        [ -n "$difference" ] || return 0
        sleep 0.2
    done
    die "the lab '$PREFIX' left a difference behind ('<' was there before, '>' is there now):
$difference"
}

# What the lab consists of, one fact a line: links, addresses, routes, rules, settings and processes of each of its
# namespaces, and its files. Numbers that the kernel gives anew, counters, lifetimes and what lies below a node's sys are none,
# nor whether a TUN was taken over (its state, from then on, is UP) and which peers answered probes.
facts() {
    local space
    for space in $(lab_namespaces); do
        echo "namespace ${space#"$PREFIX"-}"
        ip netns exec "$space" sh -c "$FACTS_OF_ONE"
    done | sed -E 's/\\.*//; s/^[0-9]+: ([^:@ ]+)(@[^: ]+)?/\1/; s/ (expires|nhid|qlen|valid_lft|preferred_lft) [^ ]+//g; s/ state UNKNOWN / state UP /'
    for space in $(lab_processes); do
        echo "process $(tr '\0' ' ' <"/proc/$space/cmdline" 2>/dev/null)"
    done | sed 's/ --load [^ ]*//' | { grep -vE '^process ($|.*tartan .*(service|--as)|[^ ]*sh |ip netns)' || true; } | sort
    find "$STATE" -path '*/sys/*' -prune -o -type f -print | grep -vE '/(log|facts|registry/data/.*|census\.before|namespaces|answering-peers\.json)$' | sort
    find "$STATE" -path '*/sys/*' -prune -o \( -name nodes.toml -o -name net-conf.json -o -name subnet.env -o -name pods -o -name tartan.toml \) -type f -exec md5sum {} + | sort
}

# Run in a namespace. What packets put into a set is no fact, nor which table is the newest, or which pod's rules are.
# shellcheck disable=SC2016
FACTS_OF_ONE='
    ip -o link show | sed "s/^[0-9]*:/0:/" | sort
    ip -o address show | sed "s/^[0-9]*:/0:/" | sort
    ip -4 -o route show table all | grep -vE "^(broadcast|multicast|local)| proto kernel"
    ip -6 -o route show table all | grep -vE "^(broadcast|multicast|local|anycast)| proto kernel"
    ip -4 rule show
    ip -6 rule show
    nft list tables | sort | while read -r _ family table; do
        nft -s list table "$family" "$table" | if [ "$table" = tartan-pods ]; then sort; else cat; fi
    done |
        awk "/flags dynamic/ { dynamic = 1 } /^\t}/ { dynamic = skip = 0 } dynamic && /elements/ { skip = 1 } ! skip"
    grep -s . /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv[46]/conf/*/forwarding /proc/sys/net/ipv[46]/conf/*/accept_ra \
        /proc/sys/net/ipv4/conf/*/rp_filter /proc/sys/net/ipv4/conf/*/accept_local /proc/sys/net/ipv6/conf/*/disable_ipv6
'
