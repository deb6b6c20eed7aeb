# shellcheck shell=bash
# shellcheck disable=SC2034 # The tests use what it sets.
# Kubernetes API servers for tests: the testbed's own, and the real one of scripts/kubernetes with Tartan's service
# account. Sourced after test_case.sh.

TEST_SERVER=$(dirname "$LOAD")/tartan-test-apiserver
DEPLOY=$(readlink -f "$SCRIPTS/../deploy/kubernetes")
# Whom rbac.yaml gives rights to.
ACCOUNT=system:serviceaccount:tartan-system:tartan
RIGHTS="get pods,get nodes,list nodes,watch nodes,patch nodes/status"
# A Python that has python3-yaml, whatever comes first in PATH.
YAML_PYTHON=/usr/bin/python3
REAL_CONFIG=$LAB_STATE/control/admin.kubeconfig
# Lets the real server forget what was before the revision $1.
COMPACT_REAL="set -e
'$SCRIPTS/kubernetes' exec --prefix '$PREFIX' control -- env ETCDCTL_API=3 etcdctl compact \"\$1\"
'$SCRIPTS/kubernetes' stop --prefix '$PREFIX' control kube-apiserver
'$SCRIPTS/kubernetes' start --prefix '$PREFIX' control kube-apiserver"

# The testbed's server, with a user of flannel's rights: $SCRATCH/url, and kubeconfig, kubeconfig-token, kubeconfig-as.
test_server() {
    if [ ! -x "$TEST_SERVER" ]; then "$SCRIPTS/build" --load; fi
    "$TEST_SERVER" --kubeconfig "$SCRATCH" --token "restricted=$ACCOUNT:$RIGHTS" --token "=system:admin:*" \
        >"$SCRATCH/url" &
    STARTED+=("$!")
    until_true 5 "the test server's URL" test -s "$SCRATCH/url" || die "no test server"
}

cluster() {
    "$SCRIPTS/kubernetes" "$1" --prefix "$PREFIX" "${@:2}"
}

# A control plane, whose Nodes no controller changes.
real_server() {
    cluster down >/dev/null
    trap cluster_down EXIT
    cluster up --control-plane-only --nodes 1 >/dev/null || die "no control plane"
}

# Where the real server is within reach, and as its administrator.
real() {
    ip netns exec "$PREFIX-control" env KUBECONFIG="$REAL_CONFIG" "$@"
}

cluster_down() {
    local code=$?
    set +e
    if [ "$code" != 0 ] || [ "$FAILURES" != 0 ]; then tail -n 15 "$LAB_STATE/control/kube-apiserver.log"; fi
    cluster down || fail "the census after 'kubernetes down'"
    # `finish` takes the exit code of what was before.
    (exit "$code")
    finish
}
