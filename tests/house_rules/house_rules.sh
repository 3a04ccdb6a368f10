#!/usr/bin/env bash
# house_rules.sh [ROOT]: the rules of CONTRIBUTING.md that a script can hold the tree to. Prints each file that breaks one.
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"

rooms="runtime scheduler collectives actors"
sources() { find $rooms examples tests bench \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' \) | sort; }

code=0
# Length, and who may include whom.
sources | awk '
  function room_of(path) {
    if (path ~ /^runtime\/core\// || path == "runtime/include/troupe/error.hpp") return "core"
    sub(/\/.*/, "", path)
    return path
  }
  function broken(rule) { printf "%s: %s\n", file, rule; bad = 1 }
  function may(from, to) {
    if (from == to || to == "core" || from == "tests" || from == "bench") return 1
    if (to == "tests" || to == "bench" || to == "examples") return 0
    if (from == "examples" || from == "actors") return 1
    if (from == "scheduler") return to == "runtime" || (to == "collectives" && file ~ /^scheduler\/cli\//)
    return 0  # core sees nothing, runtime and collectives core alone
  }
  # What path stands for in an #include of <troupe/...>: the file that a room installs there.
  function resolve(path) { return (path in public) ? public[path] : path }
  { file = $0; files[++count] = file
    if (file ~ /\/include\/troupe\//) { name = file; sub(/.*\/include\//, "", name); public[name] = file; roots[++publics] = file } }
  END {
    for (i = 1; i <= count; ++i) {
      file = files[i]; lines = 0
      while ((getline line < file) > 0) {
        ++lines
        if (line !~ /^#include/) continue
        split(line, part, /[<">]/)
        if (file ~ /^examples\// && part[2] ~ /^(runtime|scheduler|collectives|actors|examples)\//)
          broken("includes " part[2] ": an example is a user\047s project, and sees <troupe/...> and its own folder alone")
        included[file] = included[file] resolve(part[2]) "\n"
      }
      close(file)
      limit = file ~ /^tests\// ? 1000 : 600
      if (lines > limit) broken(lines " lines, where " limit " are the most: one idea a file")
      n = split(included[file], path, "\n")
      for (k = 1; k < n; ++k) {
        target = path[k]; to = room_of(target)
        if (target ~ /^(runtime|scheduler|collectives|actors|examples|tests|bench)\// && !may(room_of(file), to))
          broken("includes " target ": " room_of(file) " does not see " to)
        if (target ~ /^(torch|ATen|c10)\// && file !~ /^(actors|examples|tests|bench)\//)
          broken("includes " target ": LibTorch lives in actors and nowhere below")
      }
    }
    # What a public header brings along, through our own headers.
    for (i = 1; i <= publics; ++i) {
      split("", seen); todo[1] = roots[i]; last = 1; file = roots[i]
      for (at = 1; at <= last; ++at) {
        n = split(included[todo[at]], path, "\n")
        for (k = 1; k < n; ++k) {
          if (path[k] ~ /^(caf|zmq|sqlite3|sodium)/) broken("brings along <" path[k] ">, by " todo[at])
          if (path[k] ~ /^torch\// && file !~ /^actors\//) broken("brings along <" path[k] ">, by " todo[at])
          if (!(path[k] in seen)) { seen[path[k]] = 1; todo[++last] = path[k] }
        }
      }
    }
    exit bad
  }' || code=1

# Every source is compiled by somebody: a CMakeLists.txt or a script names it, by its path from that file's folder or
# behind a variable. (Two test files were lost for weeks when a merge dropped their names.)
find cmake $rooms examples tests bench \( -name CMakeLists.txt -o -name '*.cmake' -o -name '*.sh' \) |
  xargs grep -HoE '[][A-Za-z0-9_./${}]+\.(cpp|cu)\b' |
  awk -v sources="$(sources)" '
    { at = index($0, ":"); folder = substr($0, 1, at - 1); sub(/\/[^\/]*$/, "", folder); name = substr($0, at + 1)
      if (name ~ /\$/) { sub(/^.*[$][{]?[A-Za-z_]*[}]?\//, "", name); tails[name] = 1; next }
      named[folder "/" name] = 1 }
    END {
      n = split(sources, file, "\n")
      for (i = 1; i <= n; ++i) {
        if (file[i] !~ /\.(cpp|cu)$/ || file[i] in named) continue
        found = 0
        for (tail in tails) if (file[i] == tail || substr(file[i], length(file[i]) - length(tail)) == "/" tail) found = 1
        if (!found) { print file[i] ": compiled by nobody: no CMakeLists.txt names it"; bad = 1 }
      }
      exit bad
    }' || code=1

# Every folder says what it is.
while read -r folder; do
  [ -f "$folder/README.md" ] || { echo "$folder: has no README.md" && code=1; }
done < <(find $rooms -type d -not -path '*/include*' | sort)

# A table of a struct's fields has all of them in their order, which designated initialisers must follow.
while IFS=' ' read -r page struct header; do
  of_struct=$(sed -n "/^struct $struct {/,/^};/p" "$header" | sed -nE 's/^  [A-Za-z][^={;]*[ >]([a-z_]+)( =.*|\{.*|;.*)$/\1/p')
  of_table=$(sed -n "/^<!-- fields of $struct in /,/^\$/p" "$page" | sed -nE '4,$s/^\| ([^|]*)\|.*/\1/p' | grep -oE '[a-z_]+')
  [ -n "$of_struct" ] && [ "$of_struct" = "$of_table" ] && continue
  echo "$page: its table has not the fields of $struct in their order ($header):"
  diff <(echo "$of_struct") <(echo "$of_table") || code=1
done < <(grep -HE '^<!-- fields of ' docs/*.md | sed -E 's/^([^:]+):<!-- fields of ([A-Za-z]+) in ([^ ]+) -->$/\1 \2 \3/')

# A merge that was not finished.
if marked=$(grep -rlE '^(<<<<<<<|>>>>>>>) ' $rooms examples tests bench docs cmake ./*.md CMakeLists.txt); then
  printf '%s: has the marks of a merge\n' $marked
  code=1
fi

"$(dirname "$0")/snippets.sh" . || code=1
exit "$code"
