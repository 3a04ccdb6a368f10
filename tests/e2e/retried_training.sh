#!/bin/bash
# retried_training.sh BIN: the program of a training job is killed, and the next attempt goes on at the newest checkpoint, to the
# state of a run that nobody disturbed. Was: it was refused, with --resume at the first attempt and without at the second.
set -uo pipefail
troupe=$1/troupe
where=$(mktemp -d)
export TROUPE_FOLDER=$where/state
trap '"$troupe" stop >/dev/null; rm -rf "$where"' EXIT
fail() { echo "$*"; "$troupe" logs again; exit 1; }
"$troupe" start --head --port 0 --cpus 4 --gpus 0 --detach >/dev/null || fail "no head"
mnist=("$1/mnist" --samples 800 --evaluate false --max-steps 24)
state() { sed -nE 's/.*state sha256 +([0-9a-f]+).*/\1/p' | tail -n 1; }
whole=$("${mnist[@]}" --checkpoint-folder "$where/whole" 2>&1 | state)
[ -n "$whole" ] || fail "an undisturbed run says no state"

"$troupe" job submit --detach --id again --retries 1 -- "${mnist[@]}" --checkpoint-folder "$where/again" --checkpoint-every 3 >/dev/null ||
  fail "no job"
for ((i = 0; i < 1200; ++i)); do compgen -G "$where/again/*.json" >/dev/null && break; sleep 0.05; done
pid=$("$troupe" job status again | awk '/program of job again/ { print $1 }')
[ -n "$pid" ] && kill -KILL "$pid" || fail "its program has ended: $("$troupe" job status again)"
"$troupe" job wait again 2>"$where/said" || fail "$(cat "$where/said")"
"$troupe" logs again >"$where/logs" 2>&1
grep -q 'attempt 2 of 2 begins' "$where/logs" || fail "one attempt"
[ "$(state <"$where/logs")" = "$whole" ] || fail "another state than $whole: $(cat "$where/logs")"
grep -qE 'resumed at step [1-9]' "$where/logs" || fail "it does not say where it goes on"
code=0 && TROUPE_RESUME=yes "${mnist[@]}" --checkpoint-folder "$where/new" >"$where/said" 2>&1 || code=$?
[ $code != 0 ] && grep -q 'TROUPE_RESUME=yes is not auto' "$where/said" || fail "a value that makes no sense: $(cat "$where/said")"
echo "it went on at a checkpoint"
