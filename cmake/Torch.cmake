# molen_torch: libtorch from the pip wheel, as imported libraries. The wheel's own TorchConfig.cmake wants a CUDA toolkit
# for a CUDA wheel even where only the libraries are needed, so the few lines are written here.
if(MOLEN_TORCH STREQUAL "OFF")
  message(STATUS "libtorch: left out (MOLEN_TORCH=OFF)")
  return()
endif()

# In this order, as tools/setup.sh decides: MOLEN_PYTHON alone where it is given; a CUDA build of the system's Python (the
# tree's own environment holds a CPU build, which `make test` brings for the oracles); the tree's own environment; any
# build of the system's Python.
set(MOLEN_TORCH_LEAST 2.11)
unset(TORCH_DIR)

# Sets TORCH_DIR and TORCH_VERSION if `python` has a torch that is recent enough, and a CUDA build if `cuda`.
function(molen_torch_of python cuda)
  execute_process(
    COMMAND ${python} -c "import torch,os;print(os.path.dirname(torch.__file__)+';'+torch.__version__+';'+(torch.version.cuda or 'none'))"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  list(LENGTH found fields)
  if(failed OR NOT fields EQUAL 3)
    return()
  endif()
  list(GET found 0 dir)
  list(GET found 1 version)
  list(GET found 2 build)
  if(cuda AND build STREQUAL "none")
    return()
  endif()
  string(REGEX MATCH "^[0-9]+\\.[0-9]+(\\.[0-9]+)?" number "${version}")
  if(NOT number VERSION_GREATER_EQUAL MOLEN_TORCH_LEAST)
    message(WARNING "libtorch: ${python} has torch ${version}, molen needs ${MOLEN_TORCH_LEAST} or newer: not used")
    return()
  endif()
  set(TORCH_DIR ${dir} PARENT_SCOPE)
  set(TORCH_VERSION ${version} PARENT_SCOPE)
endfunction()

if(MOLEN_PYTHON)
  molen_torch_of(${MOLEN_PYTHON} FALSE)
  if(NOT TORCH_DIR)
    message(FATAL_ERROR "libtorch: MOLEN_PYTHON=${MOLEN_PYTHON} has no torch ${MOLEN_TORCH_LEAST} or newer")
  endif()
else()
  molen_torch_of(python3 TRUE)
  if(NOT TORCH_DIR)
    molen_torch_of(${CMAKE_SOURCE_DIR}/.venv/bin/python FALSE)
  endif()
  if(NOT TORCH_DIR)
    molen_torch_of(python3 FALSE)
  endif()
endif()
if(NOT TORCH_DIR)
  if(MOLEN_TORCH STREQUAL "ON")
    message(FATAL_ERROR "libtorch: no Python with torch ${MOLEN_TORCH_LEAST} or newer found; run `make setup` or pass -DMOLEN_PYTHON=...")
  endif()
  message(STATUS "libtorch: ${MOLEN_TORCH_LEAST} or newer not found; planner, data tools and reports only")
  return()
endif()

set(torch_libs ${TORCH_DIR}/lib/libc10.so ${TORCH_DIR}/lib/libtorch_cpu.so)
set(MOLEN_CUDA OFF)
if(EXISTS ${TORCH_DIR}/lib/libtorch_cuda.so)
  set(MOLEN_CUDA ON)
  list(APPEND torch_libs ${TORCH_DIR}/lib/libc10_cuda.so ${TORCH_DIR}/lib/libtorch_cuda.so)
endif()
# The wheel brings its own OpenMP runtime; linking the system's too would give two thread pools.
file(GLOB torch_gomp ${TORCH_DIR}/lib/libgomp*.so* ${TORCH_DIR}/../torch.libs/libgomp*.so*)

add_library(molen_torch INTERFACE)
# -idirafter: the wheel bundles headers of a newer fmt, which must not shadow the one we link.
target_compile_definitions(molen_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 MOLEN_HAS_TORCH=1)
target_compile_options(molen_torch INTERFACE -fopenmp -idirafter${TORCH_DIR}/include)
# --no-as-needed: the CUDA library registers its kernels when loaded, and nothing of ours names a symbol in it.
target_link_libraries(molen_torch INTERFACE -Wl,--no-as-needed ${torch_libs} ${torch_gomp} -Wl,--as-needed -Wl,-rpath,${TORCH_DIR}/lib)
if(torch_gomp)
  get_filename_component(gomp_dir ${torch_gomp} DIRECTORY)
  target_link_options(molen_torch INTERFACE -Wl,-rpath,${gomp_dir})
else()
  target_link_libraries(molen_torch INTERFACE gomp)
endif()

message(STATUS "libtorch: ${TORCH_VERSION} (CUDA ${MOLEN_CUDA}) in ${TORCH_DIR}")
