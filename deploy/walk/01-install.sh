#!/bin/sh
# Step 1: the package. Later also: another version of it beside the first one, such as "01-install.sh next".
set -eu
. "$(dirname "$0")/settings.sh"

version=${1:-first}

mkdir -p "$WALK/versions/$version"
cd "$WALK/versions/$version"
npm init -y
npm install "$PACKAGE"
# The example platform. Yours comes from your version control.
cp node_modules/nuncio/dist/nuncio.config.ts .
[ -e "$WALK/current" ] || ln -s "versions/$version" "$WALK/current"
node node_modules/nuncio/dist/main.js --help | head -n 5
