# Gloo::Gloo, of Debian's libgloo-dev or one with the same interface: later ones connect in another way.
find_path(GLOO_INCLUDE_DIR gloo/allreduce.h)
find_library(GLOO_LIBRARY gloo)
if(GLOO_LIBRARY AND GLOO_INCLUDE_DIR)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_INCLUDES ${GLOO_INCLUDE_DIR})
  set(CMAKE_REQUIRED_LIBRARIES ${GLOO_LIBRARY})
  set(CMAKE_REQUIRED_FLAGS -w)
  check_cxx_source_compiles("
    #include <gloo/rendezvous/context.h>
    #include <gloo/rendezvous/file_store.h>
    #include <gloo/transport/tcp/device.h>
    int main() {
      gloo::rendezvous::FileStore store(\"/\");
      auto device = gloo::transport::tcp::CreateDevice({});
      gloo::rendezvous::Context(0, 1).connectFullMesh(store, device);
    }" GLOO_CONNECTS_AS_EXPECTED)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
  unset(CMAKE_REQUIRED_FLAGS)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Gloo REQUIRED_VARS GLOO_LIBRARY GLOO_INCLUDE_DIR GLOO_CONNECTS_AS_EXPECTED)
if(Gloo_FOUND AND NOT TARGET Gloo::Gloo)
  add_library(Gloo::Gloo UNKNOWN IMPORTED)
  set_target_properties(Gloo::Gloo PROPERTIES IMPORTED_LOCATION "${GLOO_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${GLOO_INCLUDE_DIR}")
endif()
mark_as_advanced(GLOO_INCLUDE_DIR GLOO_LIBRARY)
