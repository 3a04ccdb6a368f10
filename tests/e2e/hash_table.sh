#!/usr/bin/env bash
# Prints the table of hashes: the MNIST example over numbers of trainers, loaders, nodes and logical ranks, with kills,
# and after stop and resume. Every row of one number of logical ranks must show the same hash. Exit code 1 if one differs.
# usage: tests/e2e/hash_table.sh [folder of the programs, default build/check/bin]
set -uo pipefail
cd "$(dirname "$0")/../.."
mnist=${1:-build/check/bin}/mnist
[ -x "$mnist" ] || { echo "hash_table.sh: no program $mnist: build it first (./quickstart does)" >&2; exit 1; }
common=(--samples 4000 --epochs 2)
declare -A expected
status=0

row() {  # row LOGICAL_RANKS WHAT ARGS...
  local ranks=$1 what=$2 hash
  shift 2
  hash=$("$mnist" "${common[@]}" --logical-ranks "$ranks" "$@" 2>&1 | sed -n 's/^state sha256 //p')
  : "${expected[$ranks]:=$hash}"
  local verdict=same
  [ -n "$hash" ] && [ "$hash" = "${expected[$ranks]}" ] || { verdict=DIFFERENT; status=1; }
  printf '%-3s %-52s %-20s %s\n' "$ranks" "$what" "${hash:0:16}..." "$verdict"
}

printf '%-3s %-52s %-20s\n' L run hash
for ranks in 4 3 5; do
  for trainers in 1 2 3 4; do
    [ "$trainers" -le "$ranks" ] && row "$ranks" "$trainers trainers" --trainers "$trainers"
  done
done
row 4 "2 trainers, 2 loaders" --trainers 2 --loaders 2
row 4 "2 trainers, 3 loaders" --trainers 2 --loaders 3
row 4 "3 trainers on 2 nodes" --trainers 3 --nodes 2
row 4 "a trainer killed" --trainers 2 --chaos kill-trainer@17
row 4 "rank 0 killed, a loader killed, again and again" --trainers 3 --loaders 2 \
  --chaos kill-trainer:0@10,kill-loader@15,kill-trainer@20,kill-trainer:0@30,kill-loader@40
row 4 "the head killed, then a trainer" --trainers 2 --chaos kill-head@10,kill-trainer@15
row 4 "a node killed with its trainers" --trainers 3 --nodes 2 --chaos kill-node@20
row 4 "a trainer stopped (SIGSTOP)" --trainers 2 --chaos stop-trainer@20
folder=$(mktemp -d)
"$mnist" --samples 4000 --epochs 1 --logical-ranks 4 --trainers 3 --checkpoint-folder "$folder" >/dev/null 2>&1
row 4 "after stop and resume with 2 instead of 3 trainers" --trainers 2 --checkpoint-folder "$folder" --resume
rm -rf "$folder"
exit $status
