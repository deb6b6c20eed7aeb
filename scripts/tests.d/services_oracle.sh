#!/usr/bin/env bash
# services_oracle.sh FAMILIES: the law `services` holds where no node runs Tartan: its table is what the kernel's VXLAN
# device, flannel's rules and kube-proxy's bring about.
# case: v4
# full: v4
# full: dual
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

lab_up --control --nodes 3 --pods 2 --inside "$1" --outside "$1"
bash "$TOOLS/law.sh" "$TOOLS/../laws/services.sh" || fail "the law in a lab of the kernel's VXLAN devices"
