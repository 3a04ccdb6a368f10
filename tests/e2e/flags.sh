#!/bin/bash
# flags.sh FOLDER: every program there that takes flags prints help and exits with 0 for --help, and exits with 2 for a
# flag that it does not know. Was: `soak --help` ran for 10 minutes.
failed=0 programs=0
for program in "$1"/{troupe,mnist,serve,all_reduce,soak,simulate} "$1"/bench_*; do
  [ -x "$program" ] || continue
  programs=$((programs + 1))
  help=$(timeout 60 "$program" --help 2>/dev/null)
  code=$?
  [ $code = 0 ] && [ -n "$help" ] || { echo "$program --help: exit code $code, ${#help} characters" && failed=1; }
  said=$(timeout 60 "$program" --no-such-flag 2>&1)
  code=$?
  [ $code = 2 ] && [ -n "$said" ] || { echo "$program --no-such-flag: exit code $code, ${#said} characters" && failed=1; }
done
[ $programs -gt 0 ] || { echo "no programs in $1" && failed=1; }
exit $failed
