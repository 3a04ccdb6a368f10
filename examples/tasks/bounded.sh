#!/bin/bash
# bounded.sh MEMORY STORE PROGRAM ARGS...: runs it in a memory control group of MEMORY bytes with a store of STORE
# bytes (TROUPE_REGIONS_BYTES), and kills one of its workers every 20 s (KILL_EVERY). It prints what the program
# prints, then the time, the most memory that it had, and how many workers were killed. As root; else exit code 77.
set -euo pipefail
[ $# -ge 3 ] || { sed -n 's/^# //p' "$0" >&2; exit 2; }
memory=$1 store=$2
shift 2
every=${KILL_EVERY:-20}
v1=/sys/fs/cgroup/memory v2=/sys/fs/cgroup
if [ -e $v1/memory.limit_in_bytes ]; then
  group=$v1/troupe_bounded_$$ limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes
else
  group=$v2/troupe_bounded_$$ limit=memory.max peak=memory.peak
fi
mkdir $group 2>/dev/null && echo "$memory" 2>/dev/null >$group/$limit ||
  { echo "no control group of $memory bytes can be made: run it as root"; exit 77; }
program=
cleanup() {
  [ -z "$program" ] || kill "$program" 2>/dev/null || true
  for _ in $(seq 100); do rmdir $group 2>/dev/null && return; sleep 0.1; done
}
trap cleanup EXIT
SECONDS=0
(echo $BASHPID >$group/cgroup.procs && TROUPE_REGIONS_BYTES=$store exec "$@") &
program=$!
children() { cat /proc/"$1"/task/*/children 2>/dev/null || true; }
name() { cat /proc/"$1"/comm 2>/dev/null || true; }
workers() {
  for node in $(children "$program"); do
    [ "$(name "$node")" != troupe-node ] || for worker in $(children "$node"); do
      [ "$(name "$worker")" = troupe-fork ] || echo "$worker"  # whom workers are copies of
    done
  done
}
killed=0 next=$every
while kill -0 "$program" 2>/dev/null; do
  sleep 0.2
  [ $SECONDS -ge "$next" ] || continue
  victim=$(workers | shuf -n 1)
  [ -n "$victim" ] && kill -9 "$victim" 2>/dev/null && killed=$((killed + 1)) next=$((next + every))
done
status=0
wait "$program" || status=$?
program=
echo "$SECONDS s, $(($(cat $group/$peak 2>/dev/null || echo 0) / 1000000)) MB at most of $((memory / 1000000)), $killed workers killed"
exit $status
