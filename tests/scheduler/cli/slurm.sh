#!/bin/bash
# slurm.sh TROUPE SBATCH: a Slurm of this machine alone runs examples/cluster/troupe.sbatch with two tasks. Needs root; skipped (77)
# without Debian's slurm-wlm and munge.
set -euo pipefail
troupe=$1 script=$2
for program in slurmctld slurmd munged sbatch; do command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || exit 77; done
[ "$(id -u)" = 0 ] || exit 77
PATH=$(dirname "$troupe"):$PATH:/usr/sbin
where=$(mktemp -d)
chmod 755 "$where"
export SLURM_CONF=$where/slurm.conf
mkdir -m 755 "$where"/{state,spool,run,submit}
end() {
  for name in slurmd slurmctld munged; do [ ! -s "$where/run/$name.pid" ] || kill "$(cat "$where/run/$name.pid")" 2>/dev/null || true; done
  sleep 1
  rm -rf "$where"
}
trap end EXIT
fail() { echo "$*"; tail -n 20 "$where"/*.log "$where"/submit/*.txt 2>/dev/null; exit 1; }
host=$(hostname -s)
port=$((20000 + $$ % 12000))  # below those that the kernel gives to anybody
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$where/run/munge.sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
StateSaveLocation=$where/state
SlurmdSpoolDir=$where/spool
SlurmctldPidFile=$where/run/slurmctld.pid
SlurmdPidFile=$where/run/slurmd.pid
SlurmctldLogFile=$where/slurmctld.log
SlurmdLogFile=$where/slurmd.log
SlurmctldPort=$port
SlurmdPort=$((port + 1))
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
head -c 1024 /dev/urandom >"$where/munge.key"
chmod 400 "$where/munge.key"
munged --force --key-file="$where/munge.key" --socket="$where/run/munge.sock" --pid-file="$where/run/munged.pid" \
  --log-file="$where/run/munged.log" --seed-file="$where/run/seed" 2>/dev/null
slurmctld
slurmd
up() { [[ "$(timeout 5 sinfo -h 2>/dev/null)" == *idle* ]]; }
for ((end = SECONDS + 60; SECONDS < end; )); do up && break; sleep 0.2; done
up || fail "Slurm does not come up"

cd "$where/submit"
submit() { sbatch --parsable --nodes=1 --ntasks-per-node=2 --overcommit --output="$1" "$script" "${@:2}"; }
over() { for ((i = 0; i < 300; ++i)); do [ -n "$(squeue -h -j "$1" 2>/dev/null)" ] || return 0; sleep 0.2; done; fail "job $1 goes on"; }

export PROGRAM=sh
job=$(submit ran.txt -c 'echo "ran with $# words, in job $TROUPE_JOB_ID"; exit 3' sh 'a b' c)
over "$job"
grep -q '^ran with 2 words, in job job-' ran.txt || fail "the program's output is not there"
grep -q '2 of 2 nodes are there' ran.txt || fail "not both tasks came"
scontrol show job "$job" | grep -q 'ExitCode=3:0' || fail "not the program's exit code: $(scontrol show job "$job" | grep ExitCode)"

# scancel ends everything.
long=612.$$
job=$(submit long.txt -c 'echo runs; exec sleep '"$long")
for ((i = 0; i < 300; ++i)); do grep -q '^runs' long.txt 2>/dev/null && break; sleep 0.2; done
scancel "$job"
over "$job"
for ((i = 0; i < 100; ++i)); do pgrep -f "sleep $long" >/dev/null || break; sleep 0.2; done
! pgrep -f "sleep $long" >/dev/null || fail "the program goes on"
! grep -q 'does not run' long.txt || fail "an end that was asked for is told as a failure"
