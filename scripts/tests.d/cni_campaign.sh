#!/usr/bin/env bash
# Random ADD, DEL, CHECK, GC and STATUS of pods, each of two interfaces, while the plugin and the service are killed at
# random: nothing leaks, and no address is given twice.
#
# What is there in the end is compared with what the runtime believes: nothing is swept by the test, what no runtime
# deleted the agent takes away. The seed is in the output; TARTAN_CNI_SEED repeats the choices of a run.
#
# cni_campaign.sh OPERATIONS
# alone: it measures how long STATUS takes
# case: 1000
# full: 10000
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

# Seconds until the agent takes away what has no interface any more; its default is a minute.
export TARTAN_RECLAIM_AFTER=5
lab_up --nodes 1 --pods 0 --inside dual
nsenter --net="/run/netns/$PREFIX-node1" python3 "$TOOLS/campaign.py" "$PREFIX" "$1" "$BIN/tartan-cni" \
    "${TARTAN_CNI_SEED:-$(date +%s%N)}" "$TARTAN_RECLAIM_AFTER" ${FULL:+full} || fail "the campaign"
