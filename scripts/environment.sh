# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Read by scripts/install and scripts/check: finding Python, making .venv, knowing what is installed in it.
# Whoever reads this has set `root` to the checkout.

venv=$root/.venv
export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

find_python() {
  local name
  for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
    if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
}

can_make_environments() { "$1" -c 'import venv, ensurepip' 2>/dev/null; }

# Two installations at once would break each other's environment. Descriptor 9 holds the lock until the script ends.
lock_environment() {
  mkdir -p -- "$root/build"
  exec 9>"$root/build/install.lock"
  flock 9
}

# make_environment PYTHON: .venv, made anew where it does not work.
make_environment() {
  # A copied or moved checkout holds scripts that name the old place; an upgraded system another Python.
  if ! [[ -x $venv/bin/pip && $(head -n 1 "$venv/bin/pip") == *"$venv/bin/"* ]] ||
    ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    say "making $venv with $("$1" --version)"
    rm -rf -- "$venv"
    "$1" -m venv "$venv"
  fi
}

# What an environment must have been made for: changes with pyproject.toml and with Python.
wanted_environment() {
  {
    cat -- "$root/pyproject.toml"
    "$venv/bin/python" --version
  } | sha256sum | cut -d ' ' -f 1
}

# has_installed EXTRA: whether .venv holds what pyproject.toml asks for now. [dev] has everything that the others have.
has_installed() {
  local wanted
  wanted=$(wanted_environment)
  [[ $(cat -- "$venv/.installed$1" 2>/dev/null) == "$wanted" || $(cat -- "$venv/.installed[dev]" 2>/dev/null) == "$wanted" ]]
}

note_installed() { wanted_environment >"$venv/.installed$1"; }
