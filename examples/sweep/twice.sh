#!/bin/bash
# twice.sh PROGRAM TRIALS: prints the table of one sweep; a second one must print the same.
set -euo pipefail
first=$("$1" "$2" 2>/dev/null)
second=$("$1" "$2" 2>/dev/null)
echo "$first"
[ "$(echo "$first" | wc -l)" = $(($2 + 3)) ] || { echo "the table has not a row a trial and one of the clone"; exit 1; }
[[ "$first" == *"1 fault survived"* ]] || { echo "no trainer was killed"; exit 1; }
[ "$first" = "$second" ] || { printf 'another table the second time:\n%s\n' "$second"; exit 1; }
