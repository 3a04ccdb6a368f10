#!/usr/bin/env bash
# killed.sh TROUPE PROGRAM: a run whose rank 1 is killed ends with the loss of one that nobody disturbs. That one
# leaves a timeline of both ranks.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
TROUPE_TIMELINE=$folder/line "$1" run --nproc-per-node 2 "$2" >"$folder/whole"
"$1" run --nproc-per-node 2 --max-restarts 1 "$2" --file "$folder/commit" --die-at 130 >"$folder/killed"
cat "$folder/killed"
"$1" flight-recorder "$folder/line" --trace "$folder/trace.json"
grep -q '"name":"rank 0 (' "$folder/trace.json"
grep -q '"name":"all_reduce(.*"ph":"X","pid":2' "$folder/trace.json"
diff <(tail -n 1 "$folder/whole") <(tail -n 1 "$folder/killed") && echo "the same loss"
