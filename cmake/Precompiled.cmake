# Headers compiled once; each is used only where the same options and macros are set. Modules free of ATen have none: the
# compiler loads it no faster than it reads what they include.
function(molen_precompiled name)
  file(WRITE ${CMAKE_BINARY_DIR}/molen_${name}.cpp "")
  add_library(molen_${name} OBJECT ${CMAKE_BINARY_DIR}/molen_${name}.cpp)
  target_link_libraries(molen_${name} PUBLIC molen_flags ${ARGN})
  target_precompile_headers(molen_${name} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/${name}.h)
endfunction()

if(MOLEN_TESTS)
  molen_precompiled(test_pch fmt::fmt nlohmann_json::nlohmann_json GTest::gtest rapidcheck Threads::Threads)
endif()
if(TARGET molen_torch)
  molen_precompiled(torch_pch molen_torch)  # including ATen afresh costs some 8 s a file
endif()
