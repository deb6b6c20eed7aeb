#!/usr/bin/env bash
# The calls that podman, `ctr` and containerd's CRI were seen to make, made again, and in every version of the
# specification: each is answered as the specification says, and nothing is left of them.
# labs: inside=dual third=tartan device=tun format=vxlan
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

CAPTURED=$TOOLS/captured.jsonl
CALLS=$(jq -r .environment.CNI_COMMAND "$CAPTURED" | sort | uniq -c | awk '{ print $2 ":" $1 }' | paste -sd ' ')

for VERSION in '' 0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0; do
    MADE=$(in_ns node1 python3 "$TOOLS/replay.py" "$CAPTURED" "$BIN/tartan-cni" "$LAB_STATE/node1" "$PREFIX" \
        ${VERSION:+"$VERSION"} 2>&1) || true
    equal "calls in ${VERSION:-their own} version" "$CALLS" "$MADE"
done
