#!/bin/bash
# jobs_transcript.sh BIN DOCS: runs the transcripts of docs/jobs.md (lines that begin with "$ ") on a cluster of its own, and
# compares what comes out. Ids that troupe makes are compared as one.
set -u
PATH="$1:$PATH" page="$2/jobs.md"
root=$(mktemp -d)
export TROUPE_FOLDER="$root/state"
trap 'troupe stop >/dev/null 2>&1; rm -rf "$root"' EXIT
troupe start --head --port 0 --name one --cpus 2 --gpus 0 --detach >"$root/start" 2>&1 || { cat "$root/start"; exit 1; }
awk '/^```/ { inside = inside ? 0 : /^```$/ ? 1 : 2; begun = 0; next } inside == 1 && (begun || /^\$ troupe (job|queue)/) { begun = 1; print }' \
  "$page" >"$root/expected"
[ -s "$root/expected" ] || { echo "no transcript in $page"; exit 1; }
code=0
while IFS= read -r command; do
  echo "\$ $command"
  (exit $code)
  eval "$command" 2>&1 </dev/null
  code=$?
done < <(sed -n 's/^\$ //p' "$root/expected") >"$root/got"
same='s/job-[0-9a-f]{8,16}/job-ID/g'
diff <(sed -E "$same" "$root/expected") <(sed -E "$same" "$root/got") && echo "the transcript is as it was"
