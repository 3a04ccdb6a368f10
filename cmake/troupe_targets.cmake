# One library a room, and the direction in which rooms may depend on each other.
#
# runtime/core <- runtime <- scheduler <- actors <- examples; collectives sees runtime/core alone.

set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TROUPE_CCACHE})
endif()

# Flags of every target of ours: warnings are errors, and the sanitizers of the preset.
function(troupe_flags target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror
    # Designated initializers that leave defaults out are how options are written here.
    -Wno-missing-field-initializers
    # False alarms of GCC 12's std::string at -O3 (its bug 105651).
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  if(TROUPE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${TROUPE_SANITIZE})
    # GCC reports false positives of these under the sanitizers.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-tsan)
  endif()
endfunction()

# troupe_room(name ALLOWS rooms...): the library of one folder. Linking a room that the architecture does not allow
# below it stops the configuration.
function(troupe_room name)
  cmake_parse_arguments(ROOM "" "" "ALLOWS" ${ARGN})
  add_library(troupe_${name} STATIC)
  target_include_directories(troupe_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  troupe_flags(troupe_${name})
  set_property(TARGET troupe_${name} PROPERTY POSITION_INDEPENDENT_CODE ON)
  set_property(GLOBAL PROPERTY TROUPE_ALLOWS_${name} "${ROOM_ALLOWS}")
  set_property(GLOBAL APPEND PROPERTY TROUPE_ROOMS ${name})
  foreach(below ${ROOM_ALLOWS})
    target_link_libraries(troupe_${name} PUBLIC troupe_${below})
  endforeach()
endfunction()

# troupe_test(name SOURCES files... LINKS targets...): one Catch2 binary a module, known to ctest.
function(troupe_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;LINKS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 300)
  endif()
  add_executable(test_${name} ${TEST_SOURCES})
  troupe_flags(test_${name})
  target_link_libraries(test_${name} PRIVATE ${TEST_LINKS} troupe_test_main)
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT}
    ENVIRONMENT "TROUPE_FLIGHT_FOLDER=${CMAKE_BINARY_DIR}/flight")  # and not the user's
endfunction()
