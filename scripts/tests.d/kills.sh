#!/usr/bin/env bash
# The law crash with many kills, by itself: how long the pauses are.
#
# kills.sh LAB NUMBER
# alone: it measures pauses
# full: udp-v4 200
set -euo pipefail
KILLS=$2 exec bash "$(dirname "$(readlink -f "$0")")/tools/lab_run.sh" "$1" crash
