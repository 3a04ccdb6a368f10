#!/bin/bash
# inspect.sh TROUPE PROGRAM LIBRARIES: what the command line shows of a cluster of two nodes: nodes, actors, logs, jobs, queues,
# processes; and that every --help has an example. PROGRAM needs a library that is in the folder LIBRARIES alone.
set -uo pipefail
troupe=$1 program=$2 libraries=$3
where=$(mktemp -d)
export TROUPE_FOLDER=$where/one
trap 'kill $(jobs -p) 2>/dev/null; "$troupe" stop --folder "$where/third" >/dev/null; "$troupe" stop --folder "$where/two" >/dev/null; "$troupe" stop >/dev/null; rm -rf "$where"' EXIT
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
  'queue set' 'queue list' 'queue remove' run up serve tune dashboard dump flight-recorder; do
  "$troupe" $command --help | grep '^ .*troupe ' >/dev/null || fail "troupe $command --help has no example"
done

for command in 'job submit' up; do
  "$troupe" $command --help | grep '^Usage: .* -- PROGRAM' >/dev/null || fail "the usage of troupe $command has no program"
done
said=$("$troupe" job submit --queue '' -- true 2>&1) && fail "an empty queue is the default one"
[[ $said == *'--queue: it is empty'* ]] || fail "of an empty queue it says: $said"

# Was: errors of flags had a second line, and what they quoted went to the terminal as it was.
for words in "job list --limit" "status --output" "stop --folder" "flight-recorder" "nonsense"; do
  said=$("$troupe" $words $'\e[31m\xff' 2>&1)
  grep -qF '\x1b[31m\xff' <<<"$said" || [ "$words" = nonsense ] || fail "troupe $words does not show its word: $said"
  grep -q $'\e' <<<"$said" && fail "troupe $words colours the terminal: $said"
  [ "$(wc -l <<<"$said")" = 1 ] || fail "troupe $words says more than a line: $said"
done
said=$("$troupe" job list --limit $'a\nb' 2>&1) && fail "a limit of two lines"
[ "$(wc -l <<<"$said")" = 1 ] || fail "an error of flags has two lines: $said"

# A head whose node cannot come up leaves no address behind, which later commands would ask.
! "$troupe" start --head --port 0 --name none --listen 203.0.113.7 --folder "$where/three" >"$where/three.said" 2>&1 || fail "it came up"
[ ! -e "$where/three/address" ] || fail "a failed start left $(cat "$where/three/address"): $(cat "$where/three.said")"

"$troupe" start --head --port 0 --name one --cpus 2 --gpus 0 --label place=one --detach >/dev/null || fail "no head"
address=$(cat "$TROUPE_FOLDER/address")
"$troupe" token --output "$where/token" || fail "no token"
"$troupe" start --address "$address" --token-file "$where/token" --folder "$where/two" --name two --cpus 1 --gpus 0 --label place=two --detach >/dev/null ||
  fail "no second node"

expect 0 ' two .* alive' node list
expect 0 '"name": "two"' node list -o json
expect 0 '^node +name' node list --state draining
[ "$("$troupe" node list --state draining 2>/dev/null | wc -l)" = 1 ] || fail "nothing drains"
expect 0 'no node matches: 2 are there; 2 alive' node list --state draining
expect 0 '1 more is not shown' node list --state alive --limit 1
expect 0 '^CPUs +0 of 1 held' node show two
expect 0 '"holds": \[\]' node show two -o json
expect 1 'there is no node three: no live node has that name or id .troupe node list' node show three
expect 2 'not in' node list --state dead
expect 0 '"name": "one"' status -o json
expect 0 '"name"' key list -o json

# Logs of a node, with the time of each line.
expect 0 '^20[0-9-]+ [0-9:.]+[+-][0-9]{4} troupe\[.*the node has joined' logs two
expect 0 'the node has joined' logs --node two --since 1h --tail 1000
[ -z "$("$troupe" logs two --since '2099-01-01 00:00')" ] || fail "what was logged since then"
# Was: local times were compared as texts, so that another time zone than the node's showed too much, or nothing.
for zone in EAST-14 WEST+11; do
  TZ=$zone "$troupe" logs two --since "$(TZ=$zone date -d '1 hour ago' '+%F %T')" | grep -q 'has joined' || fail "too little in $zone"
  [ -z "$(TZ=$zone "$troupe" logs two --since "$(TZ=$zone date -d '+1 hour' '+%F %T')")" ] || fail "too much in $zone"
