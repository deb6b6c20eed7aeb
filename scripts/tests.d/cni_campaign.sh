#!/usr/bin/env bash
# Random ADD, DEL, CHECK and GC of pods, with the plugin killed and the agent restarted at random: nothing leaks, no
# address is given twice.
#
# cni_campaign.sh OPERATIONS
# case: 400
# full: 10000
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

# The seed is in the output; TARTAN_CNI_SEED repeats a run.
TARTAN_CNI_CAMPAIGN=${1:?how many operations} \
    cargo test --profile fast --locked -p cni-shim --test plugin campaign -- --nocapture
