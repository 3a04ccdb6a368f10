#!/usr/bin/env bash
# debian.sh PACKAGES ROOT: installs the Debian packages of the folder PACKAGES (what cpack makes) on ROOT, a bare Debian 12 (what
# `mmdebstrap --variant=apt bookworm ROOT` makes), and builds and runs there, as users do, the project of docs/use-it.md and
# examples/mnist. Each component is installed by itself first. Needs root and the network; by hand, before a release.
set -euo pipefail
packages=$1 root=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$root/tmp/troupe
rm -rf "$work"
mkdir -p "$work/my_job"
cp "$packages"/*.deb "$work/"
cp "$here/find_package/CMakeLists.txt" "$here/add_subdirectory/main.cpp" "$work/my_job/"
cp -r "$here/../../examples/mnist" "$work/mnist"
cp /etc/resolv.conf "$root/etc/resolv.conf"

cat >"$work/inside.sh" <<'INSIDE'
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
cd /tmp/troupe
install() { apt-get install -y -qq --no-install-recommends "$@" >apt.log 2>&1 || { cat apt.log && exit 1; }; }
apt-get update -qq
install g++ cmake ninja-build
install ./troupe-core_*.deb ./troupe-collectives_*.deb ./troupe-runtime_*.deb
if dpkg -l libtorch-dev 2>/dev/null | grep -q ^ii; then echo "runtime brings LibTorch along" && exit 1; fi
cmake -S my_job -B my_job.build -G Ninja && cmake --build my_job.build
[ "$(my_job.build/my_job)" = "sum 435" ]
echo "my_job: sum 435"
install ./troupe_*.deb
troupe --version
[ -e /usr/share/bash-completion/completions/troupe ]
install libcli11-dev ./*.deb
cmake -S mnist -B mnist.build -G Ninja -DCMAKE_BUILD_TYPE=Release && cmake --build mnist.build
mnist.build/mnist --samples 200 --epochs 1 --trainers 2 | tail -n 2
du -ch $(dpkg -L $(dpkg-query -W -f '${Package} ' 'troupe*') | grep -E '\.so\.|bin/troupe' | sort -u) | tail -n 1
INSIDE
# A namespace of its own for mounts: they go with it.
unshare --mount bash -euc "mount -t proc proc '$root/proc'; mount -t tmpfs tmpfs '$root/dev/shm' 2>/dev/null ||
  { mkdir -p '$root/dev/shm' && mount -t tmpfs tmpfs '$root/dev/shm'; }; exec chroot '$root' bash /tmp/troupe/inside.sh"
