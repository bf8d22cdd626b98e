# molen_module(NAME [TORCH] [LONG_TESTS] [LONG_FILES] [OPTIMISED] [REPEATS_NAMES] [COST seconds] [TIMED pattern...] [DEPENDS module...] [LIBS library...])
#
# One static library molen_<name> from the *.cpp beside the CMakeLists.txt (and of its subfolders), one test program
# <name>_test from the *_test.cpp, registered with ctest as <name>. TORCH modules are left out where there is no libtorch.
#
# Tests free of ATen run under AddressSanitizer (preset asan), so the preset release leaves them out of its default target and
# of ctest. LONG_TESTS: a sanitized build leaves out some cases, so release runs these tests too. LONG_FILES: release runs
# only the files that include base/test_sanitized.h, which says what is left out, as <name>_long_test; nightly.sh runs all.
# OPTIMISED, which both imply: a sanitized build optimises the module, whose tests, or those of modules above it, then
# save more time than the compiler takes.
# TIMED: tests that compare times, as patterns of --gtest_filter. They run alone, as <name>_timed; the others run beside
# other suites.
# COST: about the seconds of the tests that run beside others; ctest begins with those that take longest.
#
# All presets but dev compile up to six files of a module as one (CMAKE_UNITY_BUILD), which takes half the time, so
# only one of a module's files may use a name in an anonymous namespace (tools/check_helpers.py).
# REPEATS_NAMES: the module's files share names, so each file is compiled alone.
function(molen_module name)
  cmake_parse_arguments(M "TORCH;LONG_TESTS;LONG_FILES;OPTIMISED;REPEATS_NAMES" "COST" "TIMED;DEPENDS;LIBS;EXCLUDE" ${ARGN})
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
  if((M_OPTIMISED OR M_LONG_TESTS OR M_LONG_FILES) AND MOLEN_SANITIZE MATCHES address)
    target_compile_options(molen_${name} PRIVATE -O1)
  endif()
  if(M_REPEATS_NAMES)
    set_target_properties(molen_${name} PROPERTIES UNITY_BUILD OFF)
  endif()
  if(M_TORCH)
    target_link_libraries(molen_${name} PUBLIC molen_torch)
    target_precompile_headers(molen_${name} REUSE_FROM molen_torch_pch)
  endif()

  if(NOT MOLEN_TESTS OR NOT tests)
    return()
  endif()
  molen_test_program(${name}_test "${tests}")
  set(program "")
  if(NOT MOLEN_TESTS_SANITIZED_ELSEWHERE OR M_TORCH OR M_LONG_TESTS)
    set(program ${name}_test)
  elseif(M_LONG_FILES)
    list(TRANSFORM tests PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE long)
    molen_keep_long_files(long)
    set(program ${name}_long_test)
    molen_test_program(${program} "${long}")
  endif()
  if(NOT program STREQUAL "${name}_test")
    set_target_properties(${name}_test PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  if(program AND M_TIMED)
    list(JOIN M_TIMED ":" timed)
    add_test(NAME ${name} COMMAND ${program} --gtest_filter=-${timed} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    add_test(NAME ${name}_timed COMMAND ${program} --gtest_filter=${timed} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name}_timed PROPERTIES RUN_SERIAL ON)
  elseif(program)
    add_test(NAME ${name} COMMAND ${program} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  endif()
  if(M_TORCH AND TEST ${name})  # threads that wait leave their core to the suites beside them
    set_tests_properties(${name} PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
  endif()
  if(M_COST AND TEST ${name})
    set_tests_properties(${name} PROPERTIES COST ${M_COST})
  endif()
endfunction()

# Reads M_TORCH and M_REPEATS_NAMES of molen_module, which calls it.
macro(molen_test_program target files)
  add_executable(${target} ${files})
  target_link_libraries(${target} PRIVATE molen_${name} GTest::gtest_main rapidcheck)
  target_compile_options(${target} PRIVATE ${MOLEN_RUNS_ONCE})
  if(M_REPEATS_NAMES)
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endif()
  if(M_TORCH)
    target_precompile_headers(${target} REUSE_FROM molen_torch_test_pch)
  else()
    target_precompile_headers(${target} REUSE_FROM molen_test_pch)
  endif()
endmacro()

# Keeps the files of a list that include base/test_sanitized.h.
macro(molen_keep_long_files list)
  foreach(file ${${list}})
    file(STRINGS ${file} shortened REGEX "#include \"base/test_sanitized.h\"")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    if(NOT shortened)
      list(REMOVE_ITEM ${list} ${file})
    endif()
  endforeach()
endmacro()
