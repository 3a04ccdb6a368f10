# Finds LibTorch and defines, for this project and for those that find the installed one,
#   troupe::torch  an imported target: includes and the three libraries that a program needs, and of a LibTorch for
#                  CUDA libtorch_cuda as well
#   TROUPE_TORCH_VERSION, TROUPE_TORCH_PREFIX, TROUPE_TORCH_HAS_CUDA
#
# Order: Torch_DIR or CMAKE_PREFIX_PATH, the torch package of the python3 on the path, the system's. LibTorch's own
# TorchConfig.cmake is read but not run: it searches for protobuf, MKL and CUDA, warns on the way and adds flags. Nothing
# here includes a header of CUDA, so a LibTorch for CUDA needs no toolkit to compile and link with.

set(Torch_DIR "" CACHE PATH "The folder with TorchConfig.cmake (empty: search)")

# The folder of TorchConfig.cmake under one of `prefixes`, or "".
function(troupe_torch_config_below out)
  set(${out} "" PARENT_SCOPE)
  foreach(prefix ${ARGN})
    foreach(suffix Torch share/cmake/Torch lib/cmake/Torch lib/${CMAKE_LIBRARY_ARCHITECTURE}/cmake/Torch)
      if(EXISTS ${prefix}/${suffix}/TorchConfig.cmake)
        set(${out} ${prefix}/${suffix} PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
endfunction()

function(troupe_find_torch out_config out_origin)
  if(Torch_DIR)
    if(NOT EXISTS ${Torch_DIR}/TorchConfig.cmake)
      message(FATAL_ERROR "Torch_DIR=${Torch_DIR} has no TorchConfig.cmake. Give the folder that has it, or unset it.")
    endif()
    set(found ${Torch_DIR})
    set(origin "Torch_DIR")
  endif()
  if(NOT found)
    string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
    troupe_torch_config_below(found ${CMAKE_PREFIX_PATH} ${from_environment})
    set(origin "CMAKE_PREFIX_PATH")
  endif()
  if(NOT found)
    find_program(TROUPE_PYTHON3 python3)
    if(TROUPE_PYTHON3)
      # find_spec tells the folder without importing torch, which takes seconds.
      execute_process(
        COMMAND ${TROUPE_PYTHON3} -c
          "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(package)
        troupe_torch_config_below(found ${package})
        set(origin "the torch package of ${TROUPE_PYTHON3}")
      endif()
    endif()
  endif()
  if(NOT found)
    troupe_torch_config_below(found /usr /usr/local)
    set(origin "the system")
  endif()
  if(NOT found)
    message(FATAL_ERROR "LibTorch is missing. Install libtorch-dev and libopenblas0, or give "
      "-DCMAKE_PREFIX_PATH=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)').")
  endif()
  set(${out_config} ${found} PARENT_SCOPE)
  set(${out_origin} ${origin} PARENT_SCOPE)
endfunction()

troupe_find_torch(config origin)
file(READ ${config}/TorchConfig.cmake text)
if(text MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR "The LibTorch in ${config} was built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), which does "
    "not link with this compiler's std::string. Use torch 2.7 or later from pip, or libtorch-dev.")
endif()
include(${config}/TorchConfigVersion.cmake)
set(TROUPE_TORCH_VERSION ${PACKAGE_VERSION})
unset(PACKAGE_VERSION)
if(TROUPE_TORCH_VERSION VERSION_LESS 1.13)
  message(FATAL_ERROR "LibTorch ${TROUPE_TORCH_VERSION} in ${config} is too old: 1.13.1 or later is needed.")
endif()

# <prefix>/share/cmake/Torch in a wheel, <prefix>/lib[/<arch>]/cmake/Torch elsewhere.
string(REGEX REPLACE "/(share|lib|lib/${CMAKE_LIBRARY_ARCHITECTURE})/cmake/Torch/?$" "" TROUPE_TORCH_PREFIX ${config})
set(TROUPE_TORCH_HAS_CUDA OFF)
set(troupe_torch_built_for "")
if(EXISTS ${TROUPE_TORCH_PREFIX}/lib/libtorch_cuda.so)
  set(TROUPE_TORCH_HAS_CUDA ON)
  set(troupe_torch_built_for " for CUDA")
elseif(TROUPE_CUDA)
  message(FATAL_ERROR "TROUPE_CUDA is ON, but the LibTorch ${TROUPE_TORCH_VERSION} from ${origin} (${TROUPE_TORCH_PREFIX}) "
    "is not for CUDA: docs/gpu.md says how to get one. It is taken from Torch_DIR, CMAKE_PREFIX_PATH or the python3 on the "
    "path.")
endif()
message(STATUS "LibTorch ${TROUPE_TORCH_VERSION}${troupe_torch_built_for} from ${origin}: ${TROUPE_TORCH_PREFIX}")

add_library(troupe::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(troupe::torch SYSTEM INTERFACE
  ${TROUPE_TORCH_PREFIX}/include ${TROUPE_TORCH_PREFIX}/include/torch/csrc/api/include)
# First the C++ library: the libtorch.so of 2.11 exports copies of its functions, of which remove_all jumps to null.
target_link_libraries(troupe::torch INTERFACE stdc++)
foreach(library torch torch_cpu c10)
  # Not cached: another Torch_DIR must give another library.
  unset(path)
  unset(path CACHE)
  find_library(path ${library} NO_CACHE NO_DEFAULT_PATH REQUIRED
    PATHS ${TROUPE_TORCH_PREFIX}/lib ${TROUPE_TORCH_PREFIX}/lib/${CMAKE_LIBRARY_ARCHITECTURE})
  target_link_libraries(troupe::torch INTERFACE ${path})
endforeach()
if(TROUPE_TORCH_HAS_CUDA)
  # No symbol of it is used: it registers itself when it is loaded. A linker that is told --as-needed, as Ubuntu's is, may
  # drop it.
  target_link_libraries(troupe::torch INTERFACE
    -Wl,--push-state,--no-as-needed,${TROUPE_TORCH_PREFIX}/lib/libtorch_cuda.so,--pop-state)
endif()
