#!/usr/bin/env bash
# The registry `kubernetes` against a real API server: the tests of agent/tests/kubernetes that need no fault of the
# server, with Nodes that they create, change and delete themselves. Daily they run against the testbed's server, by
# cargo test. No controller runs, so that no subnet is assigned but by the tests.
#
#   control: etcd, API server  <──  the tests, in the same namespace
#
# kubernetes_registry.sh: no arguments.
# needs: scripts/kubernetes
# full:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

cluster() {
    "$SCRIPTS/kubernetes" "$1" --prefix "$PREFIX" "${@:2}"
}

cluster_down() {
    local code=$?
    cluster down || fail "the census after 'kubernetes down'"
    (exit "$code")
    finish
}
trap cluster_down EXIT

# The build that the agents are of.
case ${LAB_BIN:-fast} in
*/debug) PROFILE=dev ;;
*) PROFILE=fast ;;
esac
TESTS=$(cd "$SCRIPTS/.." && cargo test --locked --profile "$PROFILE" -p tartan --test kubernetes --no-run 2>&1 |
    sed -nE 's/^ *Executable .*\((.*)\)$/\1/p')
TESTS=$(realpath "$SCRIPTS/../$TESTS")

cluster down >/dev/null
cluster up --nodes 1 --control-plane-only
cluster stop control kube-controller-manager
cluster exec control -- env TARTAN_TEST_KUBECONFIG="$LAB_STATE/control/admin.kubeconfig" \
    "$TESTS" --test-threads=1 membership own_record
