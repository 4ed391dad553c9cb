#!/usr/bin/env bash
# Writes the Jargon File (public domain; Debian package jargon-text) to the named file. The package is
# unpacked, not installed: slim systems leave out documentation.
set -euo pipefail

target=$(realpath -m "${1:?usage: $0 FILE}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# apt's sandbox user cannot write here; as root that is only a notice.
apt-get download -qq jargon-text 2>/dev/null || { apt-get update -qq; apt-get download -qq jargon-text; }
dpkg -x jargon-text_*.deb .
gunzip -c usr/share/doc/jargon-text/jargon.txt.gz >"$target.partial"
mv "$target.partial" "$target"
