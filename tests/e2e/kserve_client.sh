#!/usr/bin/env bash
# kserve_client.sh SERVE: the example is asked by a client that others wrote, tritonclient. 77 where no Python has it.
set -euo pipefail
serve=$1 script=$(dirname "$0")/kserve_client.py
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
for python in "${PYTHON:-python3}" /usr/bin/python3; do
  "$python" -c 'import tritonclient.http' 2>/dev/null && break
  python=
done
[ -n "$python" ] || { echo "no Python with tritonclient: pip install 'tritonclient[http]', or set PYTHON to one that has it"; exit 77; }
root=$(mktemp -d)
"$serve" --port 0 --replicas 2 >"$root/out" 2>"$root/err" &
pid=$!
trap 'kill -9 $pid 2>/dev/null || true; rm -rf "$root"' EXIT
for ((tries = 0; tries < 1200; ++tries)); do
  grep -q ^http "$root/out" && break
  kill -0 $pid 2>/dev/null || break
  sleep 0.05
done
url=$(grep -m1 ^http "$root/out") || { cat "$root/out" "$root/err"; exit 1; }
address=${url#http://}
timeout 120 "$python" "$script" "${address%%/*}"
kill -TERM $pid  # a background job of a script ignores SIGINT
wait $pid
