#!/bin/bash
# killed.sh PROGRAM ARGS...: runs it, and again with its first worker killed. It must print the same.
set -euo pipefail
first=$("$@")
out=$(mktemp)
trap 'rm -f "$out"' EXIT
killed=
children() { cat /proc/"$1"/task/*/children 2>/dev/null || true; }
kill_first_worker() {  # of program $1; its nodes are its children, and workers theirs
  while kill -0 "$1" 2>/dev/null; do
    for node in $(children "$1"); do
      for worker in $(children "$node"); do
        [ "$(cat /proc/"$worker"/comm 2>/dev/null)" != troupe-fork ] || continue  # whom workers are copies of
        kill -9 "$worker" 2>/dev/null && killed=$worker && return
      done
    done
    sleep 0.005
  done
}
for _ in $(seq 50); do  # a program may be done before its worker is seen
  "$@" >"$out" &
  program=$!
  kill_first_worker $program
  wait "$program"
  [ -z "$killed" ] || break
done
[ -n "$killed" ] || { echo "no worker was there to be killed"; exit 1; }
echo "$first"
[ "$first" = "$(cat "$out")" ] || { echo "with worker $killed killed it printed:"; cat "$out"; exit 1; }
