#!/usr/bin/env bash
# The calls that podman, `ctr` and containerd's CRI were seen to make, made again, and in every version of the
# specification: each is answered as the specification says, and nothing is left of them.
#
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

VERSIONS=(0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0)
CAPTURED=$TOOLS/captured.jsonl
CALLS=$(jq -r .environment.CNI_COMMAND "$CAPTURED" | sort | uniq -c | awk '{ print $2 ":" $1 }' | paste -sd ' ')

# replay [VERSION]: in their own version without one.
replay() {
    local made
    made=$(in_ns node1 python3 "$TOOLS/replay.py" "$CAPTURED" "$(in_ns node1 sh -c 'command -v tartan-cni')" "$LAB_STATE/node1" "$PREFIX" "$@" 2>&1) || true
    equal "calls in ${1:-their own} version" "$CALLS" "$made"
}

lab_up --pods 0
for version in '' "${VERSIONS[@]}"; do
    replay ${version:+"$version"}
done
equal "attachment records left" '' "$(find "$LAB_STATE/node1/run/tartan/attachments" -type f -name '*.json')"
equal "links left" '' "$(ip -n "$PREFIX-node1" -j link show | jq -r '.[].ifname | select(startswith("tt"))')"
law_one node1
