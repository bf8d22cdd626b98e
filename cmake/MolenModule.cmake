# molen_module(NAME [TORCH] [LONG_TESTS] [OPTIMISED] [REPEATS_NAMES] [COST seconds] [TIMED pattern...] [DEPENDS module...] [LIBS library...])
#
# One static library molen_<name> from the *.cpp beside the CMakeLists.txt (and of its subfolders), one test program
# <name>_test from the *_test.cpp, registered with ctest as <name>. TORCH modules are left out where there is no libtorch.
#
# Tests free of ATen run under AddressSanitizer (preset asan), so the preset release leaves them out of its default target and
# of ctest. LONG_TESTS: a sanitized build leaves out some cases (base/test_sanitized.h), so release runs these tests too.
# OPTIMISED, which LONG_TESTS implies: a sanitized build optimises the module, whose tests, or those of modules above it, then
# save more time than the compiler takes.
# TIMED: tests that compare times, as patterns of --gtest_filter. They run alone, as <name>_timed; the others run beside
# other suites.
# COST: about the seconds of the tests that run beside others; ctest begins with those that take longest.
#
# All presets but dev compile up to six files of a module as one (CMAKE_UNITY_BUILD), which takes half the time, so
# only one of a module's files may use a name in an anonymous namespace (tools/check_helpers.py).
# REPEATS_NAMES: the module's files share names, so each file is compiled alone.
function(molen_module name)
  cmake_parse_arguments(M "TORCH;LONG_TESTS;OPTIMISED;REPEATS_NAMES" "COST" "TIMED;DEPENDS;LIBS;EXCLUDE" ${ARGN})
  if(M_TORCH AND NOT TARGET molen_torch)
    return()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.cpp)
  foreach(pattern ${M_EXCLUDE})
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")

  add_library(molen_${name} STATIC ${sources})
  target_link_libraries(molen_${name} PUBLIC molen_flags ${M_LIBS})
  foreach(dep ${M_DEPENDS})
    if(TARGET molen_${dep})
      target_link_libraries(molen_${name} PUBLIC molen_${dep})
    endif()
  endforeach()
  if((M_OPTIMISED OR M_LONG_TESTS) AND MOLEN_SANITIZE MATCHES address)
    target_compile_options(molen_${name} PRIVATE -O1)
  endif()
  if(M_REPEATS_NAMES)
    set_target_properties(molen_${name} PROPERTIES UNITY_BUILD OFF)
  endif()
  if(M_TORCH)
    target_link_libraries(molen_${name} PUBLIC molen_torch)
    target_precompile_headers(molen_${name} REUSE_FROM molen_torch_pch)
  endif()

  if(MOLEN_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE molen_${name} GTest::gtest_main rapidcheck)
    if(M_REPEATS_NAMES)
      set_target_properties(${name}_test PROPERTIES UNITY_BUILD OFF)
    endif()
    if(M_TORCH)
      target_precompile_headers(${name}_test REUSE_FROM molen_torch_test_pch)
    else()
      target_precompile_headers(${name}_test REUSE_FROM molen_test_pch)
    endif()
    target_compile_options(${name}_test PRIVATE ${MOLEN_RUNS_ONCE})
    if(MOLEN_TESTS_SANITIZED_ELSEWHERE AND NOT M_TORCH AND NOT M_LONG_TESTS)
      set_target_properties(${name}_test PROPERTIES EXCLUDE_FROM_ALL ON)
    elseif(M_TIMED)
      list(JOIN M_TIMED ":" timed)
      add_test(NAME ${name} COMMAND ${name}_test --gtest_filter=-${timed} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      add_test(NAME ${name}_timed COMMAND ${name}_test --gtest_filter=${timed} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set_tests_properties(${name}_timed PROPERTIES RUN_SERIAL ON)
    else()
      add_test(NAME ${name} COMMAND ${name}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    endif()
    if(M_TORCH AND TEST ${name})  # threads that wait leave their core to the suites beside them
      set_tests_properties(${name} PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
    endif()
    if(M_COST AND TEST ${name})
      set_tests_properties(${name} PROPERTIES COST ${M_COST})
    endif()
  endif()
endfunction()
