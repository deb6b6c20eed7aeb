#!/usr/bin/env bash
# Random ADD, DEL, CHECK, GC and STATUS of pods, each of up to two interfaces, while the plugin and the service are
# killed at random: no address is given twice, and in the end the node is what it was before: what no runtime deletes
# the agent takes away. The seed is in the output; TARTAN_CNI_SEED repeats the choices of a run.
#
# cni_campaign.sh OPERATIONS
# case: 1000
# full: 10000
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

# What the node and its pods hold, but the loopback device, which ADD brings up. Of token buckets their links tell.
is_as_before() {
    lab facts | grep -vE 'attachments/\.|^lo[ :]' >"$SCRATCH/after"
    cmp -s "$SCRATCH"/{before,after}
}

# Seconds until the agent takes away what has no interface any more; its default is a minute.
export TARTAN_RECLAIM_AFTER=5
lab_up --nodes 1 --pods 0 --inside dual
for NUMBER in {1..30}; do make_namespace "campaign$NUMBER"; done
is_as_before || cp "$SCRATCH"/{after,before}
nsenter --net="/run/netns/$PREFIX-node1" python3 "$TOOLS/campaign.py" "$PREFIX" "$1" "$BIN" \
    "${TARTAN_CNI_SEED:-$(date +%s%N)}" "$PREFIX"-campaign{1..30} || fail "the campaign"
until_true 60 "all is as it was" is_as_before || diff "$SCRATCH"/{before,after}
equal "pods of the agent" '[]' "$(agent_json node1 pods | jq -c .pods)"
law_one node1
