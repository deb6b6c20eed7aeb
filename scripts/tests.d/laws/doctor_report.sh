#!/usr/bin/env bash
# What a node says of itself elsewhere: `tartan doctor --all` on another node shows its problems by their codes within
# 10 s, and that a kernel's VXLAN node does not tell; `tartan report` is whole, bounded, and without secrets.
# labs: probes=on third=kernel-vxlan

ROOT=$LAB_STATE/node1
SECRET=planted-hunter2-secret
NOWHERE=10.244.254.9 NETWORK=10.244.2.0
if [ "$INSIDE" = v6 ]; then NOWHERE=fd00:10:244:fe::9 NETWORK=fd00:10:244:2::; fi

# others_say EXIT-CODE NODE ANSWER ARG...: what the doctor of node1 says of another: its codes, or `?` and the reason.
others_say() {
    local code=0
    tartan node1 doctor -o json "${@:4}" >"$SCRATCH/doctor" || code=$?
    [ "$code" = "$1" ] && [ "$(jq -r --arg node "$2" '.others[] | select(.name == $node)
        | if .told then [.problems[] | "\(.code) (\(.subject))"] | join(" ") else "? " + .reason end' \
        "$SCRATCH/doctor")" = "$3" ]
}

until_true 10 "node2 is well" others_say 0 node2 "" --all
until_true 10 "node3 does not tell" others_say 0 node3 "? it answers no probes, as a node that runs flannel" --all
undo eval "ip -n $PREFIX-node2 link delete flannel.1 2>/dev/null || true"
ip -n "$PREFIX-node2" link add flannel.1 type vxlan id 77 dev eth0 dstport 8479
ip -n "$PREFIX-node2" address add "$NETWORK" dev flannel.1
until_true 10 "node2 tells" others_say 1 node2 "flannel-left-over (flannel.1)" --peer node2 || cat "$SCRATCH/doctor"
tartan node1 doctor --all >"$SCRATCH/table" || true
grep -q 'flannel-left-over (flannel.1)' "$SCRATCH/table" || fail "the table does not say it: $(cat "$SCRATCH/table")"
ip -n "$PREFIX-node2" link delete flannel.1
until_true 10 "node2 is well again" others_say 0 node2 "" --peer node2
tartan node1 doctor -o json --peer node99 >"$SCRATCH/doctor" && fail "the doctor knows node99"
equal "of no such node" true "$(jq '.others_not_asked | contains("no peer is called node99")' "$SCRATCH/doctor")"

# A report, with what must not be in it.
undo rm -rf "$ROOT/etc/tartan" "$ROOT/var/lib/tartan/key.pem"
mkdir -p "$ROOT/etc/tartan" "$SCRATCH/report"
printf 'etcd-username = "root"\netcd-password = "%s"\n' "$SECRET" >"$ROOT/etc/tartan/tartan.toml"
printf 'https://root:%s@192.0.2.9 Bearer %s said %s\n' "$SECRET" "$SECRET" "$SECRET" >>"$ROOT/log"
printf -- '-----BEGIN PRIVATE KEY-----\n%s\n-----END PRIVATE KEY-----\n' "$SECRET" >"$ROOT/var/lib/tartan/key.pem"
PARTS=(CONTENTS doctor.json answers/status.json kernel/rules kernel/links log/service counters/snmp
    settings/ipv4.ip_forward service/words)
FLAGS=(--net-conf "$ROOT/net-conf.json")
if [ "$REGISTRY" = file ]; then
    { cat "$ROOT/nodes.toml" && echo "# token: $SECRET"; } >"$SCRATCH/nodes.toml"
    FLAGS+=(--node-file "$SCRATCH/nodes.toml")
    PARTS+=(configuration/nodes.toml)
fi
# What is dropped while the report is made is in it.
start_in pod1 ping -q -i 0.05 "$NOWHERE"
tartan node1 report -w "$SCRATCH/report.tar.gz" "${FLAGS[@]}" >/dev/null || fail "tartan report ended with code $?"
stop "$PID"
tar -xzf "$SCRATCH/report.tar.gz" -C "$SCRATCH/report" --strip-components 1
equal "parts of the report" "${PARTS[*]}" \
    "$(for PART in "${PARTS[@]}"; do [ ! -s "$SCRATCH/report/$PART" ] || echo "$PART"; done | xargs)"
grep -q '"verdict":"NoRoute"' "$SCRATCH/report/answers/drops-now" || fail "no drop of the time of the report"
equal "secrets in the report" "" "$(grep -rla "$SECRET" "$SCRATCH/report")"
grep -q redacted "$SCRATCH/report/log/service" || fail "the log is not that of the service"
at_most "bytes of the report" 4000000 "$(stat -c %s "$SCRATCH/report.tar.gz")"
equal "mode of the report" 600 "$(stat -c %a "$SCRATCH/report.tar.gz")"
