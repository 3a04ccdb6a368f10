#!/bin/bash
# ask.sh SERVE PAGE: runs the example, asks it what PAGE (docs/serving.md) asks with curl and compares what comes out, numbers
# apart; kills a replica under load, and ends it with SIGINT while requests are under way: each is answered.
set -u
set -m  # a background job that takes SIGINT
serve=$1 page=$2
root=$(mktemp -d)
trap 'kill -9 "$pid" 2>/dev/null; rm -rf "$root"' EXIT
fail() { echo "FAILED: $*"; cat "$root/out" "$root/err"; exit 1; }
eventually() {  # eventually WHAT COMMAND...: until it succeeds, a minute at most
  local what=$1 tries=0
  shift
  until "$@"; do
    tries=$((tries + 1))
    [ $tries -lt 1200 ] || fail "$what did not come"
    kill -0 "$pid" 2>/dev/null || fail "the program ended before $what"
    sleep 0.05
  done
}

TROUPE_LOG=info "$serve" --port 0 --replicas 2 --epochs 2 >"$root/out" 2>"$root/err" &
pid=$!
eventually "its address" grep -q ^http "$root/out"
url=$(grep -m1 ^http "$root/out") base=${url%/v1/*}

# The page's own lines.
awk '/^## / { inside = /Asking/ } inside && /^    / { sub(/^    /, ""); print }' "$page" >"$root/expected"
[ "$(grep -c curl "$root/expected")" -ge 4 ] || fail "no curl in $page"
while IFS= read -r command; do
  echo "\$ $command"
  eval "${command//http:\/\/127.0.0.1:8000/$base}" 2>/dev/null </dev/null
  echo
done < <(sed -n 's/^\$ //p' "$root/expected") >"$root/got"
same='s/"[0-9]+"/"V"/g; s/ *-?[0-9]+\.[0-9]+(e-?[0-9]+)?/N/g; /^$/d'
diff <(sed -E "$same" "$root/expected") <(sed -E "$same" "$root/got") || fail "the lines of $page are not true"

# A second epoch was trained meanwhile: its weights answer.
eventually "the second weights" grep -q '^weights 2 answer' "$root/out"
ready_pids() { sed -nE 's/.*replica [0-9]+ \(pid ([0-9]+)\) is ready.*/\1/p' "$root/err" | while read -r one; do kill -0 "$one" 2>/dev/null && echo "$one"; done; }

# A replica is killed under load.
raw=(-s -m 60 -H 'Content-Type: application/octet-stream' -H 'Tensor-Dtype: float32')
head -c 3136 /dev/zero >"$root/one"
head -c $((500 * 3136)) /dev/zero >"$root/many"
seq 300 | xargs -P 8 -I{} curl "${raw[@]}" -o /dev/null -w '%{http_code}\n' -H 'Tensor-Shape: 1, 1, 28, 28' \
  --data-binary "@$root/one" "$url" >"$root/codes" &
load=$!
has_answered() { [ "$(wc -l <"$root/codes")" -ge 100 ]; }
eventually "100 answers" has_answered
killed=$(ready_pids | head -1)
kill -9 "$killed" || fail "no replica"
wait $load
[ "$(sort "$root/codes" | uniq -c | awk '{ print $1, $2 }')" = "300 200" ] || fail "after a kill: $(sort "$root/codes" | uniq -c)"
metric() { curl -s -m 10 "$base/metrics" | sed -nE "s/^$1 //p"; }
is_whole() { [ "$(metric 'troupe_serve_replicas\{.*state="ready".*\}')" = 2 ]; }
eventually "another replica" is_whole

# SIGINT while requests are under way: the replicas stand still until the program has seen it.
replicas=$(ready_pids)
for one in $replicas; do kill -STOP "$one" || fail "no replica $one"; done
seq 4 | xargs -P 4 -I{} curl "${raw[@]}" -o /dev/null -w '%{http_code}\n' -H 'Tensor-Shape: 500, 1, 28, 28' \
  --data-binary "@$root/many" "$url" >"$root/codes" &
load=$!
under_way() { [ "$(metric 'troupe_serve_ongoing_requests\{.*\}')" = 4 ]; }
eventually "four requests" under_way
kill -INT "$pid"
drains() { [ "$(curl -s -m 10 -o /dev/null -w '%{http_code}' "$base/healthz")" = 503 ]; }
eventually "the drain" drains
code=$(curl "${raw[@]}" -o /dev/null -w '%{http_code}' -H 'Tensor-Shape: 1, 1, 28, 28' --data-binary "@$root/one" "$url")
[ "$code" = 503 ] || fail "a request during the drain got $code"
for one in $replicas; do kill -CONT "$one"; done
wait $load
[ "$(sort "$root/codes" | uniq -c | awk '{ print $1, $2 }')" = "4 200" ] || fail "after SIGINT: $(sort "$root/codes" | uniq -c)"
wait $pid
code=$?
[ $code = 0 ] || fail "exit code $code"
echo "300 requests around a kill and 4 around a SIGINT: all answered"
