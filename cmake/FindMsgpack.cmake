# msgpack for C++, headers alone and without Boost: Msgpack::Msgpack. Debian's own config asks for Boost.
find_path(Msgpack_INCLUDE_DIR NAMES msgpack.hpp)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Msgpack REQUIRED_VARS Msgpack_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian: apt-get install libmsgpack-cxx-dev")

if(Msgpack_FOUND AND NOT TARGET Msgpack::Msgpack)
  add_library(Msgpack::Msgpack INTERFACE IMPORTED)
  set_target_properties(Msgpack::Msgpack PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${Msgpack_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${Msgpack_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS MSGPACK_NO_BOOST)
endif()
mark_as_advanced(Msgpack_INCLUDE_DIR)
