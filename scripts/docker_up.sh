#!/usr/bin/env bash
# Makes sure that a Docker daemon answers. Where none does: installs one from the distribution's packages and starts it
# with a data root of its own. Prints the daemon's pid if it started one, so that the caller can stop it. Needs root then.
set -euo pipefail
data_root=${1:?usage: docker_up.sh DATA_ROOT}

answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

if answers; then exit 0; fi
if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null || ! command -v debootstrap >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq docker.io iptables debootstrap; } >&2
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
