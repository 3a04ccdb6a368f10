# bash completion of troupe: what its --help says of the words before, so it knows as much as the program itself.
_troupe() {
  local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} commands=() i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    [[ ${COMP_WORDS[i]} == -* ]] && break
    commands+=("${COMP_WORDS[i]}")
    [[ ${commands[0]} == @(job|queue|serve|tune|key|group|node|actor) ]] && [ ${#commands[@]} -lt 2 ] || break
  done
  local help
  help=$("$program" "${commands[@]}" --help 2>/dev/null) || return
  if [[ $word == -* ]]; then
    # Of --node-rank,--node_rank the first.
    mapfile -t COMPREPLY < <(compgen -W "$(sed -nE 's/^ +((-[a-zA-Z0-9_-]+,?)+).*/\1/p' <<<"$help" | tr ',' '\n' | grep -v _)" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -W "$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' <<<"$help")" -- "$word")
    [ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -o filenames -F _troupe troupe
