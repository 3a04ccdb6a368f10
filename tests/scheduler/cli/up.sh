#!/bin/bash
# up.sh TROUPE: `troupe up` on three hosts, which here are three processes with Slurm's environment and folders of their own.
set -euo pipefail
troupe=$1
where=$(mktemp -d)
shared=$where/shared
trap 'cat "$where"/*.pid 2>/dev/null | xargs -r kill 2>/dev/null || true; kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$where"' EXIT
fail() { echo "$*"; tail -n 5 "$where"/*.out "$where"/*.err 2>/dev/null; exit 1; }
expect() { grep -q -- "$2" "$where/$1" || fail "not '$2' in $1: $(cat "$where/$1")"; }
host() {  # host RUN RANK ARGS: in the background, its exit code in RANK.code
  local run=$1 rank=$2 code=0
  shift 2
  (
    export SLURM_JOB_ID=$run SLURM_PROCID=$rank SLURM_NTASKS=3
    "$troupe" up --shared "$shared" --bind 127.0.0.1 --cpus 2 --wait 60 --folder "$where/$run.$rank" "$@" >"$where/$rank.out" 2>"$where/$rank.err" &
    echo $! >"$where/$rank.pid"
    wait $! || code=$?
    echo $code >"$where/$rank.code"
  ) &
}
code_of() {  # code_of RANK: waits for it
  for ((i = 0; i < 900; ++i)); do
    [ -s "$where/$1.code" ] && cat "$where/$1.code" && return
    sleep 0.1
  done
  fail "host $1 has not ended"
}
unset SLURM_STEP_ID

# What is wrong is said at once.
! env -i PATH="$PATH" HOME="$where" "$troupe" up --shared "$shared" -- true 2>"$where/error" || fail "a host that nobody counted"
grep -q 'give --rank and --hosts' "$where/error" || fail "$(cat "$where/error")"
code=0 && "$troupe" up --shared "$shared" --rank 0 2>/dev/null || code=$?
[ "$code" = 2 ] || fail "no program: exit code $code"
! SLURM_PROCID=x "$troupe" up --shared "$shared" -- true 2>"$where/error" || fail "SLURM_PROCID=x"
grep -q 'SLURM_PROCID=x is no number' "$where/error" || fail "$(cat "$where/error")"
for place in "--rank 2 --hosts 2" "--rank 7 --hosts 2"; do
  code=0 && timeout 20 "$troupe" up --shared "$shared" $place -- true 2>"$where/error" || code=$?
  [ "$code" = 2 ] || fail "$place: exit code $code"
  grep -q 'ranks are 0 to 1' "$where/error" || fail "$(cat "$where/error")"
done

# Three hosts, the first one last; the program sees three nodes, and its output and exit code are the first host's.
program='echo "$(ls -d '"$where"'/1.[0-9] | wc -l)" hosts, words: "$1"; '"$troupe"' status --folder '"$where"'/1.0 | grep -c alive; echo bad >&2; exit 7'
host 1 2 -- sh -c "$program" sh 'a b'
host 1 1 -- sh -c "$program" sh 'a b'
sleep 0.5
host 1 0 -- sh -c "$program" sh 'a b'
[ "$(code_of 0)" = 7 ] || fail "the first host: $(code_of 0)"
[ "$(code_of 1)" = 0 ] && [ "$(code_of 2)" = 0 ] || fail "the others: $(code_of 1), $(code_of 2)"
expect 0.out '^3 hosts, words: a b$'
expect 0.out '^3$'
expect 0.err '^bad$'
expect 0.err '3 of 3 nodes are there'
expect 1.err 'exit code 7'
[ -z "$(ls "$shared")" ] || fail "left in the folder: $(find "$shared")"
! pgrep -f "$where/1[.]" >/dev/null || fail "a process is left: $(pgrep -af "$where/1[.]")"

# SIGTERM ends the program, and all hosts.
rm -f "$where"/*.code "$where"/*.out
for rank in 0 1 2; do host 2 "$rank" -- sh -c 'echo runs; exec sleep 600'; done
for ((i = 0; i < 600; ++i)); do grep -q runs "$where/0.out" 2>/dev/null && break; sleep 0.1; done
[ "$(stat -c %a "$shared/troupe-up-2")" = 700 ] || fail "the folder of the run: $(stat -c %a "$shared/troupe-up-2")"
[ "$(find "$shared/troupe-up-2" -type f ! -perm 600 | wc -l)" = 0 ] || fail "files that others may read"
kill -TERM "$(cat "$where/0.pid")"
[ "$(code_of 0)" = 143 ] || fail "SIGTERM: $(code_of 0)"
[ "$(code_of 1)" = 0 ] && [ "$(code_of 2)" = 0 ] || fail "the others: $(code_of 1), $(code_of 2)"

# SIGTERM at another host drains its node. Was: it ended at once, with all that ran there.
rm -f "$where"/*.code "$where"/*.out "$where"/*.err
program='"$0" job submit --detach --id slow --label at=1 -- sh -c "echo began >$1/slow; until [ -e $1/go ]; do sleep 0.1; done; echo done >$1/slow"
  until [ -e "$1/over" ]; do sleep 0.1; done'
for rank in 0 1 2; do host 5 "$rank" --label at="$rank" -- sh -c "$program" "$troupe" "$where"; done
for ((i = 0; i < 600; ++i)); do grep -q began "$where/slow" 2>/dev/null && break; sleep 0.1; done
kill -TERM "$(cat "$where/1.pid")"
for ((i = 0; i < 600; ++i)); do grep -q "drains within 30 s" "$where/1.err" && break; sleep 0.1; done
expect 1.err 'drains within 30 s'
touch "$where/go"
for ((i = 0; i < 600; ++i)); do grep -q done "$where/slow" && break; sleep 0.1; done
grep -q done "$where/slow" || fail "the job on the host that drained: $(cat "$where/slow")"
touch "$where/over"
[ "$(code_of 0)" = 0 ] || fail "the first host: $(code_of 0)"
[ "$(code_of 1)" = 143 ] || [ "$(code_of 1)" = 0 ] || fail "the host that drained: $(code_of 1)"

# A first host that is killed is missed.
rm -f "$where"/*.code "$where"/*.out
for rank in 0 1 2; do host 3 "$rank" --heartbeat-timeout 5 -- sh -c 'echo runs; exec sleep 600'; done
for ((i = 0; i < 600; ++i)); do grep -q runs "$where/0.out" 2>/dev/null && break; sleep 0.1; done
kill -KILL "$(cat "$where/0.pid")"
[ "$(code_of 1)" = 1 ] && [ "$(code_of 2)" = 1 ] || fail "the others: $(code_of 1), $(code_of 2)"
expect 1.err 'no first host any more'
for ((i = 0; i < 100; ++i)); do pgrep -f "$where/3[.]" >/dev/null || break; sleep 0.1; done
! pgrep -f "$where/3[.]" >/dev/null || fail "a process is left: $(pgrep -af "$where/3[.]")"

# One host too few.
rm -f "$where"/*.code "$where"/*.out
code=0
SLURM_JOB_ID=4 SLURM_PROCID=0 SLURM_NTASKS=3 "$troupe" up --shared "$shared" --bind 127.0.0.1 --wait 3 -- true 2>"$where/0.err" || code=$?
[ "$code" = 1 ] || fail "one of three: $code"
expect 0.err '1 of 3 nodes are there after 3 s'
