#!/usr/bin/env bash
# Makes a local base image from Debian packages where none can be pulled: bookworm with python3 and ca-certificates.
# usage: base_image.sh TAG [ROOT]   TAG such as ninfer-base:bookworm; ROOT: an existing debootstrap directory to import.
# Does nothing when TAG exists. Needs root, and a Docker daemon. Prints the image id.
set -euo pipefail
tag=${1:?usage: base_image.sh TAG [ROOT]}
root=${2:-}

image_id() { docker image inspect --format '{{.Id}}' "$tag"; }

if docker image inspect "$tag" >/dev/null 2>&1; then
  image_id
  exit 0
fi
if [ -z "$root" ]; then
  if ! command -v debootstrap >/dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq debootstrap; } >&2
  fi
  scratch=$(mktemp -d /var/tmp/ninfer-base.XXXXXX)
  trap 'rm -rf "$scratch"' EXIT
  root=$scratch/root
  debootstrap --variant=minbase --include=python3,ca-certificates bookworm "$root" >"$scratch/log" 2>&1 || {
    echo "debootstrap failed; its log ends with:" >&2
    tail -n 20 "$scratch/log" >&2
    exit 1
  }
fi
# Packages, lists, manuals and translations are of no use in the image. --numeric-owner: names differ between machines.
tar -C "$root" --numeric-owner --one-file-system \
  --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' --exclude='./var/cache/debconf/*-old' \
  --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/info/*' \
  --exclude='./usr/share/locale/*' --exclude='./var/log/*' --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' \
  -c . | docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
  --change 'CMD ["python3"]' - "$tag" >/dev/null
image_id
