# What ./check and ./quickstart share: flags, the system's packages, LibTorch, configuring. To be sourced by bash in the
# root of the repository.
#
# Sets PRESET, TORCH, INSTALL, ALL and REST (what stood after --) from the flags; BUILD_DIR once configured. Before:
# TESTS=yes if the backends on libraries are tested, DEFAULT_PRESET for a preset that is not release.

# Of the backends gloo and mpi, which ./check tests, and of the benchmarks' peers; elsewhere optional. With openssl a test
# makes itself a certificate.
LIBRARY_PACKAGES="libgloo-dev libopenmpi-dev openmpi-bin openssl"
# Every package of Debian 12 that the build needs, LibTorch apart.
PACKAGES="g++ cmake ninja-build ccache pkg-config libcaf-dev libzmq3-dev cppzmq-dev catch2 libsodium-dev libssl-dev libxxhash-dev
  libsqlite3-dev zlib1g-dev nlohmann-json3-dev libcli11-dev libboost1.81-dev libsimdjson-dev libtomlplusplus-dev curl"
SYSTEM_TORCH_PACKAGES="libtorch-dev libopenblas0"
WHEEL_TORCH_PACKAGES="python3 python3-venv"
WHEEL_VERSION=2.13.0
# Of the preset fuzz, which builds nothing that needs LibTorch.
FUZZ_PACKAGES="clang libclang-rt-14-dev"

TESTS=${TESTS:-no}

say() { printf '==> %s\n' "$*"; }
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit 1
}

bad_flag() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  usage >&2
  exit 2
}

# parse_flags ALLOWED ARGS...: ALLOWED names the flags of this script.
parse_flags() {
  local allowed=" $1 " flag
  shift
  PRESET=${DEFAULT_PRESET:-release} TORCH=auto INSTALL=yes ALL=no REST=()
  while [ $# -gt 0 ]; do
    flag=$1
    case "$allowed" in *" ${flag%%=*} "*) ;; *) bad_flag "unknown flag '$flag'" ;; esac
    case "$flag" in
      --torch | --preset) [ $# -ge 2 ] || bad_flag "$flag needs a value" ;;
    esac
    case "$flag" in
      --help) usage && exit 0 ;;
      --no-install) INSTALL=no ;;
      --all) ALL=yes ;;
      --torch) TORCH=$2 && shift ;;
      --preset) PRESET=$2 && shift ;;
      --) shift && REST=("$@") && break ;;
      *) bad_flag "write '${flag%%=*} VALUE', with a space" ;;
    esac
    shift
  done
  case "$TORCH" in auto | system | wheel) ;; *) bad_flag "--torch is system or wheel, not '$TORCH'" ;; esac
  case "$PRESET" in check | release | debug | asan | tsan | fuzz) ;;
    *) bad_flag "--preset is check, release, debug, asan, tsan or fuzz, not '$PRESET'" ;;
  esac
}

# Whether CMake will find a LibTorch without the system's package (same order as cmake/troupe_torch.cmake).
has_own_torch() {
  [ -n "${Torch_DIR:-}${CMAKE_PREFIX_PATH:-}" ] ||
    python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null
}

needed_packages() {
  echo "$PACKAGES"
  [ "$TESTS" = no ] || [ "$PRESET" = fuzz ] || echo "$LIBRARY_PACKAGES"
  [ "$PRESET" != fuzz ] || { echo "$FUZZ_PACKAGES" && return; }
  case "$TORCH" in
    wheel) echo "$WHEEL_TORCH_PACKAGES" ;;
    system) echo "$SYSTEM_TORCH_PACKAGES" ;;
    auto) has_own_torch || echo "$SYSTEM_TORCH_PACKAGES" ;;
  esac
}

