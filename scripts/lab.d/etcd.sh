# shellcheck shell=bash
# The registry etcd, with flannel's keys below /coreos.com/network. Sourced by scripts/lab.
#
# With --secure it speaks TLS, asks for certificates of clients, and has users: root, and tartan for the nodes, who may
# read and write below the prefix alone.

ETCD_PREFIX=/coreos.com/network
# Of the user tartan, and of root.
ETCD_PASSWORD=tartan-in-the-lab

etcd_prepare() {
    local scheme=http
    need_tools etcd etcdctl
    if [ -n "$SECURE" ]; then
        scheme=https
        need_tools openssl
        etcd_certificates
    fi
    {
        echo ETCDCTL_API=3
        echo "ETCDCTL_ENDPOINTS=$scheme://127.0.0.1:2379"
        if [ -n "$SECURE" ]; then
            echo "ETCDCTL_CACERT=$STATE/registry/tls/ca.pem"
            echo "ETCDCTL_CERT=$STATE/registry/tls/client.pem"
            echo "ETCDCTL_KEY=$STATE/registry/tls/client.key"
        fi
    } >"$STATE/registry/environment"
}

# An authority, the server's certificate and one for every client. Clients' have no name that etcd could take for a user.
etcd_certificates() {
    local tls=$STATE/registry/tls family names=IP:127.0.0.1 name
    mkdir -m 700 "$tls"
    for family in $(outside); do names+=",IP:$(underlay_address "$REGISTRY_HOST" "$family")"; done
    {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=lab authority" \
            -keyout "$tls/ca.key" -out "$tls/ca.pem"
        for name in server client; do
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/O=lab $name" \
                -keyout "$tls/$name.key" -out "$tls/$name.csr"
            openssl x509 -req -in "$tls/$name.csr" -CA "$tls/ca.pem" -CAkey "$tls/ca.key" -CAcreateserial -days 2 \
                -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$names") -out "$tls/$name.pem"
        done
    } >"$tls/log" 2>&1 || die "openssl makes no certificates: $(tail -n 3 "$tls/log")"
}

etcd_start() {
    local family urls scheme=http options=()
    [ -z "$SECURE" ] || scheme=https
    urls=$scheme://127.0.0.1:2379
    for family in $(outside); do
        case $family in
        4) urls+=",$scheme://$(underlay_address "$REGISTRY_HOST" 4):2379" ;;
        6) urls+=",$scheme://[$(underlay_address "$REGISTRY_HOST" 6)]:2379" ;;
        esac
    done
    if [ -n "$SECURE" ]; then
        options=(--client-cert-auth --trusted-ca-file "$STATE/registry/tls/ca.pem"
            --cert-file "$STATE/registry/tls/server.pem" --key-file "$STATE/registry/tls/server.key")
    fi
    registry_process etcd --name lab --data-dir "$STATE/registry/data/etcd" --logger zap \
        --listen-client-urls "$urls" --advertise-client-urls "$urls" --listen-peer-urls http://127.0.0.1:2380 \
        --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster lab=http://127.0.0.1:2380 \
        "${options[@]}" "$@"
}

etcd_answers() {
    registry_in etcdctl --command-timeout 1s get "$ETCD_PREFIX/config" && return 0
    # With users on, who asks without a name is refused: it answers.
    grep -q 'user name is empty' <<<"$(registry_in etcdctl --command-timeout 1s get "$ETCD_PREFIX/config" 2>&1)"
}

etcd_started() { :; }

etcd_stopping() { :; }

# The cluster's configuration, and what is to be there of the nodes.
etcd_fill() {
    etcdctl put "$ETCD_PREFIX/config" "$(net_conf)" >/dev/null
    registry_nodes
    [ -z "$SECURE" ] || etcd_users
}

# etcdctl as root, once there are users.
etcdctl() {
    registry_in etcdctl "$@"
}

