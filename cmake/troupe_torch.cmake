# troupe_use_torch(target): links LibTorch and shares one precompiled <torch/torch.h> (20 s of parsing a file).
include(troupe_find_torch)
set(TROUPE_TORCH_VERSION ${TROUPE_TORCH_VERSION} PARENT_SCOPE)  # for the installed package
set(TROUPE_TORCH_PREFIX ${TROUPE_TORCH_PREFIX} PARENT_SCOPE)

# One precompiled header for every file that needs torch/torch.h. GCC takes it only where code generation agrees, so
# -fPIC is set for programs too. ccache must be told that a changed header inside it is the compiler's business.
# Cached, because folders beside this one (examples, tests, bench) call the functions below, too.
set(TROUPE_TORCH_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER} CACHE INTERNAL "The compiler launcher of files with LibTorch")
if(TROUPE_CCACHE)
  set(TROUPE_TORCH_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${TROUPE_CCACHE}
    CACHE INTERNAL "")
endif()

# A file that includes torch/torch.h takes up to 2 GiB to compile: Ninja runs no more of them at once than fit, while the
# others use all cores.
if(PROJECT_IS_TOP_LEVEL)
  cmake_host_system_information(RESULT troupe_free_mib QUERY AVAILABLE_PHYSICAL_MEMORY)
  math(EXPR troupe_torch_jobs "${troupe_free_mib} / 2048")
  if(troupe_torch_jobs LESS 1)
    set(troupe_torch_jobs 1)
  endif()
  set_property(GLOBAL APPEND PROPERTY JOB_POOLS troupe_torch=${troupe_torch_jobs})
endif()

function(troupe_torch_compiles target)
  if(PROJECT_IS_TOP_LEVEL)
    set_property(TARGET ${target} PROPERTY JOB_POOL_COMPILE troupe_torch)
  endif()
  target_link_libraries(${target} PUBLIC troupe::torch)
  target_compile_options(${target} PRIVATE -fPIC)
  set_property(TARGET ${target} PROPERTY CXX_COMPILER_LAUNCHER ${TROUPE_TORCH_LAUNCHER})
endfunction()

file(CONFIGURE OUTPUT ${troupe_BINARY_DIR}/torch_pch.cpp CONTENT "// Owns the precompiled torch/torch.h.\n")
add_library(troupe_torch_pch OBJECT ${troupe_BINARY_DIR}/torch_pch.cpp)
troupe_flags(troupe_torch_pch)
troupe_torch_compiles(troupe_torch_pch)
target_precompile_headers(troupe_torch_pch PRIVATE <torch/torch.h>)

function(troupe_use_torch target)
  troupe_torch_compiles(${target})
  target_precompile_headers(${target} REUSE_FROM troupe_torch_pch)
endfunction()
