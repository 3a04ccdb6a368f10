#!/bin/sh
# ccache_pch.sh CCACHE COMPILER ARGUMENTS...: CCACHE for files with a precompiled header, and for that itself.
# ccache leaves the old one where it is while GCC makes the new one, and GCC takes it: whatever it had stays.
case " $* " in
*" c++-header "*)
  # By the headers' bytes: GCC takes one for another where a comment has changed, which preprocessing drops.
  export CCACHE_DEPEND=1
  next=
  for word; do
    [ "$next" != -o ] || rm -f "$word"
    next=$word
  done
  ;;
esac
# ccache must be told that a changed header inside it is the compiler's business.
CCACHE_SLOPPINESS=pch_defines,time_macros exec "$@"
