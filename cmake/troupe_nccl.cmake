# TROUPE_NCCL=AUTO|ON|OFF: the NCCL backend's calls of NCCL and CUDA. AUTO: where nvcc and NCCL (FindNCCL) are.
# Sets TROUPE_HAS_NCCL, and prints one line. To be included where the sources are: enable_language is for a folder and
# those below it.
set(TROUPE_NCCL AUTO CACHE STRING "The NCCL backend: AUTO (where nvcc and NCCL are found), ON or OFF")
set_property(CACHE TROUPE_NCCL PROPERTY STRINGS AUTO ON OFF)

set(TROUPE_HAS_NCCL OFF)
set(troupe_nccl_missing "TROUPE_NCCL is OFF")
if(NOT TROUPE_NCCL STREQUAL "OFF")
  find_program(TROUPE_NVCC nvcc HINTS $ENV{CUDACXX} $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  find_package(NCCL 2.19 QUIET)
  set(troupe_nccl_missing "")
  if(NOT TROUPE_NVCC)
    list(APPEND troupe_nccl_missing "nvcc")
  endif()
  if(NOT NCCL_FOUND)
    list(APPEND troupe_nccl_missing "NCCL (NCCL_ROOT, or pip's nvidia-nccl-cu13)")
  endif()
  list(JOIN troupe_nccl_missing " and " troupe_nccl_missing)
  if(NOT troupe_nccl_missing)
    # sm_80 and sm_90 as code, and the latter as PTX for what came after.
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "80-real;90")
    endif()
    if(NOT DEFINED CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER ${TROUPE_NVCC})
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(TROUPE_HAS_NCCL ON)
    message(STATUS "NCCL backend: NCCL ${NCCL_VERSION}, CUDA ${CMAKE_CUDA_COMPILER_VERSION}")
  elseif(TROUPE_NCCL STREQUAL "ON")
    message(FATAL_ERROR "TROUPE_NCCL is ON, but missing: ${troupe_nccl_missing}")
  endif()
endif()
if(NOT TROUPE_HAS_NCCL)
  message(STATUS "NCCL backend: without GPU (missing: ${troupe_nccl_missing}); its tests run over a double")
endif()

# Adds the real tables and the kernel to `target`; `folder` is collectives/nccl. REQUIRES: TROUPE_HAS_NCCL.
function(troupe_nccl_sources target folder)
  # By itself, since the warnings of the other sources are not nvcc's to know.
  add_library(troupe_nccl_kernels OBJECT ${folder}/tree_fold.cu)
  target_include_directories(troupe_nccl_kernels PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_features(troupe_nccl_kernels PRIVATE cuda_std_20)
  # Contracted to a fused multiply-add, two roundings would be one, and the bits others than the CPU's.
  target_compile_options(troupe_nccl_kernels PRIVATE -O3 -fmad=false -Xcompiler=-Wall,-Werror)
  set_target_properties(troupe_nccl_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_EXTENSIONS OFF)
  target_sources(${target} PRIVATE ${folder}/real_api.cpp $<TARGET_OBJECTS:troupe_nccl_kernels>)
  set_source_files_properties(${folder}/real_api.cpp TARGET_DIRECTORY ${target} PROPERTIES
    COMPILE_DEFINITIONS "TROUPE_NCCL_LIBRARY=\"${NCCL_LIBRARY}\""
    COMPILE_OPTIONS "-isystem;${NCCL_INCLUDE_DIR};-isystem;${CUDAToolkit_INCLUDE_DIRS}")
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
