#!/bin/bash
# cluster_transcript.sh BIN DOCS: runs the first transcript of docs/cluster.md and compares what comes out. Here the head takes any
# free port, the node is called one, and mnist trains for two steps; ids, addresses and numbers of processes are compared as one.
set -u
PATH="$1:$PATH" page="$2/cluster.md"
root=$(mktemp -d)
unset TROUPE_FOLDER
export XDG_STATE_HOME="$root"
trap 'command troupe stop >/dev/null 2>&1; rm -rf "$root"' EXIT
troupe() {
  [ "$1" = start ] && set -- "$@" --port 0 --name one --gpus 0
  command troupe "$@"
}
mnist() { command mnist "$@" --samples 200 --max-steps 2 --evaluate false >"$root/mnist" 2>&1 || { echo "mnist failed"; cat "$root/mnist"; }; }
awk '/^```/ { if (inside) exit; inside = 1; next } inside' "$page" >"$root/expected"
grep -q '^\$ troupe start' "$root/expected" || { echo "no transcript in $page"; exit 1; }
while IFS= read -r command; do
  echo "\$ $command"
  eval "${command//127.0.0.1:6380/\$(cat \"\$root/troupe/address\")}" 2>&1 </dev/null
done < <(sed -n 's/^\$ //p' "$root/expected") >"$root/got"
same="s#$root|/home/ann/.local/state#STATE#g"';s/[0-9a-f]{13,16}/ID/g;s/mnist-[0-9a-f]{8}/mnist-ID/g;s/127\.0\.0\.1:[0-9]+/ADDRESS/g'
same+=';s/process [0-9]+/process N/g;s/ +/ /g'
diff <(sed -E "$same" "$root/expected") <(sed -E "$same" "$root/got") && echo "the transcript is as it was"
