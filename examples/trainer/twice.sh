#!/usr/bin/env bash
# twice.sh PROGRAM: trains by flags, and again by a file and another number of trainers: the same state.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$1" --epochs 3 --clip 0.5 | tee first
printf 'clip = 0.5\n[options]\nepochs = 3\ntrainers = 1\ncheckpoint_folder = "again"\n' >job.toml
"$1" --config job.toml >second
hash() { sed -n 's/^state sha256 //p' "$1"; }
[ -n "$(hash first)" ] && [ "$(hash first)" = "$(hash second)" ] && echo "the same from a file of options: yes"
