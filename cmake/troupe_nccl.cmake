# TROUPE_NCCL=AUTO|ON|OFF: the NCCL backend's calls of NCCL and CUDA. AUTO: where nvcc and NCCL (FindNCCL) are.
# Sets TROUPE_HAS_NCCL, and prints one line.
#
# nvcc compiles one file, by a command of our own: CMake's CUDA language would add seconds to every configuration,
# and CMake 3.25 does not know how to ask CUDA 13 for C++20.
set(TROUPE_NCCL AUTO CACHE STRING "The NCCL backend: AUTO (where nvcc and NCCL are found), ON or OFF")
set_property(CACHE TROUPE_NCCL PROPERTY STRINGS AUTO ON OFF)
set(TROUPE_CUDA_ARCHITECTURES "80;90" CACHE STRING "Compute capabilities, ascending; newer GPUs take the last one's PTX")

set(TROUPE_HAS_NCCL OFF)
set(troupe_nccl_missing "")
if(TROUPE_NCCL STREQUAL "OFF")
  set(troupe_nccl_missing "TROUPE_NCCL is OFF")
else()
  find_package(CUDAToolkit 12.0 QUIET)
  find_package(NCCL 2.19 QUIET)
  if(NOT CUDAToolkit_FOUND OR NOT EXISTS "${CUDAToolkit_NVCC_EXECUTABLE}" OR NOT TARGET CUDA::cudart_static)
    list(APPEND troupe_nccl_missing "nvcc 12 or later")
  endif()
  if(NOT NCCL_FOUND)
    list(APPEND troupe_nccl_missing "NCCL 2.19 or later (NCCL_ROOT, or pip's nvidia-nccl-cu13)")
  endif()
endif()
if(NOT troupe_nccl_missing)
  set(TROUPE_HAS_NCCL ON)
  message(STATUS "NCCL backend: with NCCL ${NCCL_VERSION} and CUDA ${CUDAToolkit_VERSION}")
else()
  list(JOIN troupe_nccl_missing " and " troupe_nccl_missing)
  if(TROUPE_NCCL STREQUAL "ON")
    message(FATAL_ERROR "TROUPE_NCCL is ON, but missing: ${troupe_nccl_missing}")
  endif()
  message(STATUS "NCCL backend: off (missing: ${troupe_nccl_missing}); its tests run over a double")
endif()

# Adds the real tables and the kernel in `folder`, which is collectives/nccl, to `target`. REQUIRES: TROUPE_HAS_NCCL.
function(troupe_nccl_sources target folder)
  set(code "")
  foreach(arch ${TROUPE_CUDA_ARCHITECTURES})
    list(APPEND code "-gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  list(GET TROUPE_CUDA_ARCHITECTURES -1 last)
  list(APPEND code "-gencode=arch=compute_${last},code=compute_${last}")
  set(object ${CMAKE_CURRENT_BINARY_DIR}/tree_fold.cu.o)
  add_custom_command(
    OUTPUT ${object}
    # Contracted to a fused multiply-add, two roundings would be one, and the bits others than the CPU's.
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 -fmad=false ${code} -Xcompiler=-fPIC,-Wall -Werror=all-warnings
      -I${folder}/../.. -MD -MF ${object}.d -c ${folder}/tree_fold.cu -o ${object}
    DEPENDS ${folder}/tree_fold.cu DEPFILE ${object}.d
    COMMENT "Compiling tree_fold.cu" VERBATIM)
  # Where the target is, a folder above, the file is known by these properties and made by that other target.
  add_custom_target(troupe_nccl_kernels DEPENDS ${object})
  add_dependencies(${target} troupe_nccl_kernels)
  set_source_files_properties(${object} TARGET_DIRECTORY ${target} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(${target} PRIVATE ${folder}/real_api.cpp ${object})
  set_source_files_properties(${folder}/real_api.cpp TARGET_DIRECTORY ${target} PROPERTIES
    COMPILE_DEFINITIONS "TROUPE_NCCL_LIBRARY=\"${NCCL_LIBRARY}\""
    COMPILE_OPTIONS "-isystem;${NCCL_INCLUDE_DIR}")
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
