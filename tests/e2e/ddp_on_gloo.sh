#!/usr/bin/env bash
# ddp_on_gloo.sh TROUPE: an unmodified DDP script of PyTorch's trains under `troupe run` to the same parameters, bit for bit, as
# under torchrun. 77 where no Python has torch.
set -euo pipefail
troupe=$1 script=$(dirname "$0")/ddp_on_gloo.py
for python in "${PYTHON:-python3}" /usr/bin/python3; do
  "$python" -c 'import torch.distributed as d; assert d.is_gloo_available()' 2>/dev/null && break
  python=
done
[ -n "$python" ] || { echo "no Python with torch: apt-get install python3-torch, or set PYTHON to one that has it"; exit 77; }
export PYTHON_EXEC=$python CUDA_VISIBLE_DEVICES=
ours=$(timeout 200 "$troupe" run --nproc-per-node 2 "$script")
# With -r 1 -t 1: the default, 0, and 3 do not work in the torchrun of Debian (1.13 with Python 3.11).
theirs=$(timeout 200 "$python" -m torch.distributed.run --standalone --nproc_per_node 2 -r 1 -t 1 "$script" 2>/dev/null |
  sed -n 's/^\[default0\]:\(loss .*\)/\1/p')
printf 'troupe run  %s\ntorchrun    %s\n' "$ours" "$theirs"
[ -n "$ours" ] && [ "$ours" = "$theirs" ]
