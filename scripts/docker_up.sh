#!/usr/bin/env bash
# Makes sure that a Docker daemon answers. Where none does: installs one from the distribution's packages and starts it
# with a data root of its own. Prints the daemon's pid if it started one, so that the caller can stop it. Needs root then.
set -euo pipefail
data_root=${1:?usage: docker_up.sh DATA_ROOT}

lives() { ps -C "$1" -o stat= | grep -qv '^Z'; }
answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

if answers; then exit 0; fi
if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null || ! command -v debootstrap >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq docker.io iptables debootstrap; } >&2
fi
# A daemon that was killed leaves its bridge, and on it the network namespaces of its containers, which go on holding the
# addresses that the next daemon gives out: published ports then end in a container that is not there. Its pid files may
# name a process that is another one by now.
if ! lives dockerd; then
  for left in /run/docker/netns/*; do
    [ -e "$left" ] || continue
    umount -l "$left" 2>/dev/null || true
    rm -f "$left"
  done
  ip link delete docker0 2>/dev/null || true
  rm -f /run/docker.pid
  if ! lives containerd; then rm -f /run/docker/containerd/containerd.pid; fi
fi
mkdir -p "$data_root"
setsid dockerd --data-root "$data_root" >"$data_root/dockerd.log" 2>&1 </dev/null &
pid=$!
for _ in $(seq 120); do
  if answers; then echo "$pid"; exit 0; fi
  if ! kill -0 "$pid" 2>/dev/null; then break; fi
  sleep 0.5
done
echo "dockerd did not come up; its log ends with:" >&2
tail -n 20 "$data_root/dockerd.log" >&2
exit 1
