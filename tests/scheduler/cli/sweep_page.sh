#!/bin/bash
# sweep_page.sh TROUPE: a sweep's page in Chromium draws every trial. Skipped (77) where there is none.
set -euo pipefail
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/digits"
{
  echo '{"event":"sweep","version":1,"job":"Digits{0.1}","metric":"test/accuracy (more is better)","trials":"8","epochs":"2"}'
  for trial in 0 1 2 3 4 5 6 7; do
    fields='"trial":'$trial',"config":{"lr":0.00'$((trial + 1))',"kind":"<b>k'$((trial % 2))'"}'
    times='"began_ms":'$((1000 * trial + 1000))',"at_ms":'$((1000 * trial + 1500))
    echo '{"event":"report",'"$fields"',"epoch":1,"metrics":{"test/accuracy":0.'$trial'},"decision":"continue","why":"",'"$times"'}'
    [ "$trial" = 5 ] || echo '{"event":"end",'"$fields"',"epoch":1,"state_hash":"ab","decision":"finished","why":"</script><i>done",'"$times"'}'
  done
} >"$folder/digits/results.jsonl"
mkdir "$folder/clones"
{
  echo '{"event":"sweep","version":1,"job":"Digits{0.1}","metric":"test/accuracy (more is better)","trials":"2","epochs":"3"}'
  report() {  # report TRIAL LR EPOCH ACCURACY
    echo '{"event":"report","trial":'$1',"config":{"lr":'$2'},"epoch":'$3',"metrics":{"test/accuracy":'$4'},"decision":"continue","why":"","began_ms":1000,"at_ms":'$((1000 * $3 + 1000))'}'
  }
  report 0 0.5 1 0.75
  report 1 0.25 1 0.5
  echo '{"event":"clone","trial":1,"config":{"lr":0.625},"epoch":1,"from":0,"decision":"clone","why":"","began_ms":1000,"at_ms":2000}'
  report 1 0.625 2 0.875
} >"$folder/clones/results.jsonl"
"$1" tune page digits --folder "$folder" >/dev/null
draw() {  # draw SWEEP
  page=$(timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$folder/browser" --dump-dom "file://$folder/$1/page.html" 2>/dev/null) || {
    echo "the browser did not draw the page of $1"
    exit 1
  }
}
draw digits
expect() {  # expect COUNT PATTERN
  local found
  found=$({ grep -oE "$2" <<<"$page" || true; } | wc -l)
  [ "$found" = "$1" ] || { echo "$found times $2, not $1"; exit 1; }
}
expect 16 '<polyline[^>]*class="trial"'  # a curve and a line of coordinates each
expect 16 '<circle'                      # two slices
expect 10 '<rect'                        # two fields' importance, eight runs
expect 1 'Best: trial 7: lr=0.008 '
expect 1 '>7 finished, 1 running<|: 7 finished, 1 running<'
expect 0 '<i>done'                       # text of a record is no markup

"$1" tune page clones --folder "$folder" >/dev/null
draw clones
expect 5 '<polyline[^>]*class="trial"'  # three pieces of curves, and two trials' coordinates
expect 1 'class="clone"'
expect 1 'trial 1: lr=0.25, test/accuracy 50.00 % after epoch 1,'
expect 2 'trial 1: lr=0.625, test/accuracy 87.50 % after epoch 2, clone of trial 0 after epoch 1'
expect 1 '<td>trial 0 after epoch 1</td>'

mkdir "$folder/twice"
{
  echo '{"event":"sweep","version":1,"job":"Digits{0.1}","metric":"test/accuracy (more is better)","trials":"4","epochs":"1","repeats":"2"}'
  for pair in "0 0.5" "1 0.75" "2 1.0" "3 0.125"; do
    fields='"trial":'${pair% *}',"config":{"lr":0.'$((${pair% *} / 2 + 1))'}'
    echo '{"event":"report",'"$fields"',"epoch":1,"metrics":{"test/accuracy":'${pair#* }'},"decision":"finish","why":"","began_ms":1000,"at_ms":2000}'
    echo '{"event":"end",'"$fields"',"epoch":1,"state_hash":"ab","decision":"finished","why":"","began_ms":1000,"at_ms":2100}'
  done
} >"$folder/twice/results.jsonl"
"$1" tune page twice --folder "$folder" >/dev/null
draw twice
expect 1 'Best: trial 1: lr=0.1,'  # of the config with the best mean
