# libzmq with its C++ header (cppzmq): ZeroMQ::ZeroMQ, ZeroMQ_VERSION.
find_path(ZeroMQ_INCLUDE_DIR NAMES zmq.h)
find_path(CPPZMQ_INCLUDE_DIR NAMES zmq.hpp)
find_library(ZeroMQ_LIBRARY NAMES zmq)

set(ZeroMQ_VERSION "")
if(ZeroMQ_INCLUDE_DIR)
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${ZeroMQ_INCLUDE_DIR}/zmq.h" zmq_version_line REGEX "^#define ZMQ_VERSION_${part} [0-9]+")
    string(REGEX MATCH "[0-9]+$" zmq_version_${part} "${zmq_version_line}")
  endforeach()
  set(ZeroMQ_VERSION "${zmq_version_MAJOR}.${zmq_version_MINOR}.${zmq_version_PATCH}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ZeroMQ REQUIRED_VARS ZeroMQ_LIBRARY ZeroMQ_INCLUDE_DIR CPPZMQ_INCLUDE_DIR
  VERSION_VAR ZeroMQ_VERSION REASON_FAILURE_MESSAGE "on Debian: apt-get install libzmq3-dev cppzmq-dev")

if(ZeroMQ_FOUND AND NOT TARGET ZeroMQ::ZeroMQ)
  add_library(ZeroMQ::ZeroMQ UNKNOWN IMPORTED)
  set_target_properties(ZeroMQ::ZeroMQ PROPERTIES
    IMPORTED_LOCATION "${ZeroMQ_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${ZeroMQ_INCLUDE_DIR};${CPPZMQ_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${ZeroMQ_INCLUDE_DIR};${CPPZMQ_INCLUDE_DIR}")
endif()
mark_as_advanced(ZeroMQ_INCLUDE_DIR CPPZMQ_INCLUDE_DIR ZeroMQ_LIBRARY)