etcd_users() {
    {
        etcdctl user add root --new-user-password "$ETCD_PASSWORD"
        etcdctl user grant-role root root
        etcdctl user add tartan --new-user-password "$ETCD_PASSWORD"
        etcdctl role add tartan
        etcdctl role grant-permission tartan readwrite --prefix=true "$ETCD_PREFIX/"
        etcdctl user grant-role tartan tartan
        etcdctl auth enable
    } >/dev/null
    echo "ETCDCTL_USER=root:$ETCD_PASSWORD" >>"$STATE/registry/environment"
}

# A Tartan node finds its subnet reserved: a key with its public address and without a lifetime, as flannel's
# reservations (flannel, Documentation/reservations.md). A kernel node has the lease of a day that flanneld would have.
etcd_node() {
    local lease
    case $(node_kind "$1") in
    tartan)
        [ -n "$ACQUIRE" ] || etcdctl put "$(etcd_key "$1")" "{$(etcd_public "$1")}" >/dev/null
        ;;
    kernel-vxlan)
        lease=$(etcdctl lease grant 86400 | awk '{ print $2 }')
        etcdctl put --lease="$lease" "$(etcd_key "$1")" "$(etcd_kernel_lease "$1")" >/dev/null
        ;;
    esac
}

etcd_node_gone() {
    local key
    for key in $(etcd_keys_of "$1"); do etcdctl del "$key" >/dev/null; done
}

# The keys whose lease has the public address of node $1.
etcd_keys_of() {
    etcd_leases | jq -r --arg four "$(underlay_address "$1" 4)" --arg six "$(underlay_address "$1" 6)" \
        'select(.public4 == $four or .public6 == $six) | .key'
}

etcd_key() {
    local family part=''
    for family in $(inside); do
        part+="${part:+&}$(pod_subnet "$1" "$family" | tr / -)"
    done
    echo "$ETCD_PREFIX/subnets/$part"
}

etcd_public() {
    local six=null
    if has 6 "$(inside)"; then six="\"$(underlay_address "$1" 6)\""; fi
    printf '"PublicIP":"%s","PublicIPv6":%s' "$(underlay_address "$1" 4)" "$six"
}

etcd_kernel_lease() {
    local data
    data="\"BackendData\":$(kernel_backend_data "$1" 4)"
    if has 6 "$(inside)"; then data+=",\"BackendV6Data\":$(kernel_backend_data "$1" 6)"; fi
    printf '{%s,"BackendType":"vxlan",%s}' "$(etcd_public "$1")" "$data"
}

etcd_options() {
    local scheme=http
    if [ -n "$SECURE" ]; then
        scheme=https
        printf '%s\n' --etcd-cafile "$STATE/registry/tls/ca.pem" --etcd-certfile "$STATE/registry/tls/client.pem" \
            --etcd-keyfile "$STATE/registry/tls/client.key" --etcd-username tartan
    fi
    printf '%s\n' --etcd-endpoints "$scheme://$(registry_host):2379"
}

# Every lease on a line of JSON; what is no lease is left out.
etcd_leases() {
    etcdctl get --prefix "$ETCD_PREFIX/subnets/" -w json | jq -c '.kvs // [] | .[]
        | (.key | @base64d) as $key | (.value | @base64d | try fromjson catch empty)
        | {key: $key, subnets: ($key | split("/")[-1] | split("&") | map(sub("-(?<n>[0-9]+)$"; "/\(.n)"))),
            type: (.BackendType // "udp"), public4: .PublicIP, public6: .PublicIPv6,
            mac4: .BackendData.VtepMAC, mac6: .BackendV6Data.VtepMAC}'
}

etcd_save() {
    etcdctl snapshot save "$1" >>"$STATE/registry/log" 2>&1
}

etcd_restore() {
    exec_in registry etcdctl snapshot restore "$1" --name lab --data-dir "$STATE/registry/data/etcd" \
        --initial-cluster lab=http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
        >>"$STATE/registry/log" 2>&1
}
