#!/usr/bin/env bash
# killed.sh TROUPE PROGRAM: a run whose rank 1 is killed ends with the loss of one that nobody disturbs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" run --nproc-per-node 2 "$2" >"$folder/whole"
"$1" run --nproc-per-node 2 --max-restarts 1 "$2" --file "$folder/commit" --die-at 130 >"$folder/killed"
cat "$folder/killed"
diff <(tail -n 1 "$folder/whole") <(tail -n 1 "$folder/killed") && echo "the same loss"
