#!/bin/bash
# resumed.sh PROGRAM: a sweep with a trainer killed; then the same one is resumed, and must have nothing left to run and
# the same best. Each report is a line of JSON.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
sweep=("$1" --trials 6 --epochs 3 --name digits --json reports.jsonl)
"${sweep[@]}" --chaos | tee first
grep -q "trial 3: trainer 0 .* died" first || { echo "no trainer was killed"; exit 1; }
[[ "$(tail -n 1 first)" == "best: trial "* ]] || { echo "the last line is not the best trial's"; exit 1; }
reports=$(grep -c '"event":"report","trial":[0-9]*,"config":{"lr":' reports.jsonl)
[ "$reports" -ge 6 ] && [ "$reports" -lt 18 ] || { echo "$reports reports of 6 trials: none stopped early?"; exit 1; }
again=$("$1" --trials 6 --epochs 3 --name digits 2>&1) && { echo "$again"; echo "a second sweep of one name: not refused"; exit 1; }
[[ "$again" == *"there is a sweep of this name"* ]] || { echo "$again"; echo "refused with another reason"; exit 1; }
"${sweep[@]}" --resume >second
[ "$(tail -n 1 first)" = "$(tail -n 1 second)" ] || { cat second; echo "another best"; exit 1; }
[ "$reports" = "$(wc -l <reports.jsonl)" ] || { echo "other reports after resuming"; exit 1; }
