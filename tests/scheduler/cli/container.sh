#!/bin/bash
# container.sh CONTAINERFILE TOP PROGRAM...: what the container file copies is there, what it builds are targets' names, and the
# packages of its last stage, with what they depend on, have each library that the programs name. Skipped (77) elsewhere than on
# the Debian that it is made from.
set -uo pipefail
file=$1 top=$2
shift 2
fail() { echo "$*"; exit 1; }
. /etc/os-release 2>/dev/null && [ "${ID:-}${VERSION_ID:-}" = debian12 ] || exit 77
while read -r word rest; do
  [ "$word" = COPY ] && [[ $rest != --from=* ]] || continue
  sources=($rest) && unset 'sources[-1]'
  for source in "${sources[@]}"; do [ -e "$top/$source" ] || fail "COPY $source: it is not there"; done
done <"$file"
grep -q '^USER 1000:1000$' "$file" || fail "the manifests' pods run as 1000"

last=$(sed -n '/^FROM/h; /^FROM/!H; ${x; p}' "$file")
packages=$(tr -d '\\' <<<"$last" | tr '\n' ' ' | sed -n 's/.*--no-install-recommends \([^&]*\)&&.*/\1/p')
[ -n "$packages" ] || fail "the last stage installs nothing"
dpkg-query -W $packages >/dev/null 2>&1 || exit 77  # another LibTorch than the system's
all=$(apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
  $packages | sed -n 's/^\([a-z0-9].*\)/\1/p' | sort -u)
for program in "$@"; do
  while read -r library; do
    case $library in libgloo* | libmpi* | libnccl* | libcuda* | libopen-pal* | libopen-rte*) continue ;; esac  # of this build alone
    path=$(ldd "$program" | awk -v name="$library" '$1 == name { print $3 }')
    [ -n "$path" ] || continue  # the loader
    path=$(readlink -f "$path")
    package=$(dpkg-query -S "*/$(basename "$(dirname "$path")")/$(basename "$path")" 2>/dev/null | head -n 1 | cut -d: -f1)
    grep -qx "${package:-none}" <<<"$all" || fail "$(basename "$program") needs $library of package ${package:-none}, which the image lacks"
  done < <(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
done
echo "the image has what the programs need"
