#!/usr/bin/env bash
# Runs every libFuzzer program of build-fuzz; the named number of seconds is shared between them.
set -euo pipefail

seconds=${1:?usage: $0 SECONDS}
programs=(build-fuzz/*_fuzz)
each=$((seconds / ${#programs[@]}))
for program in "${programs[@]}"; do
  name=$(basename "$program" _fuzz)
  work=$(mktemp -d)
  echo "== $program, $each s"
  "$program" "-max_total_time=$each" -print_final_stats=1 -dict=fuzz/json.dict "$work" \
    "fuzz/corpus/$name" 2>&1 | tail -n 6
  rm -rf "$work"
done
