#!/usr/bin/env bash
# `tartan top` shows the traffic that there is: path, peers, pods and flows agree with what a pod sends. On a terminal,
# which is tmux's, of 80 x 24 and 200 x 60, no word is cut and cells stand where their headings do, on every tab; it
# says that the agent is gone, goes on when one answers, and gives the terminal back whatever ends it.
# labs: kernel-path=off inside!=v6 workers=2 third=kernel-vxlan
# labs: device=plain format=udp

FAR=$(address_of pod3 4)
# Packets of so many bytes, 200 a second: a busy machine sends them later, but never more of them.
COUNT=2000
SIZE=1000
# An agent puts its own socket back at once: this is another way to it, which can be taken away.
SOCKET=run/tartan/tartan.sock

# shown WHAT FILTER: what top must show; in the filter `some` is a rate of what is sent, with a bar with --full alone.
shown() {
    local some=". > 0 and . * \$picture.interval < $COUNT"
    if [ -n "${FULL:-}" ]; then some='. > 50 and . < 260'; fi
    jq -e ". as \$picture | def some: .per_second | $some; $2" <<<"$PICTURE" >/dev/null ||
        fail "top does not show $1: $(jq -c '{interval, path, peers, flows: .flows[:4]}' <<<"$PICTURE")"
}

has_sent() { [ "$(device_count pod1 eth0 tx_packets)" -gt "$1" ]; }

terminal() {
    LC_ALL=C.UTF-8 tmux -u -S "$SCRATCH/tmux" -f /dev/null "$@"
}

# top_in WIDTH HEIGHT ROOT: begins; ROOT is the agent's. Behind its end the terminal tells the exit code and its modes.
top_in() {
    terminal start-server \; set -g exit-empty off \; new-session -d -x "$1" -y "$2" \
        "ip netns exec '$PREFIX-node1' '$BIN/tartan' --root '$3' top; echo \"ended: \$?\"; stty -a; exec sleep 600"
    # Whatever becomes of the test, the server ends with it.
    STARTED+=("$(terminal display -p '#{pid}')")
}

# shows TEXT: on whatever lines it is.
shows() {
    until_true 20 "the screen shows '$1'" has_text "$1" || terminal capture-pane -p >&2
}

has_text() {
    grep -qF -- "$1" <<<"$(terminal capture-pane -p | tr -s '\n ' ' ')"
}

# given_back HOW CMD...: this ends it, with code 0, and the terminal has screen, cursor, mouse and cooked mode again.
given_back() {
    "${@:2}"
    shows "ended: 0"
    equal "after $1: second screen, cursor, mouse, mode" "0 1 0 icanon" "$(terminal display -p \
        '#{alternate_on} #{cursor_flag} #{mouse_any_flag}') $(grep -oe '-*icanon' <<<"$(terminal capture-pane -p)")"
    terminal kill-session
}

# is_whole TAB: the screen has its title, tabs and keys, no word is cut (but in the help), and cells begin or end where
# their headings do.
is_whole() {
    terminal capture-pane -p | python3 -c '
import re, sys
lines, tab = sys.stdin.read().split("\n")[:-1], sys.argv[1]
tabs = next(at for at, line in enumerate(lines) if line.startswith(" 1 path  2 peers ("))
heads = [found.span() for found in re.finditer(r"\S+(?: \S+)*", lines[tabs + 1].rstrip())]
# What goes on from the line above has no first cell.
rows = [f" {line} " for line in lines[tabs + 2 : -1] if line[:1].strip()] if tab in "23456" else []
placed = all(re.match(r"\s\S", row[start:]) or re.match(r"\S\s", row[end:]) for row in rows for start, end in heads)
sys.exit(not (placed and re.match("tartan top  node1  .* every 1 s$", lines[0]) and "p pause  ? help" in lines[-1]
              and (tab == "?" or "…" not in "".join(lines))))' "$1"
}

PICTURE=$(tartan node1 top -o json)
shown "no traffic of an idle node" \
    '.path.outbound.sent.per_second == 0 and .peers[0].traffic.sent_bytes.per_second == 0'
start_in pod1 ping -q -c "$COUNT" -i 0.005 -s $((SIZE - 28)) "$FAR"
until_true 5 "requests are sent" has_sent $(($(device_count pod1 eth0 tx_packets) + 50))
PICTURE=$(tartan node1 top --interval 2 -o json)
shown "requests on the path" '.path.outbound.sent | some'
shown "and their answers" '.path.inbound.delivered | some'
shown "both at the peer" '.peers[] | select(.name == "node2").traffic | [.sent_packets, .received_packets] | all(some)'
shown "the pod's" '.pods | map(.traffic.sent_packets) | max_by(.per_second) | some'
shown "the flow to the pod, and no others" \
    ".flows | map(select(.destination == \"$FAR\" and .direction == \"outbound\"))
    | length == 1 and (.[0] | .protocol == \"icmp\" and .peer == \"node2\" and (.packets | some))"
shown "the flow back" ".flows | map(select(.source == \"$FAR\" and .direction == \"inbound\"))
    | length == 1 and (.[0].packets | some)"
shown "the bytes of each flow" ".flows | all(.bytes.total == .packets.total * $SIZE)"
shown "batches" '[.workers[] | .outbound_batches.packets_of_one // 0] | max >= 1'
shown "workers that are somewhat busy" '[.workers[] | .busy // 0] | max > 0 and max <= 1'
grep -q "> $FAR .*icmp" <<<"$(tartan node1 top --once flows)" || fail "the text has no such flow"

for SCREEN in "200 60" "80 24"; do
    # shellcheck disable=SC2086
    top_in $SCREEN "$LAB_STATE/node1"
    shows "every 1 s"
    for TAB in 1 2 3 4 5 6 "?"; do
        terminal send-keys "$TAB"
        until_true 10 "$SCREEN: tab $TAB is whole" is_whole "$TAB" || terminal capture-pane -p >&2
    done
    # One key closes the help, the other ends it.
    given_back q terminal send-keys x q
done

mkdir -p "$SCRATCH/root/${SOCKET%/*}"
ln -s "$LAB_STATE/node1/$SOCKET" "$SCRATCH/root/$SOCKET"
top_in 80 24 "$SCRATCH/root"
shows "1 path"
terminal send-keys 4
shows "FLOW"
rm "$SCRATCH/root/$SOCKET"
shows "NO ANSWER"
ln -s "$LAB_STATE/node1/$SOCKET" "$SCRATCH/root/$SOCKET"
shows "the agent answers again"
terminal kill-session
for SIGNAL in INT TERM; do
    top_in 80 24 "$SCRATCH/root"
    shows "1 path"
    given_back "SIG$SIGNAL" pkill "-$SIGNAL" -P "$(terminal display -p '#{pane_pid}')"
done
terminal kill-server
