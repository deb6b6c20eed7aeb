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

# BPF objects that the lab's nodes held, files below the lab's directory, and processes: those in its namespaces, and
# agents that were started from its directory, wherever they are. The two are found in different ways, so that neither
# hides a mistake of the other.
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
        */tartan | */tartan-cni | */tartan-test-apiserver | */etcd | */tartan\ * | */tartan-cni\ * | \
            */kube* | */containerd* | */catatonit* | */nsenter*)
            echo "process $file: $(tr '\0' ' ' <"$file" 2>/dev/null)"
            ;;
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
    NAMESPACE_INODES=$(comm -23 <(sort <<<"$NAMESPACE_INODES") \
        <({ stat -L -c %i /run/netns/* 2>/dev/null || true; } | sort))
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

# What the lab consists of.
facts() {
    lab_namespaces | python3 "$LAB_HOME/lab.d/facts.py" "$STATE"
}
