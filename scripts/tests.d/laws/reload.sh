#!/usr/bin/env bash
# The configuration is changed again and again, every second time so that it cannot be used, while pods exchange
# datagrams: none is lost, each good change is taken, and each refusal names the key and the reason.
# full: registry=file|kubernetes
# seconds: 600
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"

CHANGES=${FULL:+200}
CHANGES=${CHANGES:-30}

# The lab's agents have no tartan.toml.
put_back() {
    cp "$SCRATCH/net-conf.json" "$LAB_STATE/node1/net-conf.json"
    rm -rf "$LAB_STATE/node1/etc"
    kill -HUP "$(cat "$LAB_STATE/node1/pid")"
}

cp "$LAB_STATE/node1/net-conf.json" "$SCRATCH"
undo put_back
start_datagrams pod1 pod3
python3 "$TOOLS/reloads.py" "$LAB_STATE/node1" "$CHANGES" >"$SCRATCH/reloads" || fail "reloads.py ended with $?"
stop_datagrams
say "$(jq -c 'del(.wrong)' "$SCRATCH/reloads")"
equal "answers that were not as they should be" '[]' "$(jq -c '.wrong[:3]' "$SCRATCH/reloads")"
equal "half of them were refused" $((CHANGES / 2)) "$(jq .refused "$SCRATCH/reloads")"
equal "datagrams lost" 0 "$LOST"
