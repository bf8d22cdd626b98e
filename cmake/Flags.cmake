# Warnings, sanitizers and the arithmetic rules, in one interface target that every target links.
add_library(molen_flags INTERFACE)
target_include_directories(molen_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
# -ffp-contract=off: a value must not depend on whether the compiler chose to fuse a multiply and an add; kernels that want
# fused multiply-adds ask for them by name.
target_compile_options(molen_flags INTERFACE -Wall -Wextra -Wno-unused-parameter $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -ffp-contract=off)
if(MOLEN_SANITIZE)
  target_compile_options(molen_flags INTERFACE -fsanitize=${MOLEN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(molen_flags INTERFACE -fsanitize=${MOLEN_SANITIZE})
  # Functions of libraries that are loaded at run time (NCCL, NVML) are called by declarations of our own.
  target_compile_options(molen_flags INTERFACE $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  # Checks of every pointer that is used: a third of the compiler's time, for what AddressSanitizer finds by itself or the
  # processor does not mind. The ubsan preset (make nightly) has them.
  if(MOLEN_SANITIZE MATCHES address)
    target_compile_options(molen_flags INTERFACE -fno-sanitize=null,alignment,vptr,object-size)
  endif()
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Loops over elements gain from -O3; all other code compiles faster without it and runs as fast.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(MOLEN_KERNELS $<$<CONFIG:Release>:-O3>)
