#!/bin/bash
# dashboard.sh TROUPE: the dashboard of a real cluster, asked by curl, and drawn by Chromium where there is one.
set -euo pipefail
troupe=$1
folder=$(mktemp -d)
export TROUPE_FOLDER=$folder/state no_proxy='*' NO_PROXY='*'
server=
end() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  "$troupe" stop >/dev/null 2>&1 || true
  rm -rf "$folder"
}
trap end EXIT
fail() { echo "$*"; exit 1; }
ask() { curl -sS --max-time 40 "$url$1"; }
expect() { grep -q -- "$2" <<<"$1" || fail "not '$2' in: ${1:0:2000}"; }

! "$troupe" dashboard --port 0 >"$folder/out" 2>"$folder/error" || fail "a dashboard of no cluster"
expect "$(cat "$folder/error")" "no cluster was started or joined"
"$troupe" start --head --port 0 --cpus 2 --resource tpu=2 --label zone=a --memory 512MiB --name one --detach >"$folder/start"
mkdir -p "$folder/results/digits"
{
  echo '{"event":"sweep","version":1,"job":"Digits","metric":"test/accuracy (more is better)","trials":"2","epochs":"1"}'
  echo '{"event":"end","trial":0,"config":{"lr":0.01},"epoch":1,"state_hash":"ab","decision":"finished","why":""}'
} >"$folder/results/digits/results.jsonl"
echo '{"event":"step","epoch":1,"step":1,"steps_per_epoch":9,"loss":2.5}' >"$folder/run.jsonl"

"$troupe" dashboard --port 0 --sweeps "$folder/results" --report "$folder/run.jsonl" >"$folder/address" 2>"$folder/error" &
server=$!
for ((i = 0; i < 300; ++i)); do [ -s "$folder/address" ] && break; sleep 0.1; done
url=$(cat "$folder/address")
expect "$(ask healthz)" '"ok"'
# A program that asks for actors alone got "the head was not asked yet: try again", each time.
expect "$(ask 'api/actors?limit=5')" '"total":0'

# A job that ran, with text that is no markup; one that waits, and why.
ran=$("$troupe" job submit --detach --name "<i>ran" -- sh -c 'echo "<b>hello</b>"')
"$troupe" job wait "$ran" 2>/dev/null
waits=$("$troupe" job submit --detach --num-cpus 99 -- sleep 1)
first=$(ask api/snapshot)
expect "$first" '"name":"one"'
expect "$first" '"name":"digits"'
expect "$first" '\[1,2.5\]'
expect "$(ask "api/jobs/$ran/logs")" '<b>hello</b>'
expect "$(ask "api/jobs/$waits/why")" 'no node has 99 CPU'
expect "$(ask api/jobs/none/logs)" 'no job none'
expect "$(ask sweeps/digits)" '<!doctype html>'
expect "$(ask sweeps/..%2Fdigits)" 'no such sweep'
expect "$(ask 'api/actors?limit=5')" '"total":0'

# What Prometheus scrapes.
for ((i = 0; i < 300; ++i)); do  # it is of a look that is no older than a second
  page=$(ask metrics)
  grep -q '^troupe_jobs{state="queued"} 1$' <<<"$page" && break
  sleep 0.1
done
expect "$page" '^troupe_head_up 1$'
expect "$page" '^troupe_nodes{state="alive"} 1$'
expect "$page" '^troupe_cpus 2$'
expect "$page" '^troupe_node_free_resource{.*resource="memory"} 536870912$'
expect "$page" '^troupe_jobs{state="queued"} 1$'
expect "$page" '^troupe_jobs{state="succeeded"} 1$'
expect "$page" '^troupe_training_loss{run=".*run.jsonl"} 2.5$'
expect "$page" '^troupe_tune_trials{sweep="digits",state="finished"} 1$'
! grep -q '^troupe_head_store_write_seconds_count 0$' <<<"$page" || fail "no write of the store was counted"
! grep -q '^troupe_head_messages_total 0$' <<<"$page" || fail "no message was counted"
! command -v promtool >/dev/null || [ -z "$(promtool check metrics <<<"$page" 2>&1)" ] || fail "promtool: $(promtool check metrics <<<"$page" 2>&1)"

# News are waited for, and come.
version=$(sed -n 's/.*"version":"\([^"]*\)".*/\1/p' <<<"$(ask api/snapshot)")
ask "api/snapshot?since=$version" >"$folder/next" &
"$troupe" job submit --detach --name again -- true >/dev/null
wait $!
expect "$(cat "$folder/next")" '"version":"'
! grep -q "\"version\":\"$version\"" "$folder/next" || fail "the same version again"

