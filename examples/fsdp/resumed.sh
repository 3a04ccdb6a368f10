#!/bin/sh
# Usage: resumed.sh TROUPE FSDP: trains on 2 ranks and goes on with 3.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" run --nproc-per-node 2 "$2" --save "$folder/state"
"$1" run --nproc-per-node 3 "$2" --load "$folder/state" --steps 20
