# troupe_use_torch(target): links LibTorch and shares one precompiled <torch/torch.h> (20 s of parsing a file).
include(troupe_find_torch)
set(TROUPE_TORCH_VERSION ${TROUPE_TORCH_VERSION} PARENT_SCOPE)  # for the installed package
set(TROUPE_TORCH_PREFIX ${TROUPE_TORCH_PREFIX} PARENT_SCOPE)

# One precompiled header for every file that needs torch/torch.h. GCC takes it only where code generation agrees, so
# -fPIC is set for programs too.

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
  set_property(TARGET ${target} PROPERTY CXX_COMPILER_LAUNCHER ${TROUPE_PCH_LAUNCHER})
endfunction()

troupe_precompiled(troupe_torch_pch HEADERS <torch/torch.h>)
troupe_torch_compiles(troupe_torch_pch)

function(troupe_use_torch target)
  troupe_torch_compiles(${target})
  troupe_use_precompiled(${target} troupe_torch_pch)
endfunction()
