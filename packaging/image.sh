#!/bin/sh
# Build the image `dekrr` without a registry, and without a network inside the build; `make image` runs it.
#
#     BASE=registry.example.org/python:3.11 make image   # on a base of your own: it has python3.11 with venv, and useradd
#     make image                                         # as root: on a Debian that debootstrap makes
#
# The packages of packaging/requirements.txt are fetched first, by this machine's pip, into build/wheels. An organisation
# without a package index copies that folder. SUITE and MIRROR say which Debian (bookworm has Python 3.11), BUILDAH has
# options of buildah itself, for instance "--storage-driver vfs".
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
wheels=build/wheels
base=${BASE:-localhost/dekrr-base}

mkdir -p "$wheels"
"$python" -m pip download --quiet --only-binary :all: --no-deps --require-hashes --dest "$wheels" -r packaging/requirements.txt
"$python" -m pip download --quiet --only-binary :all: --dest "$wheels" hatchling

if [ -z "${BASE:-}" ] && ! buildah ${BUILDAH:-} inspect --type image "$base" >/dev/null 2>&1; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase --include=python3,python3-venv \
        "${SUITE:-bookworm}" "$root" "${MIRROR:-http://deb.debian.org/debian}"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    container=$(buildah ${BUILDAH:-} from scratch)
    buildah ${BUILDAH:-} add --quiet "$container" "$root" /
    buildah ${BUILDAH:-} commit --quiet --rm "$container" "$base"
fi

buildah ${BUILDAH:-} build --isolation "${ISOLATION:-chroot}" --volume "$PWD/$wheels:/wheels:ro" \
    --build-arg BASE="$base" --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels \
    --tag dekrr --file packaging/Containerfile .
