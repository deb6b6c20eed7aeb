#!/usr/bin/env bash
# A law with many kills or restarts, by itself: how long the holes are.
#
# kills.sh LAB crash|restart NUMBER
# alone: it measures pauses
# full: udp-v4 crash 200
# full: vxlan-v6 restart 50
set -euo pipefail
KILLS=$3 ROUNDS=$3 exec bash "$(dirname "$(readlink -f "$0")")/tools/lab_run.sh" "$1" "$2"
