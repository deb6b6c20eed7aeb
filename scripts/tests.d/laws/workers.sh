#!/usr/bin/env bash
# A service that starts with another number of workers than the one before takes the same device over, with as many
# queues and sockets as it has workers: TCP transfers both ways go on, addresses, routes and carrier stay, no queue or
# socket is left without a reader. The keeper watches each worker.
# labs: lab=udp-dual
# full: device!=plain
# last: it kills services
. "$TOOLS/kill_service.sh"

CONFIGURATION=$LAB_STATE/node1/etc/tartan/tartan.toml
WAYS=("pod1 pod3" "pod3 pod1")

back_to_the_lab() {
    cp "$SCRATCH/settings" "$LAB_STATE"
    rm -r "$LAB_STATE/node1/etc"
    lab stop node1
    lab start node1
    agents_are_ready
}

# How many queues the device has, how many writers beside them, and how many sockets each port has of a family, as the
# kernel counts them, whichever process holds them.
held() {
    local port outer address
    outer=$(carrier "${FAMILIES[0]}" "$OUTSIDE")
    address=$(underlay_of node1 "$outer")
    if [ "$outer" = 6 ]; then address=[$address]; fi
    queues_of node1 | jq '.[]'
    for port in 8285 8472; do in_ns node1 ss -Hlun "sport = :$port and src $address" | wc -l; done
}

has_connected() {
    [ -n "$(in_ns "$1" ss -Htn state established "sport = :5003")" ]
}

# The keeper ends a service of which one worker of three stands still.
last_worker_stands_still() {
    local pid
    pid=$(service_of node1)
    python3 "$TOOLS/stop_thread.py" "$pid" worker-2 &
    until_true 10 "another service in the place of one whose third worker stands still" another_service node1 "$pid"
    wait "$!"
    equal "lines of the log that say so" 1 "$(grep -c "worker 2 has stood still" "$LAB_STATE/node1/log")"
}

# The agent of the lab has their number from its command line, and now from a file.
cp "$LAB_STATE/settings" "$SCRATCH"
undo back_to_the_lab
sed -i '/ WORKERS=/s/=.*/=""/' "$LAB_STATE/settings"
mkdir -p "$(dirname "$CONFIGURATION")"
echo "workers = 1" >"$CONFIGURATION"
lab stop node1
lab start node1
BEFORE=$(kernel_state node1)
for WAY in "${WAYS[@]}"; do
    # shellcheck disable=SC2086
    begin_transfer $WAY "${FAMILIES[0]}" $((1 << 40)) 10000000
    until_true 10 "the transfer $WAY has begun" has_connected "${WAY#* }"
done
for NUMBER in 2 3 1; do
    echo "workers = $NUMBER" >"$CONFIGURATION"
    kill_service node1
    equal "workers" "$NUMBER" "$(agent_json node1 status | jq .workers)"
    # With one worker nothing but a queue and a socket of each port; of several each has a writer too.
    equal "queues, writers, sockets of udp and of vxlan" "$NUMBER $((NUMBER > 1 ? NUMBER : 0)) $NUMBER $NUMBER" \
        "$(held | paste -sd ' ')"
    [ "$NUMBER" != 3 ] || last_worker_stands_still
done
for WAY in "${WAYS[@]}"; do
    kill "${SENDING[${WAY#* }]}" || fail "a TCP transfer ended before the last kill"
    # shellcheck disable=SC2086
    end_transfer $WAY
done
same "addresses, routes and carrier changes of node1" "$BEFORE" "$(kernel_state node1)"
