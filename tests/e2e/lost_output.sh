#!/bin/bash
# lost_output.sh BIN: a program of which nobody reads the output ends as SIGPIPE ends one; if a full disk takes none, it
# does not end with 0. Was: both trained to the end and exited with 0.
failed=0
mnist=("$1/mnist" --samples 400 --trainers 1)
timeout 120 "${mnist[@]}" --epochs 1 2>/dev/null >/dev/full
code=$?
[ $code = 1 ] || { echo "a full disk: exit code $code" && failed=1; }
timeout 120 "${mnist[@]}" --epochs 50 2>/dev/null | head -1 >/dev/null
code=${PIPESTATUS[0]}
[ "$code" = 141 ] || { echo "no reader: exit code $code" && failed=1; }
# A log on a full disk: the job goes on, says it and does not end with 0.
timeout 120 "${mnist[@]}" --epochs 1 --events-json /dev/full >"${TMPDIR:-/tmp}/lost_output.$$" 2>&1
code=$?
[ $code = 1 ] && grep -q "^A LOG IS INCOMPLETE" "${TMPDIR:-/tmp}/lost_output.$$" ||
  { echo "a log on a full disk: exit code $code" && cat "${TMPDIR:-/tmp}/lost_output.$$" && failed=1; }
rm -f "${TMPDIR:-/tmp}/lost_output.$$"
exit $failed
