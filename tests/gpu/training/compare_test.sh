#!/usr/bin/env bash
# compare.py over programs that only print what programs print: when it passes, when it fails, and with which exit code.
set -euo pipefail
compare=$(cd "$(dirname "$0")" && pwd)/compare.py
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The stand-in for gpu_training and mnist. GIVE names what is wrong with the run that has the flag ON.
cat >"$folder/gpu_training" <<'TEXT'
#!/bin/sh
hash=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
case " $* " in *" ${ON:---never} "*)
  case "$GIVE" in
    hash) hash=b${hash#a} ;;
    nothing) exit 0 ;;
    failure) echo "net: it broke" && exit 1 ;;
    no-data) echo "skipped: no CIFAR-10" && exit 77 ;;
  esac ;;
esac
from=1 to=2  # without a GPU nobody asks what it did meanwhile
[ -z "${TAKES:-}" ] || { from=$(date +%s.%N) && sleep "$TAKES" && to=$(date +%s.%N); }
printf 'samples_per_s 1000.5\nmeasured from %s to %s\nloss 0.5\nstate sha256 %s\n' "$from" "$to" "$hash"
TEXT
cp "$folder/gpu_training" "$folder/mnist"
# The stand-in for nvidia-smi: two GPUs, of which one works.
mkdir "$folder/path"
cat >"$folder/path/nvidia-smi" <<'TEXT'
#!/usr/bin/env bash
while printf '0, 0, 10\n1, 75, 2048\n'; do
  case " $* " in *" -lms "*) sleep 0.05 ;; *) exit 0 ;; esac
done
TEXT
chmod +x "$folder"/gpu_training "$folder"/mnist "$folder/path/nvidia-smi"

failed=0
# expect CODE PATTERN WHAT ARGS...: runs compare.py
expect() {
  local code=$1 pattern=$2 what=$3 got=0
  shift 3
  "$compare" --programs "$folder" "$@" >"$folder/said" 2>&1 || got=$?
  if [ "$got" != "$code" ] || ! grep -qE "$pattern" "$folder/said"; then
    echo "FAILED: $what: exit code $got, and not $code with /$pattern/:"
    cat "$folder/said"
    failed=1
  fi
}

expect 0 'mnist +examples/mnist, 2 trainers +1,00[01] .* a{12} same' "all is well" --on-cpu
ON=--shard GIVE=hash expect 3 'mnist +examples/mnist, sharded .* ba{11} DIFFERENT' "with sharded parameters it is another result" --on-cpu
[ "$(grep -c -- '--micro-batch' "$folder/said")" = 5 ] || { echo "FAILED: mnist has another flag for its batch" && failed=1; }
ON=--shard-units GIVE=hash expect 3 'examples/mnist, by name, prefetch .* ba{11} DIFFERENT' "with units by name it is another result" --on-cpu
ON=--sync-batch-norm GIVE=failure expect 1 'synced +SyncBatchNorm, one killed .* FAILED' "SyncBatchNorm fails" --on-cpu
expect 0 'mnist +2 trainers +1,00[01] +1\.00 +- +- ' "rates, and no GPU" --on-cpu
ON=--kill-at GIVE=hash expect 3 'one killed .* ba{11} DIFFERENT' "a killed trainer changed the result" --on-cpu
ON=--by-hand GIVE=hash expect 3 'DDP by hand, 1 rank .* ba{11} DIFFERENT' "by hand it is another result than the plain loop's" --on-cpu
ON=--sharded GIVE=hash expect 3 'mnist +FSDP by hand, 2 ranks .* ba{11} DIFFERENT' "sharded it is another result than the plain loop's" --on-cpu
expect 0 'mnist +DDP by hand, 2 ranks +1,00[01] +1\.00 .* a{12} same' "by hand against the plain loop" --on-cpu
ON=cifar10 GIVE=no-data expect 0 'cifar10 .* left out' "there is no CIFAR-10" --on-cpu
ON=--trainers GIVE=nothing expect 1 'FAILED: it printed no hash' "a program ends without a hash" --on-cpu
ON=--kill-at GIVE=failure expect 1 'FAILED: exit code 1' "a program fails" --on-cpu
grep -q 'net: it broke' "$folder/said" || { echo "FAILED: what a failed program said is not shown" && failed=1; }
TAKES=0.2 PATH=$folder/path:$PATH expect 0 'mnist +2 trainers .* 75 % +2048 +a{12} same' "how busy the GPU is"
grep -qE 'mnist +examples/mnist, sharded, a GPU each .* same' "$folder/said" || { echo "FAILED: no row with shards over NCCL" && failed=1; }
grep -qE 'cifar10 +2 trainers, a GPU each .* same' "$folder/said" || { echo "FAILED: no row with a GPU each" && failed=1; }
printf '#!/bin/sh\nexit 9\n' >"$folder/path/nvidia-smi"
PATH=$folder/path:$PATH expect 77 'skipped' "there is no GPU"
rm "$folder/mnist"
expect 1 'no program' "a program was not built" --on-cpu
[ "$failed" = 0 ] && echo "compare.py: all passed"
exit "$failed"
