#!/bin/bash
# refused.sh COMPILER ROOT: compiles every case of refused.cpp alone. Case 0 must compile; the first error of each
# other case (with its notes) must hold the expected text, spaces apart.
compiler=$1 root=$2 failed=0 cases=0
file=$root/tests/runtime/client/refused.cpp
header=runtime/client/session.hpp  # what the cases include: parsed once
precompiled=$(mktemp -d)
trap 'rm -rf "$precompiled"' EXIT
mkdir -p "$precompiled/$(dirname $header)"
"$compiler" -std=c++20 -I"$root" -x c++-header "$root/$header" -o "$precompiled/$header.gch" || exit 1

check() { # CASE EXPECTED
  local first
  first=$(LC_ALL=C "$compiler" -std=c++20 -I"$precompiled" -I"$root" -fsyntax-only -DCASE="$1" "$file" 2>&1 |
    awk '/ error: / { errors++ } errors == 1 { print }')
  if [ "$1" = 0 ]; then
    [ -z "$first" ] && return
    echo "case 0 must compile, but: $first"
  else
    case "${first// /}" in *"${2// /}"*) return ;; esac
    printf 'case %s:\n  expected: %s\n  first error: %s\n' "$1" "$2" "$(head -1 <<<"${first:-none, it compiles}")"
  fi
  failed=1
}

check 0
while read -r number expected; do
  check "$number" "$expected"
  cases=$((cases + 1))
done < <(sed -n 's|^#elif CASE == \([0-9]*\)  // expect: |\1 |p' "$file")
[ "$cases" -gt 0 ] || { echo "no cases in $file" && failed=1; }
exit "$failed"
