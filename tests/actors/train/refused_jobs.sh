#!/bin/bash
# refused_jobs.sh COMPILER ROOT FLAGS...: the errors in refused_jobs.cpp must be those that it expects, in their order.
compiler=$1 root=$2
shift 2
file=$root/tests/actors/train/refused_jobs.cpp
said=$(LC_ALL=C "$compiler" -std=c++20 -w -I"$root" "$@" -fsyntax-only "$file" 2>&1 | grep ' error: ')
expected=$(sed -n 's|.*// expect: ||p' "$file")
[ -n "$expected" ] || { echo "no cases in $file" && exit 1; }
paste -d '\n' <(echo "$expected") <(echo "$said") | awk '
  NR % 2 { text = $0; next }
  text == "" || index($0, text) == 0 { printf "expected: %s\n     got: %s\n", text, $0; bad = 1 }
  END { exit bad }'
