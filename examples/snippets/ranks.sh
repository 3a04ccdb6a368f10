#!/usr/bin/env bash
# ranks.sh PROGRAM [RANKS]: runs PROGRAM as so many ranks of this machine (default 2), as a launcher does it.
set -euo pipefail
program=$1 ranks=${2:-2}
export WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 12000))
pids=()
for ((rank = 0; rank < ranks; ++rank)); do
  RANK=$rank "$program" &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit "$code"