# The needed packages that are not installed, on one line.
missing_packages() {
  local package missing=()
  for package in $(needed_packages); do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  echo "${missing[*]}"
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "This is no Debian: install by hand what stands for" $(needed_packages)
    [ "$INSTALL" = yes ] || exit 1
    return
  fi
  local missing sudo=""
  missing=$(missing_packages)
  if [ "$INSTALL" = no ]; then
    [ -n "$missing" ] || { say "Nothing is missing."; exit 0; }
    say "Missing: $missing"
    say "Install with: apt-get install --no-install-recommends $missing"
    [ "$TESTS" = yes ] || say "Optional, for the backends gloo and mpi: $LIBRARY_PACKAGES"
    exit 1
  fi
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "missing: $missing. Run this as root, or install sudo, or install them yourself."
    sudo=sudo
  fi
  say "Installing from the system's packages: $missing"
  $sudo apt-get update -qq || fail "apt-get update failed: see above"
  # Several hundred packages come with them: their lines are shown if it fails. Another apt is given two minutes to end.
  mkdir -p build
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o DPkg::Lock::Timeout=120 --no-install-recommends \
    $missing >build/packages.log 2>&1 || { cat build/packages.log >&2 && fail "apt-get could not install: $missing"; }
}

# wheel_says EXPRESSION: of Python, without importing torch, which takes seconds.
wheel_says() {
  .venv/bin/python -c "import importlib.metadata as m, importlib.util as u; print($1)" 2>/dev/null
}

# A virtual environment with the wheel, once. For a small download let PIP_EXTRA_INDEX_URL name PyTorch's CPU index.
install_wheel() {
  [ "$(wheel_says "m.version('torch').split('+')[0]")" != "$WHEEL_VERSION" ] || return 0
  say "Installing torch==$WHEEL_VERSION into .venv"
  python3 -m venv .venv && .venv/bin/pip install --quiet "torch==$WHEEL_VERSION" ||
    fail "could not install torch==$WHEEL_VERSION into .venv"
}

configure() {
  BUILD_DIR=build/$PRESET
  local arguments=()
  [ "$ALL" = no ] || arguments+=(-DTROUPE_BUILD_ALL=ON)
  case "$TORCH" in
    wheel)
      install_wheel
      BUILD_DIR=build/$PRESET-wheel
      arguments+=("-DCMAKE_PREFIX_PATH=$(wheel_says "u.find_spec('torch').submodule_search_locations[0]")/share/cmake")
      ;;
    system) arguments+=("-DTorch_DIR=$(dirname "$(dpkg -L libtorch-dev | grep '/TorchConfig.cmake$')")") ;;
  esac
  say "Configuring $BUILD_DIR"
  cmake --preset "$PRESET" -B "$BUILD_DIR" "${arguments[@]}" >"$BUILD_DIR.log" 2>&1 ||
    { cat "$BUILD_DIR.log" >&2 && fail "CMake failed: see above"; }
  grep -hE 'LibTorch|^-- (NCCL backend|Gloo|MPI|Left out):' "$BUILD_DIR.log" || true
}

# All cores, but no more jobs than GiB of memory. (Files that include LibTorch take more: CMake bounds those by itself.)
build_jobs() {
  local cores gib
  cores=$(nproc)
  gib=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  [ "$gib" -ge 1 ] || gib=1
  [ "$cores" -lt "$gib" ] && echo "$cores" || echo "$gib"
}

# build TARGETS...: all without any.
build() {
  say "Building $BUILD_DIR"
  cmake --build "$BUILD_DIR" --parallel "$(build_jobs)" ${1:+--target "$@"} || fail "the build failed: see above"
}

# minutes SECONDS: 754 is 12 min 34 s.
minutes() { echo "$(($1 / 60)) min $(($1 % 60)) s"; }

# The ten files of the build that took longest, with their seconds (a file that did not change keeps its old ones).
slowest_files() {
  awk -v here="$PWD/$BUILD_DIR/" '!/^#/ { sub(here, "", $4); seconds[$4] = ($2 - $1) / 1000 }
    END { for (f in seconds) printf "%7.1f s  %s\n", seconds[f], f }' "$BUILD_DIR/.ninja_log" | sort -rn | sed -n 1,10p
}

# (sed reads to the end: head would end sort by SIGPIPE, and the script with it.)
# slowest_modules LOG: the ten modules that took longest in what ctest printed.
slowest_modules() {
  sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*/\2 \1/p' "$1" | sort -rn | sed -n 1,10p |
    awk '{ printf "%7.1f s  %s\n", $1, $2 }'
}

prepare() {
  install_packages
  mkdir -p build
  configure
}
