#!/usr/bin/env bash
# snippets.sh [ROOT]: every ```cpp block of README.md and the pages of docs/ named below stands in a file below examples/, and
# every ```cmake block in one below tests/package/: what is shown was built. Whole lines; the block may be indented as one.
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"

check() {  # check LANGUAGE FOLDER PATTERN PAGES...: prints the blocks that no file has
  local language=$1 folder=$2 pattern=$3
  shift 3
  find "$folder" -name "$pattern" -not -path '*/build/*' | sort | awk -v language="$language" -v folder="$folder" -v pages="$*" '
    function indent_of(text) { match(text, /^ */); return RLENGTH }
    # Whether file lines from `at` are the block, all shifted by the same number of blanks.
    function matches(at,   i, shift, ours, theirs) {
      shift = -1
      for (i = 1; i <= rows; ++i) {
        ours = block[i]; theirs = line[at + i - 1]
        if (ours == "" && theirs == "") continue
        if (shift < 0) shift = indent_of(theirs) - indent_of(ours)
        if (shift < 0 || theirs != sprintf("%" shift "s%s", "", ours)) return 0
      }
      return 1
    }
    function find_block(   at) {
      for (at = 1; at + rows - 1 <= lines; ++at) if (matches(at)) return 1
      return 0
    }
    { while ((getline text < $0) > 0) line[++lines] = text
      close($0)
      line[++lines] = "\001" }  # no block goes on from one file into the next
    END {
      n = split(pages, page, " ")
      for (p = 1; p <= n; ++p) {
        number = 0; inside = 0
        while ((getline text < page[p]) > 0) {
          ++number
          if (!inside && text == "```" language) { inside = 1; rows = 0; start = number; continue }
          if (inside && text == "```") {
            inside = 0; ++blocks
            if (!find_block()) { printf "%s:%d: this block is in no file below %s/\n", page[p], start, folder; bad = 1 }
            continue
          }
          if (inside) block[++rows] = text
        }
        if (number == 0) { printf "%s: cannot be read\n", page[p]; bad = 1 }
      }
      printf "%d %s blocks of %s\n", blocks, language, pages
      exit bad
    }'
}

code=0
check cpp examples '*.[ch]pp' README.md docs/actors.md docs/ddp.md docs/data-parallel.md docs/horovod.md docs/jobs.md docs/launch.md docs/placement.md docs/tasks-and-objects.md docs/use-it.md || code=1
check cmake tests/package CMakeLists.txt docs/use-it.md || code=1
exit "$code"
