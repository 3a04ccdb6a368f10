# xxHash: xxHash::xxHash, xxHash_VERSION.
find_path(xxHash_INCLUDE_DIR NAMES xxhash.h)
find_library(xxHash_LIBRARY NAMES xxhash)

set(xxHash_VERSION "")
if(xxHash_INCLUDE_DIR)
  file(STRINGS "${xxHash_INCLUDE_DIR}/xxhash.h" xxhash_version_lines REGEX "^#define XXH_VERSION_[A-Z]+ +[0-9]+")
  string(REGEX REPLACE "[^0-9;]" "" xxHash_VERSION "${xxhash_version_lines}")
  string(REPLACE ";" "." xxHash_VERSION "${xxHash_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(xxHash REQUIRED_VARS xxHash_LIBRARY xxHash_INCLUDE_DIR
  VERSION_VAR xxHash_VERSION REASON_FAILURE_MESSAGE "on Debian: apt-get install libxxhash-dev")

if(xxHash_FOUND AND NOT TARGET xxHash::xxHash)
  add_library(xxHash::xxHash UNKNOWN IMPORTED)
  set_target_properties(xxHash::xxHash PROPERTIES
    IMPORTED_LOCATION "${xxHash_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${xxHash_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${xxHash_INCLUDE_DIR}")
endif()
mark_as_advanced(xxHash_INCLUDE_DIR xxHash_LIBRARY)
