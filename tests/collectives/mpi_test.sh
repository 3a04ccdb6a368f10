#!/bin/sh
# mpi_test.sh MPIRUN RANKS PROGRAM WHAT: runs PROGRAM WHAT on RANKS ranks; 77 (skipped) where MPIRUN is empty.
# The mismatch, timeout, abort and quiet tests leave MPI in the middle of operations, which mpirun calls a failure: there, every
# rank has to say that it saw what it should. After such an end the mpirun of OpenMPI 4.1 now and then (once in 12 runs)
# waits for itself in PMIx_server_finalize, when all ranks are gone: it is ended.
if [ -z "$1" ]; then
  echo "skipped: this build has no MPI (apt-get install openmpi-bin libopenmpi-dev)"
  exit 77
fi
# OpenMPI: more ranks than cores, in a container too, and nothing but this machine. Others do not look at these.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl=self,vader
# It looks up "localhost" dozens of times. Without /etc/hosts a name server is asked, and each question that is lost costs 5 s.
export RES_OPTIONS="timeout:1 attempts:1"
# MPI keeps memory until the end of the process, and so do operations that were aborted.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
case $4 in
  timeout) wanted="timed out as it should" ;;
  mismatch) wanted="returned as it should" ;;
  abort) wanted="aborted as it should" ;;
  quiet) wanted="was quiet as it should" ;;
  *) exec "$1" -n "$2" "$3" "$4" ;;
esac
said=$(timeout -k 5 60 "$1" -n "$2" "$3" "$4" 2>&1)
code=$?
echo "$said"
[ "$code" != 124 ] || echo "mpirun did not end within 60 s, and was ended: does /etc/hosts name localhost?"
[ "$(echo "$said" | grep -c "$wanted")" -eq "$2" ]