# A page of another site, and what would change something.
[ "$(curl -sS -o /dev/null -w '%{http_code}' -H 'Host: evil.example' "${url}api/snapshot")" = 403 ] || fail "another site's page was answered"
[ "$(curl -sS -o /dev/null -w '%{http_code}' -X POST "${url}api/snapshot")" = 405 ] || fail "a POST was taken"
! "$troupe" dashboard --port "$(sed 's/.*:\([0-9]*\).*/\1/' <<<"$url")" >/dev/null 2>"$folder/error" || fail "a port in use was taken"
expect "$(cat "$folder/error")" 'in use'

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -n "$browser" ]; then
  page=$(timeout 60 "$browser" --headless --no-sandbox --disable-gpu --no-proxy-server --user-data-dir="$folder/browser" --virtual-time-budget=3000 --dump-dom "$url?once" 2>/dev/null)
  expect "$page" '>one<'
  expect "$page" '&lt;i&gt;ran'  # a job's name is no markup
  expect "$page" 'href="sweeps/digits"'
  expect "$page" '>QUEUED<'
  expect "$page" '>0 MiB of 512 MiB<'
  expect "$page" '>tpu 0 of 2<'
  expect "$page" '>zone=a<'
  expect "$page" '<td class="">default<'
fi

# Open in a browser: on a phone, in the dark; live, also over another dashboard at its address.
look() { timeout 120 python3 "$(dirname "$0")/browser.py" "$url" "$@"; }
if [ -n "$browser" ] && command -v python3 >/dev/null; then
  seen=$(look --width 390 --height 844 --dark --wait "shown && shown.jobs.length > 2" document.documentElement.scrollWidth \
    "getComputedStyle(document.body).backgroundColor" "document.querySelector('#jobs table').getBoundingClientRect().width > 390" \
    "performance.getEntriesByType('resource').every(r => r.name.startsWith(location.origin))")
  expect "$(tr '\n' ' ' <<<"$seen")" '^390 "rgb(18, 22, 27)" true true $'  # a wide table scrolls by itself, and nothing is from elsewhere
  expect "$(look --wait "shown" "getComputedStyle(document.body).backgroundColor")" 'rgb(255, 255, 255)'
  look --wait "shown && shown.jobs.length > 2" --wait "shown.jobs.some(j => j.metadata.job_name === 'before')" \
    --wait "shown.jobs.some(j => j.metadata.job_name === 'after')" "performance.getEntriesByType('navigation').length" >"$folder/live" 2>"$folder/waits" &
  looks=$!
  has_seen() { for ((i = 0; i < 600; ++i)); do [ "$(wc -l <"$folder/waits")" -ge "$1" ] && return; sleep 0.1; done; fail "the page does not go on: $(cat "$folder/waits")"; }
  has_seen 1
  "$troupe" job submit --detach --name before -- true >/dev/null
  has_seen 2
  kill "$server" && wait "$server" || fail "SIGTERM: exit code $?"
  "$troupe" dashboard --port "$(sed 's/.*:\([0-9]*\).*/\1/' <<<"$url")" --sweeps "$folder/results" >"$folder/address" 2>"$folder/error" &
  server=$!
  "$troupe" job submit --detach --name after -- true >/dev/null
  wait "$looks" || fail "the page does not go on: $(cat "$folder/waits" "$folder/error")"
  expect "$(cat "$folder/live")" '^1$'
fi

# To other addresses with the token alone.
kill "$server" && wait "$server" || fail "SIGTERM: exit code $?"
"$troupe" dashboard --bind 0.0.0.0 --port 0 >"$folder/address" 2>"$folder/error" &
server=$!
for ((i = 0; i < 300; ++i)); do [ -s "$folder/address" ] && grep -q token "$folder/address" && break; sleep 0.1; done
with=$(sed 's/0\.0\.0\.0/127.0.0.1/' "$folder/address")
url=${with%%\?*}
[ "$(curl -sS -o /dev/null -w '%{http_code}' "${url}api/snapshot")" = 401 ] || fail "answered without the token"
[[ "$(curl -sS -c "$folder/cookies" "$with")" == *"<!doctype html>"* ]] || fail "no page with the token"
[[ "$(curl -sS -b "$folder/cookies" "${url}api/snapshot")" == *'"name":"one"'* ]] || fail "the cookie is not taken"

# A head that went: what it said last, and that it is old.
"$troupe" stop >/dev/null
for ((i = 0; i < 30; ++i)); do
  last=$(curl -sS --max-time 40 -b "$folder/cookies" "${url}api/snapshot")
  ! grep -q '"error":"' <<<"$last" || break
  sleep 0.5
done
expect "$last" '"error":"'
expect "$last" '"name":"one"'
expect "$(curl -sS --max-time 40 -b "$folder/cookies" "${url}metrics")" '^troupe_head_up 0$'
[ "$(curl -sS -o /dev/null -w '%{http_code}' "${url}metrics")" = 401 ] || fail "metrics without the token"
