#!/usr/bin/env bash
# Installs the Debian packages of the named sets ("build", "dev", "cross") that are missing. Without the right
# to install, prints the one command that does it and stops.
set -euo pipefail

build=(g++ cmake ninja-build pkg-config python3-venv libcli11-dev libfmt-dev libgmp-dev libgtest-dev
       libpcre2-dev librapidcheck-dev libutf8proc-dev nlohmann-json3-dev)
dev=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev binutils)
cross=(g++-aarch64-linux-gnu qemu-user)

wanted=()
for set in "$@"; do
  case $set in
    build) wanted+=("${build[@]}") ;;
    dev) wanted+=("${dev[@]}") ;;
    cross) wanted+=("${cross[@]}") ;;
    *) echo "usage: $0 build|dev|cross ..." >&2; exit 2 ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
    echo "Debian packages are missing. Run this, then make again:" >&2
    echo "  sudo apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  sudo=(sudo)
fi
echo "== Debian packages: ${missing[*]}"
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends \
  "${missing[@]}" >/dev/null
