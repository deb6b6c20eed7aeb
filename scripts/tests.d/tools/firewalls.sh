# shellcheck shell=bash
# Firewalls that cut forwarded traffic off, in the shapes in which Docker, ufw, Red Hat's iptables service and
# firewalld leave them on a host, and by the tools that they use. Sourced after test_case.sh.

# firewall NAME HOST: puts one up on a host of the lab.
firewall() {
    local reject
    case $1 in
    firewalld) firewalld | ip netns exec "$PREFIX-$2" nft -f - ;;
    *)
        for reject in icmp-host-prohibited icmp6-adm-prohibited; do
            "$1" "$reject" | ip netns exec "$PREFIX-$2" "$(restore "$reject")" --noflush
        done
        ;;
    esac
}

# The families differ in the name of the tool, and of what is said to whom is refused.
restore() {
    case $1 in
    icmp6-*) echo ip6tables-nft-restore ;;
    *) echo iptables-nft-restore ;;
    esac
}

# Docker 28: policy drop, and accepts for its own bridges.
docker() {
    cat <<'TEXT'
*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
COMMIT
TEXT
}

# ufw with `default reject routed`: policy drop, and a chain that rejects before it comes to that.
ufw() {
    cat <<'TEXT'
*filter
:FORWARD DROP [0:0]
:ufw-before-logging-forward - [0:0]
:ufw-before-forward - [0:0]
:ufw-user-forward - [0:0]
:ufw-after-forward - [0:0]
:ufw-after-logging-forward - [0:0]
:ufw-reject-forward - [0:0]
:ufw-track-forward - [0:0]
-A FORWARD -j ufw-before-logging-forward
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-after-forward
-A FORWARD -j ufw-after-logging-forward
-A FORWARD -j ufw-reject-forward
-A FORWARD -j ufw-track-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-after-logging-forward -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
-A ufw-reject-forward -j REJECT
COMMIT
TEXT
}

# Red Hat's /etc/sysconfig/iptables: no policy, a last rule.
redhat() {
    cat <<TEXT
*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lo -j ACCEPT
-A FORWARD -j REJECT --reject-with $1
COMMIT
TEXT
}

# firewalld with its nftables backend: whatever is of no other zone goes to the default zone, which rejects.
firewalld() {
    cat <<'TEXT'
table inet firewalld {
    chain filter_FORWARD {
        type filter hook forward priority filter + 10; policy accept;
        ct state { established, related } accept
        ct status dnat accept
        iifname "lo" accept
        jump filter_FORWARD_ZONES
        ct state { invalid } drop
        reject with icmpx type admin-prohibited
    }
    chain filter_FORWARD_ZONES {
        iifname "eth0" goto filter_FWD_public
        goto filter_FWD_public
    }
    chain filter_FWD_public {
        jump filter_FWD_public_deny
        jump filter_FWD_public_allow
        reject with icmpx type admin-prohibited
    }
    chain filter_FWD_public_deny {
    }
    chain filter_FWD_public_allow {
    }
}
TEXT
}