done
[ "$("$troupe" logs two --tail 1 | wc -l)" = 1 ] || fail "one line"
expect 1 'no job, no live node and no actor has that id or name' logs three
expect 1 'the name is empty' logs ''
# Was: the newest job without a name, which it ended.
for command in stop wait status why logs; do expect 2 'it is empty: give' job $command ''; done
expect 2 'it is empty: give' drain ''
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
"$troupe" job status next -o json | grep -q '"title": "program of job next"' || fail "no process: $("$troupe" job status next -o json)"
pid=$("$troupe" job status next | awk '/program of job next/ { print $1 }')
[ "$(tr '\0' ' ' <"/proc/$pid/cmdline")" = 'sleep 600 ' ] || fail "process $pid is another one"
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
[ "$("$troupe" job list --queue none 2>/dev/null | wc -l)" = 1 ] || fail "none is in that queue"
expect 0 'no job matches: 3 are there; the queues are default' job list --queue none
expect 2 'troupe job submit: there is no option --cpus; is --num-cpus meant' job submit --cpus 400 -- true
expect 2 "troupe node list: 'more' is one word too many" node list more
expect 2 "troupe job: there is no command 'sumbit' \(is submit meant\?\): give one of submit, list" job sumbit -- x
expect 2 "troupe key: there is no command 'lst' \(is list meant\?\)" key lst
expect 2 "troupe tune: there is no command 'shwo' \(is show meant\?\)" tune shwo
expect 2 "troupe queue: no command is given: give one of set" queue
expect 2 'troupe job logs: id is required' job logs
expect 2 'name the program after --: troupe job submit -- sh' job submit sh -c 'echo hi'
expect 0 '^job +twice' job status both
expect 0 '^job twice SUCCEEDED' job stop both
code=0 && said=$("$troupe" job stop none next 2>&1) || code=$?
[ $code = 1 ] && grep -q 'there is no job none' <<<"$said" && grep -q '^job next STOP' <<<"$said" || fail "stop of two: $code $said"

# A machine that joined manages its own jobs alone. Was: it stopped and read the owner's.
for words in 'job stop twice' 'job status twice' 'job logs twice' 'job wait twice' 'job why twice' 'logs --job both'; do
  code=0 && "$troupe" $words --folder "$where/two" >"$where/said" 2>&1 || code=$?
  [ $code = 1 ] && grep -qE 'did not submit it|there is no job' "$where/said" || fail "a machine that joined: $words: $code $(cat "$where/said")"
