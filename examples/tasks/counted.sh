#!/bin/bash
# counted.sh WORD_COUNT FILES...: its table must be what tr, sort and uniq find.
set -euo pipefail
expected=$(cat "${@:2}" | tr -cs 'A-Za-z' '\n' | tr 'A-Z' 'a-z' | grep -vxE 'a|and|in|is|it|of|that|the|to|' |
  LC_ALL=C sort | uniq -c | LC_ALL=C sort -k1,1nr -k2,2r | awk 'NR <= 5 { printf "%7d %s\n", $1, $2 }')
found=$("$(dirname "$0")/killed.sh" "$@") || { echo "$found"; exit 1; }
echo "$found"
[ "$found" = "$expected" ] || { printf 'expected:\n%s\n' "$expected"; exit 1; }
