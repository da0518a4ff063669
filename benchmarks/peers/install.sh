#!/usr/bin/env bash
# Installs each peer that the service is compared with into a separate environment, because Reverb pins versions of
# NumPy and protobuf that are incompatible with everything else. Reports peers that cannot be installed.
#   benchmarks/peers/install.sh [FOLDER]      default: .peers
set -uo pipefail
folder=${1:-.peers}
python=${PYTHON:-python3}

install_peer() {  # name, then what pip installs
  local name=$1
  shift
  [ -e "$folder/$name/.installed" ] && return
  if "$python" -m venv "$folder/$name" && "$folder/$name/bin/pip" install --quiet "$@"; then
    touch "$folder/$name/.installed"
  else
    rm -rf "${folder:?}/$name"
    echo "$name cannot be installed here; it is left out of the comparison" >&2
  fi
}

install_peer reverb 'dm-reverb[tensorflow]==0.14.0'
install_peer cpprb 'cpprb==11.0.0' numpy
