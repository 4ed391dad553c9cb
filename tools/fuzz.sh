#!/usr/bin/env bash
# Runs every libFuzzer program of build-fuzz for SECONDS each, one after the other. What they find
# new stays in .cache/fuzz, so that a long run goes on where the last one ended; a finding ends the
# script and is left there as crash-*: make it a seed (fuzz/corpus/NAME) with the repair.
#
#   tools/fuzz.sh SECONDS [NAME...]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:?usage: $0 SECONDS [NAME...]}
shift
if [ $# -eq 0 ]; then
  for program in build-fuzz/*_fuzz; do set -- "$@" "$(basename "$program" _fuzz)"; done
fi
# Short stacks and a small quarantine: most of the time would be spent on keeping them otherwise.
export ASAN_OPTIONS=malloc_context_size=3:quarantine_size_mb=8:${ASAN_OPTIONS:-}
for name in "$@"; do
  work=.cache/fuzz/$name
  mkdir -p "$work/found"
  echo "== $name, $seconds s"
  if ! "build-fuzz/${name}_fuzz" "-max_total_time=$seconds" -max_len=1024 -entropic=0 \
    -print_final_stats=1 -dict=fuzz/json.dict "-artifact_prefix=$work/" "$work/found" \
    "fuzz/corpus/$name" >"$work/log" 2>&1; then
    tail -n 40 "$work/log"
    exit 1
  fi
  grep -E "DONE|accepted:" "$work/log"
done
