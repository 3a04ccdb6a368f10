#!/usr/bin/env bash
# container.sh CONTAINERFILE TOP WORK: makes the image of the container file as a folder, without an engine of containers, and
# starts a cluster of two hosts of it. Each FROM is a bare Debian by mmdebstrap in WORK; COPY and RUN are done in their order, RUN
# by chroot with the stage's SHELL. Then two hosts, each with its own network, processes, hostname and /state, run the command of
# troupe-job.yaml as the image's USER: a job that one submits trains on both. Needs root and Debian's mirror, 8 GB of disk and
# half an hour of CPU; skipped (77) without mmdebstrap.
set -euo pipefail
file=$(realpath "$1") top=$(realpath "$2") work=$3
[ "$(id -u)" = 0 ] || exit 77
for tool in mmdebstrap unshare ip; do command -v "$tool" >/dev/null || exit 77; done
fail() { echo "$*"; exit 1; }
mkdir -p "$work" && work=$(realpath "$work")
rm -rf "${work:?}"/*

# --- The image.
declare -A roots
root="" shell=() user=0:0 environment=()
inside() {  # inside ROOT COMMAND...: in namespaces of its own, which take mounts and processes with them
  local at=$1
  shift
  unshare --mount --pid --fork bash -euc 'root=$1; shift; mount -t proc proc "$root/proc"; mount --bind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/tmp"; exec chroot "$root" /usr/bin/env -i HOME=/root DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"' bash "$at" "$@"
}
step() {
  local word=$1 rest=$2
  echo "== $word $rest"
  case $word in
    FROM)
      read -r from _ name <<<"$rest"
      [[ $from = docker.io/library/debian:12* ]] || fail "FROM $from: this script makes Debian 12 alone"
      if [ -z "${bare:-}" ]; then
        bare=$work/bare
        unshare --mount mmdebstrap --quiet --variant=apt bookworm "$bare" || fail "no bare Debian"
      fi
      root=$work/${name:-image} shell=(/bin/sh -c) user=0:0 environment=()
      cp -a "$bare" "$root"
      cp /etc/resolv.conf "$root/etc/resolv.conf"
      [ -z "$name" ] || roots[$name]=$root ;;
    SHELL) mapfile -t shell < <(python3 -c 'import json, sys; print(*json.loads(sys.argv[1]), sep="\n")' "$rest") ;;
    COPY)
      local from=$top words
      read -ra words <<<"$rest"
      if [[ ${words[0]} = --from=* ]]; then from=${roots[${words[0]#--from=}]} words=("${words[@]:1}"); fi
      local to=$root${words[-1]} one
      unset 'words[-1]'
      for one in "${words[@]}"; do  # a folder's content goes there, and a file by its name
        if [ -d "$from/$one" ]; then mkdir -p "$to" && cp -a "$from/$one/." "$to/"; else mkdir -p "$to" && cp -a "$from/$one" "$to/"; fi
      done ;;
    RUN) inside "$root" "${shell[@]}" "$rest" >"$work/run.log" 2>&1 || { tail -n 40 "$work/run.log"; fail "RUN $rest failed"; } ;;
    USER) user=$rest ;;
    ENV) environment+=("$rest") ;;
    *) fail "$word: this script does not know it" ;;
  esac
}
line=""
while IFS= read -r part || [ -n "$part" ]; do
  [[ $part != \#* && -n $part$line ]] || continue
  if [[ $part = *\\ ]]; then line+=${part%\\} && continue; fi
  line+=$part
  read -r word rest <<<"$line"
  step "$word" "$rest"
  line=""
done <"$file"
rm -rf "${bare:?}"
echo "the image: $(du -sh "$root" | cut -f 1)"

# --- Two hosts.
mkdir -p "$work/shared" && chown "$user" "$work/shared"
printf '%s\n' "127.0.0.1 localhost" "10.111.0.1 host-0" "10.111.0.2 host-1" >"$work/shared.hosts"
net=troupe$$
link=t$(($$ % 10000))
end() {
  kill $(jobs -p) 2>/dev/null || true
  wait
  for rank in 0 1; do ip netns delete "$net.$rank" 2>/dev/null || true; done
}
trap end EXIT
for rank in 0 1; do ip netns add "$net.$rank"; done
ip link add "$link.0" netns "$net.0" type veth peer name "$link.1" netns "$net.1"
for rank in 0 1; do
  ip -n "$net.$rank" address add 10.111.0.$((rank + 1))/24 dev "$link.$rank"
  ip -n "$net.$rank" link set "$link.$rank" up
  ip -n "$net.$rank" link set lo up
done
host() {  # host RANK: as a pod of troupe-job.yaml, in the background
  local rank=$1
  ip netns exec "$net.$rank" unshare --mount --pid --uts --fork bash -euc 'root=$1 rank=$2 user=$3 shared=$4; shift 4
    hostname "host-$rank"
    mount --bind "$root" /mnt && mkdir -p /mnt/state /mnt/shared && mount --bind "$shared" /mnt/shared
    mount -t tmpfs -o mode=1777 tmpfs /mnt/state; mount -t tmpfs -o mode=1777 tmpfs /mnt/tmp; mount -t proc proc /mnt/proc
    mount --bind /dev /mnt/dev; mount -t tmpfs -o mode=1777,size=1g tmpfs /mnt/dev/shm
    touch /mnt/etc/hosts; mount --bind "$shared.hosts" /mnt/etc/hosts  # as a headless Service names pods
    exec chroot --userspec="$user" /mnt /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin "$@"' \
    bash "$root" "$rank" "$user" "$work/shared" "${environment[@]}" HOSTNAME="host-$rank" JOB_COMPLETION_INDEX="$rank" \
    TROUPE_HOSTS=2 TROUPE_RUN=image troupe up --shared /shared --folder /state/troupe --cpus 1 --memory 1GiB --wait 120 -- \
    sh -euc 'troupe status | grep " alive"; troupe job submit --name digits -- mnist --samples 400 --epochs 1 --trainers 2
      troupe job list' >"$work/$rank.log" 2>&1 &
}
host 1
other=$!
host 0
first=$!
code=0 && wait "$first" || code=$?
cat "$work/0.log"
[ "$code" = 0 ] || { cat "$work/1.log"; fail "the first host: exit code $code"; }
wait "$other" || { cat "$work/1.log"; fail "the other host: exit code $?"; }
for name in host-0 host-1; do grep -qE "^[0-9a-f]+ +$name .*alive" "$work/0.log" || fail "no node of $name"; done
grep -qE "SUCCEEDED: exit code 0" "$work/0.log" && grep -q "2 trainers.* 2 nodes" "$work/0.log" || fail "the job did not succeed on both"
[ -z "$(ls "$work/shared")" ] || fail "left in the shared folder: $(ls "$work/shared")"
echo "two hosts of the image are a cluster, and a job ran on it"
rm -rf "${work:?}"/*
