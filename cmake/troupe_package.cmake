# What other projects link, and how they find it: troupe::collectives, troupe::ddp, troupe::runtime, troupe::train, each a component
# of find_package(troupe) (train has troupe::tune and troupe::serve, too), and targets of the same names with
# add_subdirectory and FetchContent.
#
# A component is one or more rooms and is installed by itself, so `COMPONENTS collectives` asks for no CAF, ZeroMQ or
# LibTorch. Headers keep their paths from the root of the repository, below include/troupe-src; what users include is
# include/troupe.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(TROUPE_CMAKE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)
set(TROUPE_SOURCE_HEADERS ${CMAKE_INSTALL_INCLUDEDIR}/troupe-src)

set(TROUPE_COMPONENT_OF_core core)
set(TROUPE_COMPONENT_OF_collectives collectives)
set(TROUPE_COMPONENT_OF_collectives_gloo gloo)
set(TROUPE_COMPONENT_OF_collectives_mpi mpi)
set(TROUPE_COMPONENT_OF_runtime runtime)
set(TROUPE_COMPONENT_OF_scheduler runtime)
set(TROUPE_COMPONENT_OF_ddp ddp)
set(TROUPE_COMPONENT_OF_train train)
set(TROUPE_COMPONENT_OF_actors train)
set(TROUPE_COMPONENT_OF_tune train)
set(TROUPE_COMPONENT_OF_serve train)

# Installs `targets` as part of `component`.
function(troupe_install_targets component)
  if(TROUPE_INSTALL)
    install(TARGETS ${ARGN} EXPORT troupe_${component}
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}
      LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component})
  endif()
endfunction()

# Installs the headers of the folders given, and what their include/ has: no file is of two components, since two packages
# that have it cannot be installed together. Folders that are components of their own are left out of those around them.
function(troupe_install_headers component)
  foreach(folder ${ARGN})
    get_filename_component(parent ${folder} DIRECTORY)
    set(others "")
    if(NOT parent)
      set(others REGEX "/(runtime/core|actors/ddp)$" EXCLUDE)
    endif()
    install(DIRECTORY ${troupe_SOURCE_DIR}/${folder} DESTINATION ${TROUPE_SOURCE_HEADERS}/${parent}
      COMPONENT ${component} FILES_MATCHING PATTERN "*.hpp" PATTERN "include" EXCLUDE ${others})
    if(EXISTS ${troupe_SOURCE_DIR}/${folder}/include AND NOT folder STREQUAL runtime)  # core has those
      install(DIRECTORY ${troupe_SOURCE_DIR}/${folder}/include/troupe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT ${component} FILES_MATCHING PATTERN "*.hpp")
    endif()
  endforeach()
endfunction()

# troupe_product(name room): troupe::name, what users link. It is the room with all that is below it.
function(troupe_product name room)
  add_library(troupe_use_${name} INTERFACE)
  target_link_libraries(troupe_use_${name} INTERFACE troupe_${room})
  set_property(TARGET troupe_use_${name} PROPERTY EXPORT_NAME ${name})
  add_library(troupe::${name} ALIAS troupe_use_${name})
  troupe_install_targets(${TROUPE_COMPONENT_OF_${room}} troupe_use_${name})
endfunction()

# The packages that the exported targets of a room link: those of its link interface with a namespace.
function(troupe_packages_of out room)
  get_target_property(links troupe_${room} INTERFACE_LINK_LIBRARIES)
  set(packages "")
  foreach(link ${links})
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" link "${link}")
    if(link MATCHES "^[A-Za-z0-9_]+::" AND NOT link MATCHES "^troupe::")
      string(REGEX REPLACE "::.*" "" package ${link})
      string(REGEX REPLACE "^CUDA$" "CUDAToolkit" package ${package})
      string(REGEX REPLACE "^SQLite$" "SQLite3" package ${package})
      list(APPEND packages ${package})
    endif()
  endforeach()
  set(${out} ${packages} PARENT_SCOPE)
endfunction()

# Call once, after all rooms.
function(troupe_products)
  set(components core collectives gloo mpi)
  troupe_product(collectives collectives)
  troupe_product(collectives_gloo collectives_gloo)
  troupe_product(collectives_mpi collectives_mpi)
  if(TARGET troupe_scheduler)
    troupe_product(runtime scheduler)
    list(APPEND components runtime)
  endif()
  if(TARGET troupe_actors)
    troupe_product(ddp ddp)
    troupe_product(train actors)
    troupe_product(tune tune)
    troupe_product(serve serve)
    list(APPEND components ddp train)
  endif()
  if(NOT TROUPE_INSTALL)
    return()
  endif()

  troupe_install_headers(core runtime/core)
  install(DIRECTORY ${troupe_SOURCE_DIR}/runtime/include/troupe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT core)
  troupe_install_headers(collectives collectives)
  if(TARGET troupe_scheduler)
    troupe_install_headers(runtime runtime scheduler)
  endif()
  if(TARGET troupe_actors)
    troupe_install_headers(ddp actors/ddp)
    troupe_install_headers(train actors)
  endif()

  set(TROUPE_DEPENDENCIES "")
  foreach(room core collectives collectives_gloo collectives_mpi runtime scheduler ddp train actors tune serve)
    if(TARGET troupe_${room})
      set(component ${TROUPE_COMPONENT_OF_${room}})
      troupe_packages_of(packages ${room})
      list(APPEND needs_${component} ${packages})
    endif()
  endforeach()
  foreach(component ${components})
    list(REMOVE_DUPLICATES needs_${component})
    string(APPEND TROUPE_DEPENDENCIES "set(troupe_needs_${component} \"${needs_${component}}\")\n")
    install(EXPORT troupe_${component} NAMESPACE troupe:: FILE troupe_${component}.cmake COMPONENT ${component}
      DESTINATION ${TROUPE_CMAKE_FOLDER})
  endforeach()
  configure_package_config_file(${troupe_SOURCE_DIR}/cmake/troupeConfig.cmake.in ${troupe_BINARY_DIR}/troupeConfig.cmake
    INSTALL_DESTINATION ${TROUPE_CMAKE_FOLDER} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  # 0.x promises nothing from one minor release to the next.
  write_basic_package_version_file(${troupe_BINARY_DIR}/troupeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${troupe_BINARY_DIR}/troupeConfig.cmake ${troupe_BINARY_DIR}/troupeConfigVersion.cmake
    ${troupe_SOURCE_DIR}/cmake/troupe_find_torch.cmake
    DESTINATION ${TROUPE_CMAKE_FOLDER} COMPONENT core)
  install(DIRECTORY ${troupe_SOURCE_DIR}/cmake/ DESTINATION ${TROUPE_CMAKE_FOLDER} COMPONENT core
    FILES_MATCHING PATTERN "Find*.cmake")
  install(FILES ${troupe_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT core)
  if(TARGET troupe_cli)
    list(APPEND components cli)
  endif()
  if(PROJECT_IS_TOP_LEVEL)
    include(troupe_debian)
    troupe_debian_packages(${components})
  endif()
endfunction()
