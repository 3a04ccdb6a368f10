#!/usr/bin/env bash
# completion.sh TROUPE COMPLETION: what the words before complete to, where what they begin is told by --help alone.
set -euo pipefail
PATH="$(dirname "$1"):$PATH"
. "$2"
failed=0
expect() {  # expect REPLY WORDS...
  local reply=$1
  shift
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _troupe
  [ "${COMPREPLY[*]}" = "$reply" ] || { echo "'$*' completes to '${COMPREPLY[*]}', not '$reply'" && failed=1; }
}
expect 'start status stop' troupe st
expect '--address' troupe start --a
expect 'submit status stop' troupe job s
expect 'status scale stop' troupe serve s
expect 'list' troupe group l
expect '--pid --port' troupe serve scale --p
expect '--name --node-dir --num-cpus --num-gpus' troupe job submit --n
expect '--no-python --nnodes --nproc-per-node --node-rank' troupe run --n
expect "$2" troupe flight-recorder "${2%.bash}"  # no command begins so: files
[[ "$(troupe --version)" =~ ^troupe\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "--version says $(troupe --version)" && failed=1; }
exit $failed
