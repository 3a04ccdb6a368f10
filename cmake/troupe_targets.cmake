# One library a room, and the direction in which rooms may depend on each other.
#
# runtime/core <- runtime <- scheduler <- actors <- examples; collectives sees runtime/core alone.
# (tests/house_rules holds the includes to it.)

option(TROUPE_QUICK_BUILD "Compile soon rather than well: for a first look (./quickstart)" OFF)
# In every preset, so that ./check finds two files that cannot be one. OFF for tools that read compile_commands.json.
option(TROUPE_UNITY "Compile the files of a folder several at a time" ON)

# Somebody else's project chooses its own flags and launcher.
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_FLAGS_RELEASE "-O2")
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
  if(TROUPE_QUICK_BUILD)
    set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1")  # two thirds of the time; inner loops have their own -O3
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # GCC collects its garbage from 128 MB on: a tenth of the time for 200 MB less of 1.8 GB, at most.
      string(APPEND CMAKE_CXX_FLAGS_RELWITHDEBINFO " --param ggc-min-heapsize=2000000")
    endif()
    # Of binutils: links in a third of the time. Who has chosen a linker keeps it.
    if(NOT CMAKE_LINKER_TYPE AND NOT "${CMAKE_CXX_FLAGS} ${CMAKE_EXE_LINKER_FLAGS} ${CMAKE_SHARED_LINKER_FLAGS}" MATCHES "-fuse-ld=")
      include(CheckLinkerFlag)
      check_linker_flag(CXX -fuse-ld=gold TROUPE_HAS_GOLD)
      if(TROUPE_HAS_GOLD)
        add_link_options(-fuse-ld=gold)
      endif()
    endif()
  endif()
  find_program(TROUPE_CCACHE ccache)
  if(TROUPE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${TROUPE_CCACHE})
  endif()
endif()

