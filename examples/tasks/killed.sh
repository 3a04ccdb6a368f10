#!/bin/bash
# killed.sh PROGRAM ARGS...: runs it twice, the second time with its first worker killed. It must print the same.
set -euo pipefail
first=$("$@")
out=$(mktemp)
trap 'rm -f "$out"' EXIT
"$@" >"$out" &
program=$!
killed=
children() { cat /proc/"$1"/task/*/children 2>/dev/null || true; }
for _ in $(seq 3000); do  # its nodes are its children, and workers theirs
  for node in $(children "$program"); do
    for worker in $(children "$node"); do
      [ "$(cat /proc/"$worker"/comm 2>/dev/null)" != troupe-fork ] || continue  # whom workers are copies of
      kill -9 "$worker" 2>/dev/null && killed=$worker && break 3
    done
  done
  kill -0 "$program" 2>/dev/null || break
  sleep 0.02
done
wait "$program"
[ -n "$killed" ] || { echo "no worker was there to be killed"; exit 1; }
echo "$first"
[ "$first" = "$(cat "$out")" ] || { echo "with worker $killed killed it printed:"; cat "$out"; exit 1; }
