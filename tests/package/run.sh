#!/usr/bin/env bash
# run.sh installed|train|examples|source|built BUILD_FOLDER WORK_FOLDER: builds projects that use troupe, and runs them.
set -euo pipefail
way=$1 build=$2 work=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# Without NCCL: the kernels would take a minute of nvcc for each project (package_installed has them, where they are).
flags=(-G Ninja -DCMAKE_BUILD_TYPE=None -DTROUPE_NCCL=OFF "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror")
command -v ccache >/dev/null && flags+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

fail() { echo "package: $*" >&2 && exit 1; }

# configure SOURCE BUILD CMAKE_FLAGS...
configure() {
  local source=$1 folder=$2
  shift 2
  cmake -S "$source" -B "$folder" "${flags[@]}" "$@" >"$folder.log" 2>&1 || { cat "$folder.log" && fail "cannot configure $source"; }
}
# consume SOURCE BUILD CMAKE_FLAGS...: configures and builds.
consume() {
  local source=$1 folder=$2
  configure "$@"
  cmake --build "$folder" >"$folder.log" 2>&1 || { cat "$folder.log" && fail "cannot build $source"; }
}
# compiles WAY CMAKE_FLAGS...: a project that takes troupe's tree in that way; its own file, with what the target brings along.
compiles() {
  local way=$1 project=$work/$1.project
  shift
  mkdir -p "$project/third_party"
  ln -sfn "$root" "$project/third_party/troupe"
  cp "$here/add_subdirectory/main.cpp" "$here/$way/CMakeLists.txt" "$project/"
  configure "$project" "$work/$way" "$@"
  cmake --build "$work/$way" --target CMakeFiles/my_job.dir/main.cpp.o >"$work/$way.log" 2>&1 ||
    { cat "$work/$way.log" && fail "cannot compile a file that uses troupe::collectives"; }
  echo "$way: compiled"
}
# runs FOLDER EXPECTED
runs() {
  local said
  said=$(cd "$1" && timeout 120 ./my_job) || fail "$1/my_job failed: $said"
  [ "$said" = "$2" ] || fail "$1/my_job said '$said', not '$2'"
  echo "$1: $said"
}

# torch: where the build's LibTorch is, for a project that needs the same.
torch() { sed -n 's/^\(Torch_DIR\|CMAKE_PREFIX_PATH\):[A-Z]*=//p' "$build/CMakeCache.txt" | sed 's,/Torch$,,' | paste -sd';'; }
# example NAME: built as a user's project, in a folder of its own.
example() {
  rm -rf "$work/$1.source"
  cp -r "$root/examples/$1" "$work/$1.source"
  consume "$work/$1.source" "$work/$1" "-DCMAKE_PREFIX_PATH=$work/prefix;$(torch)" "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"
  echo "$1: built"
}

mkdir -p "$work"
case $way in
  installed)
    rm -rf "$work/staged" "$work/prefix" "$work/collectives_alone"
    for component in core collectives runtime; do
      cmake --install "$build" --prefix "$work/staged" --component "$component" >"$work/install.log" ||
        fail "cannot install $component: see $work/install.log"
    done
    mv "$work/staged" "$work/prefix"  # an installed tree can be moved
    consume "$here/find_package" "$work/find_package" "-DCMAKE_PREFIX_PATH=$work/prefix"
    runs "$work/find_package" "sum 435"

    # The collectives alone: from the same tree, on a machine without CAF and ZeroMQ.
    mkdir -p "$work/collectives_alone/source"
    sed -e 's/COMPONENTS .*/COMPONENTS collectives)/' -e 's/troupe::runtime //' "$here/find_package/CMakeLists.txt" \
      >"$work/collectives_alone/source/CMakeLists.txt"
    cp "$here/add_subdirectory/main.cpp" "$work/collectives_alone/source/"
    consume "$work/collectives_alone/source" "$work/collectives_alone/build" "-DCMAKE_PREFIX_PATH=$work/prefix" \
      -DCMAKE_DISABLE_FIND_PACKAGE_CAF=ON -DCMAKE_DISABLE_FIND_PACKAGE_ZeroMQ=ON
    runs "$work/collectives_alone/build" "sum 435"

    # The typed forms, in programs of three levels of optimisation.
    consume "$here/typed_forms" "$work/typed_forms" "-DCMAKE_PREFIX_PATH=$work/prefix"
    for level in 0 1 2; do runs "$work/typed_forms/O$level" "right"; done

    # DistributedDataParallel by hand: the collectives and LibTorch, where the build has it.
    if [ -e "$build/actors/ddp/libtroupe_ddp.a" ]; then
      cmake --install "$build" --prefix "$work/prefix" --component ddp >"$work/install.log" ||
        fail "cannot install ddp: see $work/install.log"
      consume "$here/ddp" "$work/ddp" "-DCMAKE_PREFIX_PATH=$work/prefix;$(torch)" -DCMAKE_DISABLE_FIND_PACKAGE_CAF=ON \
        -DCMAKE_DISABLE_FIND_PACKAGE_ZeroMQ=ON
      runs "$work/ddp" "sum 435"
    fi

    # What is not installed is said by name.
    sed -i 's/COMPONENTS collectives/COMPONENTS train/' "$work/collectives_alone/source/CMakeLists.txt"
    if cmake -S "$work/collectives_alone/source" -B "$work/collectives_alone/train" "${flags[@]}" \
      "-DCMAKE_PREFIX_PATH=$work/prefix" >"$work/collectives_alone/train.log" 2>&1; then
      fail "a component that is not installed was found"
    fi
    grep -q 'component train is not installed' "$work/collectives_alone/train.log" ||
      { cat "$work/collectives_alone/train.log" && fail "the error does not name the component"; }
    ;;
  train | examples)
    rm -rf "$work/prefix"
    for component in core collectives gloo mpi runtime ddp train; do
      cmake --install "$build" --prefix "$work/prefix" --component "$component" >"$work/install.log" ||
        fail "cannot install $component: see $work/install.log"
    done
    if [ "$way" = train ]; then
      example mnist
      said=$(timeout 120 "$work/mnist/mnist" --samples 200 --epochs 1 --trainers 2) || fail "mnist failed: $said"
      [[ "$said" == *"state sha256 "* ]] || fail "mnist said: $said"
    else
      for project in "$root"/examples/*/CMakeLists.txt; do example "$(basename "$(dirname "$project")")"; done
    fi
    ;;
  source)
    fetched=-DFETCHCONTENT_SOURCE_DIR_TROUPE=$root
    compiles add_subdirectory
    compiles fetch_content "$fetched"

    # The rest is configured: its packages and targets are found from the project's own folder, too.
    project=$work/runtime.project
    mkdir -p "$project"
    cp "$here/add_subdirectory/main.cpp" "$project/"
    sed 's/^set(TROUPE_COLLECTIVES_ONLY ON).*/set(TROUPE_TRAIN OFF)/; s/troupe::collectives/troupe::runtime/' \
      "$here/fetch_content/CMakeLists.txt" >"$project/CMakeLists.txt"
    configure "$project" "$work/runtime" "$fetched"
    ;;
  built)  # the libraries, too, by what `source` has configured
    for way in add_subdirectory fetch_content; do
      cmake --build "$work/$way" >"$work/$way.log" 2>&1 || { cat "$work/$way.log" && fail "cannot build by $way"; }
      runs "$work/$way" "sum 435"
    done
    ;;
  *) fail "unknown way $way" ;;
esac
