#!/usr/bin/env bash
# jobs.sh TROUPE PROGRAM: runs PROGRAM beside a cluster that is started for it.
set -euo pipefail
troupe=$1 program=$2
TROUPE_FOLDER=$(mktemp -d)
export TROUPE_FOLDER
trap '"$troupe" stop >/dev/null; rm -rf "$TROUPE_FOLDER"' EXIT
"$troupe" start --head --port 0 --cpus 1 --gpus 0 --detach >/dev/null
"$program" "$(cat "$TROUPE_FOLDER/address")"