# The compiler launcher of files with a precompiled header.
set(TROUPE_PCH_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
if(TROUPE_CCACHE)
  set(TROUPE_PCH_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/ccache_pch.sh ${TROUPE_CCACHE})
endif()

# troupe_precompiled(name rooms... HEADERS headers...): what troupe_use_precompiled gives other targets: these headers, parsed once.
function(troupe_precompiled name)
  cmake_parse_arguments(PCH "" "" "HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${troupe_BINARY_DIR}/${name}.cpp CONTENT "// Owns a precompiled header.\n")
  add_library(${name} OBJECT ${troupe_BINARY_DIR}/${name}.cpp)
  troupe_flags(${name})
  target_link_libraries(${name} PUBLIC ${PCH_UNPARSED_ARGUMENTS})
  set_property(TARGET ${name} PROPERTY CXX_COMPILER_LAUNCHER ${TROUPE_PCH_LAUNCHER})
  target_precompile_headers(${name} PRIVATE ${PCH_HEADERS})
endfunction()

# What most files include: parsed once for all tests, and in quick builds for all libraries. The other builds find a file
# that does not include what it uses.
set(TROUPE_USUAL_HEADERS <algorithm> <array> <atomic> <charconv> <chrono> <condition_variable> <cstring> <deque> <filesystem> <fstream> <functional>
  <future> <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <string> <thread> <tuple> <unordered_map> <utility> <variant> <vector>)

# GCC takes one only where code generation agrees: no other -O, -f or -m. The first one that a target is given stays.
function(troupe_use_precompiled target from)
  get_target_property(has ${target} PRECOMPILE_HEADERS_REUSE_FROM)
  if(TARGET ${from} AND NOT has)
    set_property(TARGET ${target} PROPERTY CXX_COMPILER_LAUNCHER ${TROUPE_PCH_LAUNCHER})
    target_precompile_headers(${target} REUSE_FROM ${from})
    get_target_property(is_pic ${from} POSITION_INDEPENDENT_CODE)
    get_target_property(type ${target} TYPE)
    if(is_pic AND type STREQUAL EXECUTABLE)
      target_compile_options(${target} PRIVATE -fPIC)  # CMake has -fPIE for programs
    endif()
  endif()
endfunction()

# Flags of every target of ours: warnings, and the sanitizers of the preset.
function(troupe_flags target)
  if(TROUPE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
    # Designated initializers that leave defaults out are how options are written here.
    -Wno-missing-field-initializers
    # False alarms of GCC 12's std::string at -O3 (its bug 105651).
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
    # False alarms of GCC 12 from -O2 on, where a variant that holds a string moves into a vector.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<NOT:$<BOOL:${TROUPE_QUICK_BUILD}>>>:-Wno-maybe-uninitialized>
    # Clang says so of every loop of the kernels that a sanitizer keeps from being vectorised.
    $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
  if(TROUPE_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)  # counts which branches an input takes
  endif()
  if(TROUPE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer
      $<IF:$<BOOL:${TROUPE_FUZZ}>,-fno-sanitize-recover=all,-fno-sanitize=null>)  # CAF's headers bind references to null
    target_link_options(${target} PUBLIC -fsanitize=${TROUPE_SANITIZE})
    # GCC reports false positives of these under the sanitizers.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-tsan>)
  endif()
endfunction()

# The files of a folder are compiled up to `size` at a time, in order of their names: what they include is parsed once
# for all of them. A name in an unnamed namespace is therefore its folder's, not its file's alone.
function(troupe_together target size)
  if(TROUPE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL troupe_group_sources ${target} ${size})")  # all sources are named then
  endif()
endfunction()

function(troupe_group_sources target size)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(SORT sources)
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${troupe_SOURCE_DIR})
    cmake_path(REMOVE_FILENAME folder)
    string(MAKE_C_IDENTIFIER "${folder}" group)
    if(NOT DEFINED count_${group})
      set(count_${group} 0)
    endif()
    math(EXPR at "${count_${group}} / ${size}")
    math(EXPR count_${group} "${count_${group}} + 1")
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${group}_${at})
  endforeach()
endfunction()

# What a library's own files are compiled with, whether it takes them as objects or not.
function(troupe_compiled target size)
  troupe_flags(${target})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  troupe_together(${target} ${size})
  # At the folder's end: it may use LibTorch's instead.
  cmake_language(EVAL CODE "cmake_language(DEFER CALL troupe_use_precompiled ${target} troupe_room_pch)")
endfunction()

# What a library of ours is, static or (BUILD_SHARED_LIBS) shared: 0.x promises nothing from one minor release to the next.
function(troupe_library target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON
    VERSION ${troupe_VERSION} SOVERSION ${troupe_VERSION_MAJOR}.${troupe_VERSION_MINOR}
    DEFINE_SYMBOL ""  # a precompiled header serves where macros agree
    LIBRARY_OUTPUT_DIRECTORY ${troupe_BINARY_DIR}/lib INSTALL_RPATH $ORIGIN INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()

# troupe_room(name ALLOWS rooms...): the library of one folder. Linking a room that the architecture does not allow
# below it stops the configuration.
function(troupe_room name)
  cmake_parse_arguments(ROOM "" "" "ALLOWS" ${ARGN})
  add_library(troupe_${name})
  target_include_directories(troupe_${name} PUBLIC $<BUILD_INTERFACE:${troupe_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}> $<INSTALL_INTERFACE:${TROUPE_SOURCE_HEADERS}>)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/include)  # the public headers, <troupe/...>
    target_include_directories(troupe_${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>)
  endif()
  target_compile_features(troupe_${name} PUBLIC cxx_std_20)
  troupe_compiled(troupe_${name} 16)
  troupe_library(troupe_${name})
  set_target_properties(troupe_${name} PROPERTIES EXPORT_NAME room_${name})
  if(NOT PROJECT_IS_TOP_LEVEL)  # our headers do not warn in somebody else's project
    set_property(TARGET troupe_${name} PROPERTY SYSTEM ON)
  endif()
  troupe_install_targets(${TROUPE_COMPONENT_OF_${name}} troupe_${name})
  set_property(GLOBAL PROPERTY TROUPE_ALLOWS_${name} "${ROOM_ALLOWS}")
  set_property(GLOBAL APPEND PROPERTY TROUPE_ROOMS ${name})
  foreach(below ${ROOM_ALLOWS})
    target_link_libraries(troupe_${name} PUBLIC troupe_${below})
  endforeach()
endfunction()

# troupe_add_test(name LABEL fast|check|nightly [SECONDS n] [ALONE] COMMAND command...): what ctest runs.
# LABEL: fast computes and starts no process (every edit), check is what ./check runs as well, nightly what it leaves out.
# SECONDS: what it takes on two cores where that is more than ten: the longest start first, so that none is waited for at
# the end. ALONE: it measures, or fills the machine: nothing runs beside it.
# Its limit is against hangs: ten minutes, fifteen times the first hundred SECONDS, for a machine that is busy or a
# sanitizer, and three times the others. A case's is shorter, and names it (tests/run_catch.cpp).
function(troupe_add_test name)
  cmake_parse_arguments(TEST "ALONE" "LABEL;SECONDS" "COMMAND" ${ARGN})
  if(NOT TEST_LABEL MATCHES "^(fast|check|nightly)$")
    message(FATAL_ERROR "The test ${name} needs a LABEL: fast, check or nightly")
  endif()
  if(NOT TEST_SECONDS)
    set(TEST_SECONDS 1)
  endif()
  math(EXPR case_limit "600 + 15 * ${TEST_SECONDS}")
  if(TEST_SECONDS GREATER 100)
    math(EXPR case_limit "600 + 15 * 100 + 3 * (${TEST_SECONDS} - 100)")
  endif()
  math(EXPR limit "${case_limit} + 60")
  add_test(NAME ${name} COMMAND ${TEST_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS ${TEST_LABEL} COST ${TEST_SECONDS} TIMEOUT ${limit}
    # A flight folder of its own: not the user's, not another test's.
    ENVIRONMENT "TROUPE_CASE_SECONDS=${case_limit};TROUPE_FLIGHT_FOLDER=${troupe_BINARY_DIR}/flight/${name}")
  if(TEST_ALONE)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# troupe_test(name SOURCES files... LINKS targets... LABEL ...): one Catch2 binary a module; the rest as troupe_add_test.
function(troupe_test name)
  cmake_parse_arguments(MODULE "ALONE" "LABEL;SECONDS" "SOURCES;LINKS" ${ARGN})
  add_executable(test_${name} ${MODULE_SOURCES})
  troupe_flags(test_${name})
  troupe_together(test_${name} 6)
  # A test's own types in templates of ours: for GCC a file that another includes is a header.
  target_compile_options(test_${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  target_link_libraries(test_${name} PRIVATE ${MODULE_LINKS} troupe_test_main)
  # At the folder's end: it may use LibTorch's instead.
  cmake_language(EVAL CODE "cmake_language(DEFER CALL troupe_use_precompiled test_${name} troupe_test_pch)")
  set(alone "")
  if(MODULE_ALONE)
    set(alone ALONE)
  endif()
  troupe_add_test(${name} LABEL "${MODULE_LABEL}" SECONDS "${MODULE_SECONDS}" ${alone}
    COMMAND test_${name})
endfunction()
