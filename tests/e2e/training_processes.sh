#!/bin/bash
# training_processes.sh BIN: the processes of a training job that was submitted, as troupe job status, troupe status and ps show
# them: pids, ranks, logical ranks and steps; a dump of them, which the flight recorder's analysis reads; and their timeline.
set -uo pipefail
troupe=$1/troupe
where=$(mktemp -d)
export TROUPE_FOLDER=$where/state TROUPE_TIMELINE=$where/line
trap '"$troupe" stop >/dev/null; rm -rf "$where"' EXIT
fail() { echo "$*"; exit 1; }
"$troupe" start --head --port 0 --name one --cpus 4 --gpus 0 --detach >/dev/null || fail "no head"
"$troupe" job submit --detach --id digits -- "$1/mnist" --samples 400 --trainers 2 --epochs 100000 >/dev/null || fail "no job"

# Both trainers have taken steps, and share out all logical ranks.
cat >"$where/look.py" <<'PY'
import json, sys
all = json.load(sys.stdin)["processes"]
all_up = lambda processes: min(process["up_s"] for process in processes) >= 0
by = {process["title"].split(" of ")[0]: process for process in all}
trainers = [by.get("trainer 0", {}), by.get("trainer 1", {})]
assert all and {trainer.get("rank") for trainer in trainers} == {0, 1}, all
assert {trainer["world_size"] for trainer in trainers} == {2}, all
assert min(trainer.get("step", 0) for trainer in trainers) > 2, all
ranks = trainers[0]["logical_ranks"] + trainers[1]["logical_ranks"]
assert sorted(ranks) == list(range(len(ranks))) and len(ranks) >= 2, all
assert all_up(all), all
assert any(process["submission"] == "digits" for process in all), all
print(by["trainer 0"]["pid"], by["trainer 0"]["title"])
PY
for ((i = 0; i < 600; ++i)); do
  said=$("$troupe" job status digits -o json 2>&1 | python3 "$where/look.py" 2>&1) && break
  sleep 0.2
done
[[ $said =~ ^([0-9]+)\ (trainer\ 0\ of\ .*)$ ]] || fail "not within two minutes: $said; $("$troupe" job status digits; "$troupe" job logs digits)"
pid=${BASH_REMATCH[1]} title=${BASH_REMATCH[2]}
tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q "^troupe: $title rank=[01] world_size=2 logical_ranks=[0-9.]* step=[0-9]* *$" ||
  fail "ps shows $(tr '\0' ' ' <"/proc/$pid/cmdline")"
"$troupe" job status digits | grep -qE "^$pid +[0-9a-f+]+ +one +$title +[0-9]+[ms0-9]* +rank=" || fail "$("$troupe" job status digits)"
"$troupe" status | grep -qE "^$pid +[0-9a-f+]+ +one +$title +[0-9]+[ms0-9]* +rank=" || fail "$("$troupe" status)"
actor=$("$troupe" actor list | awk '/Trainer/ { print $1; exit }')
# Which actor is in which process: its pid was in a table of its own, without the actor's id, and padded.
pid_of_actor=$("$troupe" actor show "$actor" | awk '/^pid / { print $2 }')
"$troupe" status | grep -qE "^$pid_of_actor +$actor " || fail "$("$troupe" status)"
"$troupe" actor list | grep -qE "^$actor .* $pid_of_actor +alive" || fail "$("$troupe" actor list)"
"$troupe" actor show "$actor" -o json | grep -q "\"pid\": $pid_of_actor\b" || fail "$("$troupe" actor show "$actor" -o json)"
! "$troupe" status | sed -n '/^pid /,$p' | grep ' $' || fail "lines end with spaces"
"$troupe" logs "$actor" >/dev/null || fail "no output of actor $actor"

"$troupe" dump digits >"$where/dumped" 2>&1 || fail "$(cat "$where/dumped")"
grep -q 'rank-0.flight' "$where/dumped" && grep -q 'rank-1.flight' "$where/dumped" && grep -q "stacks-$pid.txt" "$where/dumped" ||
  fail "$(cat "$where/dumped")"
folder=$(sed -n 's/^node one: .* workers*, in //p' "$where/dumped")
"$troupe" flight-recorder "$folder" >"$where/said" 2>&1
[ $? -le 1 ] && grep -q '2 ranks' "$where/said" || fail "$(cat "$where/said")"
"$troupe" job stop digits >/dev/null
# Trainers are killed at the end: before, they leave what they did.
"$troupe" job wait digits >/dev/null 2>&1
"$troupe" flight-recorder "$where/line" --trace "$where/trace.json" >"$where/said" 2>&1 && grep -q ' of 2 dumps' "$where/said" ||
  fail "$(cat "$where/said")"
echo "pids, ranks, logical ranks and steps are shown"
