#!/usr/bin/env bash
# A model repository with settings of its own for each model, served.
#
#     examples/custom_repository.sh REPOSITORY EMBEDDER WRITER [FLAG OF fusewire serve]...
#
# EMBEDDER and WRITER (a model that generates) are folders or Hugging Face ids. What `import` writes
# is Triton's own format: edit REPOSITORY/*/config.pbtxt by hand if you like, and add models of other
# backends beside these.
set -euo pipefail
repository=$1 embedder=$2 writer=$3
shift 3

fusewire import "$embedder" --repository "$repository" --name embedder --replace \
    --truncate --max-length 128 --max-batch-size 64 --queue-delay-us 500
fusewire import "$writer" --repository "$repository" --name writer --replace \
    --max-sequences 16 --max-waiting 64

exec fusewire serve "$repository" "$@"
