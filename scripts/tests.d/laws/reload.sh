#!/usr/bin/env bash
# The configuration is changed again and again, every second time so that it cannot be used, while pods exchange
# datagrams: none is lost, each good change is taken, and each refusal names the key and the reason.
# full: registry=file|kubernetes
# seconds: 600
. "$TOOLS/held_load.sh"

ROOT=$LAB_STATE/node1
SETTINGS=$ROOT/etc/tartan/tartan.toml
# What a refusal must name, and the text.
BROKEN=('shrink-grase|shrink-grase = 300' 'workers|workers = 70000' 'strict-pods|strict-pods = "perhaps"'
    'line 1|iface = "eth' 'line 2|shrink-grace = 300'$'\n''masquer' 'UTF-8|# '$'\xff\xfe' 'spin|spin = "often"')
# The same of the net-conf, by a filter of jq.
BROKEN_NET_CONF=('Network|.Network = "10.244.0.0/33"' 'backend type|.Backend.Type = "none"'
    'Port|.Backend.Port = "eight"' 'EOF|empty')

# The lab's agents have no tartan.toml.
put_back() {
    cp "$SCRATCH/net-conf.json" "$ROOT/net-conf.json"
    rm -rf "$LAB_STATE/node1/etc"
    kill -HUP "$(cat "$ROOT/pid")"
}

# change FILE TEXT WHAT: the log has answered with what it matches; as an editor writes, in place.
change() {
    local before
    before=$(wc -l <"$ROOT/log")
    printf '%s' "$2" >"$1"
    kill -HUP "$(cat "$ROOT/pid")"
    FULL='' until_true 10 "the log says '$3'" said "$before" "$3" || tail -n "+$((before + 1))" "$ROOT/log"
}

said() {
    grep -qzP "$2" < <(tail -n "+$(($1 + 1))" "$ROOT/log")
}

# Another value, which the service starts anew for.
good() {
    GRACE=$((GRACE == 300 ? 400 : 300))
    change "$SETTINGS" "shrink-grace = $GRACE" "(?s)reload: shrink-grace: .*forwarding node="
}

cp "$ROOT/net-conf.json" "$SCRATCH"
mkdir -p "$(dirname "$SETTINGS")"
undo put_back
GRACE=400
start_datagrams pod1 pod3
good
for BAD in "${BROKEN[@]}" "${BROKEN[@]}"; do
    change "$SETTINGS" "${BAD#*|}" "(${BAD%%|*})[^\n]*code=\"configuration-refused\""
    good
done
for BAD in "${BROKEN_NET_CONF[@]}"; do
    TEXT=$(jq "${BAD#*|}" "$SCRATCH/net-conf.json")
    change "$ROOT/net-conf.json" "$TEXT" "(${BAD%%|*})[^\n]*code=\"net-conf-refused\""
    change "$ROOT/net-conf.json" "$(cat "$SCRATCH/net-conf.json")" "nothing has changed that the service goes by"
done
stop_datagrams
equal "datagrams lost" 0 "$LOST"
