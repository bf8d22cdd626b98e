# Headers compiled once; each is used only where the same options and macros are set. Modules free of ATen have none: the
# compiler loads it no faster than it reads what they include.
function(molen_precompiled name)
  file(WRITE ${CMAKE_BINARY_DIR}/molen_${name}.cpp "")
  add_library(molen_${name} OBJECT ${CMAKE_BINARY_DIR}/molen_${name}.cpp)
  target_link_libraries(molen_${name} PUBLIC molen_flags ${ARGN})
  target_precompile_headers(molen_${name} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/${name}.h)
endfunction()

# What runs once, tests and the reading of a command line, is compiled for the compiler's own speed: a third less time than at -O3.
# Whoever uses one of these headers must be compiled so too, or the compiler passes it over.
# GCC 12 at that level sees std::string copy beyond its bounds where it does not.
set(MOLEN_RUNS_ONCE $<$<CONFIG:Release>:-O1> $<$<CONFIG:Release>:-Wno-array-bounds> $<$<CONFIG:Release>:-Wno-stringop-overflow>)
if(MOLEN_TESTS)
  molen_precompiled(test_pch fmt::fmt nlohmann_json::nlohmann_json GTest::gtest rapidcheck Threads::Threads)
  target_compile_options(molen_test_pch PRIVATE ${MOLEN_RUNS_ONCE})
endif()
if(TARGET molen_torch)
  molen_precompiled(torch_pch molen_torch)  # including ATen afresh costs some 8 s a file
  if(MOLEN_TESTS)
    molen_precompiled(torch_test_pch molen_torch GTest::gtest)
    target_compile_options(molen_torch_test_pch PRIVATE ${MOLEN_RUNS_ONCE})
  endif()
endif()
