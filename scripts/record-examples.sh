#!/usr/bin/env bash
# Makes the recordings in examples/recordings/ anew: a scripted model (examples/scripted/) works on each
# task in a real sandbox, and what it was asked and answered is recorded. Needed after a change of
# what tools answer. Needs the image, and the registries for the React app.
set -euo pipefail
cd "$(dirname "$0")/.."
UPDATE_RECORDINGS=1 cargo nextest run --package bellglass --test end_to_end -E 'test(/^recordings::the_example/)'
git --no-pager diff --stat -- examples/recordings
