#!/bin/bash
# inspect.sh TROUPE: what the command line shows of a cluster of two nodes: nodes, actors, logs, jobs, queues; and that every
# --help has an example.
set -uo pipefail
troupe=$1
where=$(mktemp -d)
export TROUPE_FOLDER=$where/one
trap 'kill $(jobs -p) 2>/dev/null; "$troupe" stop --folder "$where/two" >/dev/null; "$troupe" stop >/dev/null; rm -rf "$where"' EXIT
fail() { echo "$*"; exit 1; }
expect() {  # expect CODE TEXT WORDS...: of troupe WORDS
  local code=$1 text=$2 said got=0
  shift 2
  said=$("$troupe" "$@" 2>&1) || got=$?
  [ $got = "$code" ] || fail "troupe $*: exit code $got, not $code: $said"
  grep -qE -- "$text" <<<"$said" || fail "troupe $*: not '$text' in: $said"
}
until_true() {  # until_true COMMAND...
  for ((i = 0; i < 600; ++i)); do
    "$@" && return
    sleep 0.1
  done
  fail "not within a minute: $*"
}

for command in start stop status token key 'key list' 'key remove' group 'group list' drain doctor node 'node list' 'node show' actor \
  'actor list' 'actor show' 'actor kill' logs job 'job submit' 'job list' 'job status' 'job why' 'job logs' 'job stop' 'job wait' queue \
  'queue set' 'queue list' 'queue remove' run up serve tune dashboard flight-recorder; do
  "$troupe" $command --help | grep '^ .*troupe ' >/dev/null || fail "troupe $command --help has no example"
done

# A head whose node cannot come up leaves no address behind, which later commands would ask.
! "$troupe" start --head --port 0 --name none --listen 203.0.113.7 --folder "$where/three" >"$where/three.said" 2>&1 || fail "it came up"
[ ! -e "$where/three/address" ] || fail "a failed start left $(cat "$where/three/address"): $(cat "$where/three.said")"

"$troupe" start --head --port 0 --name one --cpus 2 --gpus 0 --detach >/dev/null || fail "no head"
address=$(cat "$TROUPE_FOLDER/address")
"$troupe" token --output "$where/token" || fail "no token"
"$troupe" start --address "$address" --token-file "$where/token" --folder "$where/two" --name two --cpus 1 --gpus 0 --detach >/dev/null ||
  fail "no second node"

expect 0 ' two .* alive' node list
expect 0 '"name": "two"' node list -o json
expect 0 '^node +name' node list --state draining
[ "$("$troupe" node list --state draining | wc -l)" = 1 ] || fail "nothing drains"
expect 0 '1 more is not shown' node list --state alive --limit 1
expect 0 '^CPUs +0 of 1 held' node show two
expect 0 '"holds": \[\]' node show two -o json
expect 1 'there is no node three: no live node has that name or id .troupe node list' node show three
expect 2 'not in' node list --state dead
expect 0 '"name": "one"' status -o json
expect 0 '"name"' key list -o json

# Logs of a node, with the time of each line.
expect 0 '^20[0-9-]+ [0-9:.]+ troupe\[.*the node has joined' logs two
expect 0 'the node has joined' logs --node two --since 1h --tail 1000
[ -z "$("$troupe" logs two --since '2099-01-01 00:00')" ] || fail "what was logged since then"
[ "$("$troupe" logs two --tail 1 | wc -l)" = 1 ] || fail "one line"
expect 1 'no job, no live node and no actor has that id or name' logs three
expect 1 'the name is empty' logs ''
expect 2 'is no time' logs two --since yesterday
code=0 && "$troupe" logs one --folder "$where/two" 2>"$where/said" || code=$?
[ $code = 1 ] && grep -q 'may not ask for it' "$where/said" || fail "another machine reads the head's node: $code $(cat "$where/said")"

# Attempts on two nodes are read where they are. Was: those of another node than the last one's were an error.
"$troupe" job submit --detach --id full --num-cpus 2 -- sleep 600 >/dev/null || fail "full"
until_true eval "\"\$troupe\" job status full | grep -q RUNNING"
"$troupe" job submit --detach --id twice --name both --num-cpus 1 --retries 1 --env W="$where" -- \
  sh -c 'printf try; [ ! -e $W/again ] || exit 0; until [ -e $W/go ]; do sleep 0.1; done; touch $W/again; exit 1' >/dev/null || fail "twice"
until_true eval "\"\$troupe\" job status twice | grep -q RUNNING"
"$troupe" job submit --detach --id next --num-cpus 1 -- sleep 600 >/dev/null || fail "next"
touch "$where/go"
until_true eval "\"\$troupe\" job status next | grep -q RUNNING"
"$troupe" job stop full >/dev/null
"$troupe" job wait twice 2>"$where/said" || fail "$(cat "$where/said")"
"$troupe" job status twice | grep -q '^node .*one' || fail "attempt 2 was to be elsewhere: $("$troupe" job status twice)"
[ "$("$troupe" logs both 2>"$where/said")" = $'try\ntry' ] || fail "both attempts: $("$troupe" logs both)"
grep -q 'attempt 2 of 2 begins' "$where/said" || fail "$(cat "$where/said")"
[ "$("$troupe" job logs --attempt 1 twice)" = try ] || fail "attempt 1"
[ -z "$("$troupe" logs twice --since '2099-01-01 00:00' 2>/dev/null)" ] || fail "what it wrote since then"
[ "$("$troupe" logs twice --since 1h --tail 1)" = try ] || fail "the last line"

expect 0 '^job +name +queue ' job list
[ "$("$troupe" job list --state SUCCEEDED | wc -l)" = 2 ] || fail "one has succeeded: $("$troupe" job list)"
expect 0 '2 more are not shown' job list --limit 1
[ "$("$troupe" job list --queue none | wc -l)" = 1 ] || fail "none is in that queue"
expect 2 'cannot set' queue set research --weight 0
expect 0 'queue default stays' queue remove default
"$troupe" job stop next >/dev/null

# Actors: an agent of a run is one.
"$troupe" run --address "$address" --nnodes 1 --nproc-per-node 1 --no-python sleep 600 >/dev/null 2>&1 &
actor_id() { "$troupe" actor list --state alive | awk 'NR == 2 { print $1 }' | grep .; }
until_true eval 'actor_id >/dev/null'
id=$(actor_id)
expect 0 "^actor +$id" actor show "$id"
expect 0 "\"id\": \"$id\"" actor list --limit 1 -o json
[ "$("$troupe" actor list --class NoSuch | wc -l)" = 1 ] || fail "there is none of that class"
expect 1 'goes to their job.s output' logs "$id"
expect 1 'there is no actor 7' actor show 7
code=0 && "$troupe" actor kill "$id" --folder "$where/two" 2>"$where/said" || code=$?
[ $code = 1 ] && grep -q 'may not ask for it' "$where/said" || fail "another machine kills: $code $(cat "$where/said")"
expect 0 "actor $id .* is killed" actor kill "$id" --reason 'by the test'
until_true eval "! \"\$troupe\" actor list | grep -q $id"
echo "all is shown"
