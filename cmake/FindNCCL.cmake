# NCCL: NCCL_INCLUDE_DIR, NCCL_LIBRARY, NCCL_VERSION. No target: the library is loaded at run time.
#
# Looked for in NCCL_ROOT (variable or environment), on the system, and in the wheel nvidia-nccl-cu* of the python3
# on the path, in this order.
set(nccl_hints "")
find_program(NCCL_PYTHON NAMES python3)
if(NCCL_PYTHON AND NOT NCCL_LIBRARY)
  execute_process(
    COMMAND ${NCCL_PYTHON} -c "import importlib.util as u; s = u.find_spec('nvidia.nccl'); print(list(s.submodule_search_locations)[0] if s else '')"
    OUTPUT_VARIABLE nccl_hints OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()

# NCCL_ROOT, the variable or the environment's, is searched first by policy CMP0074.
find_path(NCCL_INCLUDE_DIR NAMES nccl.h PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 PATH_SUFFIXES lib lib64)
if(nccl_hints)
  find_path(NCCL_INCLUDE_DIR NAMES nccl.h PATHS ${nccl_hints}/include NO_DEFAULT_PATH)
  find_library(NCCL_LIBRARY NAMES libnccl.so.2 PATHS ${nccl_hints}/lib NO_DEFAULT_PATH)
endif()

set(NCCL_VERSION "")
if(NCCL_INCLUDE_DIR AND EXISTS "${NCCL_INCLUDE_DIR}/nccl.h")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" line REGEX "^#define NCCL_${part} [0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+" nccl_${part} "${line}")
  endforeach()
  set(NCCL_VERSION "${nccl_MAJOR}.${nccl_MINOR}.${nccl_PATCH}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE "set NCCL_ROOT, or install the wheel nvidia-nccl-cu13 for the python3 on the path")
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY NCCL_PYTHON)