done
code=0 && "$troupe" job submit --detach --id twice --folder "$where/two" -- true >"$where/said" 2>&1 || code=$?
[ $code = 1 ] && grep -q 'did not submit it' "$where/said" || fail "it takes the id of a job: $code $(cat "$where/said")"
said=$("$troupe" job submit --id its --folder "$where/two" -- sh -c 'echo $TROUPE_SUBMITTED_BY' 2>"$where/said") || fail "$(cat "$where/said")"
[[ $said = machine/* ]] || fail "its own job: $said"
[ "$("$troupe" job list --folder "$where/two" | wc -l)" = 2 ] || fail "it sees others' jobs: $("$troupe" job list --folder "$where/two")"

# One node of a name from a folder.
expect 1 "one of that name runs from there: process [0-9]+ holds .*troupe stop" start --address "$address" --folder "$where/two" --name two
for weight in 0 -1 1000001 nan; do expect 2 "'$weight' is no weight: a number above 0, of at most 1000000" queue set research --weight $weight; done
expect 0 'queue default stays' queue remove default

# Actors: an agent of a run is one.
"$troupe" run --address "$address" --nnodes 1 --nproc-per-node 1 --no-python sleep 600 >/dev/null 2>&1 &
runner=$!
actor_id() { "$troupe" actor list --state alive | awk 'NR == 2 { print $1 }' | grep .; }
until_true eval 'actor_id >/dev/null'
id=$(actor_id)
expect 0 "^actor +$id" actor show "$id"
expect 0 "\"id\": \"$id\"" actor list --limit 1 -o json
[ "$("$troupe" actor list --class NoSuch 2>/dev/null | wc -l)" = 1 ] || fail "there is none of that class"
expect 0 'no actor matches: 1 is there; their classes are ' actor list --class NoSuch
expect 0 '' logs "$id"
expect 1 'there is no actor 7' actor show 7
code=0 && "$troupe" logs "$id" --folder "$where/two" 2>"$where/said" || code=$?
[ $code = 0 ] || grep -q 'may not ask for it' "$where/said" || fail "another machine reads an actor: $code $(cat "$where/said")"
code=0 && "$troupe" actor kill "$id" --folder "$where/two" 2>"$where/said" || code=$?
[ $code = 1 ] && grep -q 'may not ask for it' "$where/said" || fail "another machine kills: $code $(cat "$where/said")"
expect 0 "actor $id .* is killed" actor kill "$id" --reason 'by the test'
until_true eval "! \"\$troupe\" actor list | grep -q $id"

# Programs that have ended are counted, and shown if asked for.
kill "$runner"
until_true eval '"$troupe" status | grep -q "^and 1 that has ended: troupe status --all"'
! "$troupe" status | grep -q ' ended$' || fail "it is shown: $("$troupe" status)"
expect 0 ' 1  ended$' status --all

# A program with its libraries: without them no node can run it. Retries, and the folder that travels, have them, too.
"$program" >/dev/null 2>&1 && fail "the library is found without being named"
cp "$program" "$where/needs" || fail "no program"
code=0 && "$troupe" job submit -- "$where/needs" >"$where/said" 2>&1 || code=$?
[ $code = 127 ] && grep -q 'shared librar' "$where/said" || fail "a node has the library: $code $(cat "$where/said")"
said=$(LD_LIBRARY_PATH=$libraries "$troupe" job submit --with-libraries -- "$where/needs" 2>"$where/said") || fail "$(cat "$where/said")"
[ "$said" = 'the library says 42' ] || fail "$said"
mkdir "$where/app" && cp "$program" "$where/app/needs" && echo '#!/bin/sh' >"$where/app/script" && chmod +x "$where/app/script"
said=$(LD_LIBRARY_PATH=$libraries "$troupe" job submit --with-libraries --working-dir "$where/app" -- ./needs 2>"$where/said") ||
  fail "$(cat "$where/said")"
[ "$said" = 'the library says 42' ] || fail "$said"
# Was: a worker on another node than the program's had none of them, and died at its start.
cp "$program"_elsewhere "$where/elsewhere" || fail "no program"
said=$(LD_LIBRARY_PATH=$libraries "$troupe" job submit --num-cpus 0 --label place=one --with-libraries -- "$where/elsewhere" 2>"$where/said") || fail "$(cat "$where/said")"
[ "$said" = 'the library says 42 on node two' ] || fail "$said"
expect 1 'libtroupe_needed.so, which .* needs, is not found' job submit --with-libraries -- "$where/needs"
expect 1 "bad +libraries +libtroupe_needed.so, which $where/needs needs, is not found" doctor "$where/needs"
LD_LIBRARY_PATH=$libraries "$troupe" doctor "$where/needs" | grep -qE "^good +libraries +all [0-9]+ that $where/needs needs are found" ||
  fail "$(LD_LIBRARY_PATH=$libraries "$troupe" doctor "$where/needs")"
# Was: what to do was to install it, whatever was wrong with the program; a name was looked for here alone.
expect 1 "bad +program +'no-such-program' is in no folder of PATH" doctor no-such-program
expect 1 "bad +program +$where/none is not there" doctor "$where/none"
"$troupe" doctor sleep | grep -qE '^good +libraries +all [0-9]+ that /.*/sleep needs are found' || fail "$("$troupe" doctor sleep)"
"$troupe" doctor "$where/app/script" | grep -qE "^good +libraries +all [0-9]+ that /bin/sh, which runs $where/app/script, needs are found" ||
  fail "$("$troupe" doctor "$where/app/script")"
expect 1 'is no executable of this machine, but a script' job submit --with-libraries --working-dir "$where/app" -- ./script
expect 1 'does not .give the program.s path' job submit --with-libraries -- sleep 1

# Was: the last of two won in silence.
expect 2 "tpu is given twice, as 'tpu=1' and 'tpu=2': give it once" job submit --resource tpu=1 --resource tpu=2 -- true
expect 2 'zone is given twice' start --head --label zone=a --label zone=b

# Two nodes of one name are told apart, and said to be two.
"$troupe" token --output "$where/token2" || fail "no token"
"$troupe" start --address "$address" --token-file "$where/token2" --folder "$where/third" --name two --cpus 1 --gpus 0 --detach \
  >/dev/null || fail "no third node"
expect 0 '2 nodes are called two: tell them apart by their ids' status
expect 1 'several have the name two' logs two
"$troupe" stop --folder "$where/third" >/dev/null
until_true eval '[ "$("$troupe" node list | grep -c " two ")" = 1 ]'

# A follow of a node ends with it, and says so.
"$troupe" logs two --follow --tail 1 >"$where/followed" 2>&1 &
follower=$!
until_true test -s "$where/followed"
"$troupe" stop --folder "$where/two" >/dev/null
wait $follower || fail "following ended with $?: $(cat "$where/followed")"
grep -q '^troupe: the log ends here: node two is gone$' "$where/followed" || fail "$(cat "$where/followed")"

# A head that is frozen takes connections: it is no stranger's.
head=$(sed -nE 's/.*the head listens at .*\(process ([0-9]+)\).*/\1/p' "$where/one/head.log" | tail -n 1)
[ -n "$head" ] || fail "no head's process: $(cat "$where/one/head.log")"
kill -STOP "$head"
expect 1 'it takes connections and does not answer: it is stopped or too busy' status
kill -CONT "$head"
echo "all is shown"
