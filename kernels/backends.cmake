# Three builds of the CUDA kernels, with the same symbols:
#   kernels_cuda      by nvcc with KVLAB_CUDA, else kernels/device/no_cuda, which throws: what the program is linked with
#   kernels_emulated  the same .cu files compiled as C++ and run thread by thread (kernels/device/emulated): what tests are linked with
#                     where there is no CUDA
file(GLOB_RECURSE kvlab_cu CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.cu ${CMAKE_SOURCE_DIR}/policies/*.cu)
file(GLOB kvlab_cuda_host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/device/cuda/*.cpp)

# Two units for each header of row operations (kernels/rows/row_op.h): kvlab_row_cpu, and kvlab_row_cu for their kernels.
file(GLOB_RECURSE kvlab_row_ops RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*_op.h ${CMAKE_SOURCE_DIR}/policies/*_op.h)
list(FILTER kvlab_row_ops EXCLUDE REGEX "^kernels/rows/")
set(kvlab_row_cpu)
set(kvlab_row_cu)
foreach(header ${kvlab_row_ops})
  string(REGEX REPLACE "\\.h$" "" unit ${CMAKE_BINARY_DIR}/row_ops/${header})
  file(CONFIGURE OUTPUT ${unit}.cpp CONTENT "#define KVLAB_ROW_CPU\n#include \"${header}\"\n" @ONLY)
  file(CONFIGURE OUTPUT ${unit}.cu CONTENT
    "#define KVLAB_ROW_KERNELS\n#include \"kernels/device/cuda/run_row_op.cuh\"\n#include \"${header}\"\n" @ONLY)
  list(APPEND kvlab_row_cpu ${unit}.cpp)
  list(APPEND kvlab_row_cu ${unit}.cu)
endforeach()
# Bodies are loops over lanes, which -O2 does not vectorize.
target_sources(kernels_cpu PRIVATE ${kvlab_row_cpu})
set_source_files_properties(${kvlab_row_cpu} PROPERTIES COMPILE_OPTIONS -O3 SKIP_UNITY_BUILD_INCLUSION ON)

# How .cu files among the sources of a target in the calling folder are compiled.
function(kvlab_cuda_sources)
  list(FILTER ARGN INCLUDE REGEX "\\.cu$")
  if(KVLAB_CUDA)
    # relaxed-constexpr: constexpr functions of the host, such as std::bit_cast, may be called on the device.
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "--expt-relaxed-constexpr;--extended-lambda;-lineinfo")
  else()
    # Kernels are written in CUDA's idiom: implicit conversions, pragmas of nvcc.
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
      "-x;c++;-O1;-Wno-conversion;-Wno-unknown-pragmas;-Wno-unused-function;-Wno-pedantic")
  endif()
endfunction()

if(KVLAB_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "75;80;86;89;90a" CACHE STRING "GPU architectures; one alone builds faster")
  endif()
  if(KVLAB_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit REQUIRED)
  add_library(kernels_cuda OBJECT ${kvlab_cu} ${kvlab_row_cu} ${kvlab_cuda_host})
  kvlab_cuda_sources(${kvlab_cu} ${kvlab_row_cu})
  # Bodies of row operations round as on the CPU: a product and a sum are two roundings.
  set_property(SOURCE ${kvlab_row_cu} APPEND PROPERTY COMPILE_OPTIONS --fmad=false)
  set(kvlab_cuda_libraries CUDA::cudart_static CUDA::cublas CUDA::cublasLt)
  set(kvlab_tested_kernels kernels_cuda)
else()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/device/no_cuda/*.cpp)
  add_library(kernels_cuda OBJECT ${sources} ${kvlab_cuda_host})
  set(kvlab_cuda_libraries)
  if(KVLAB_EMULATED_TESTS)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/device/emulated/*.cpp)
    list(REMOVE_ITEM kvlab_cu ${CMAKE_SOURCE_DIR}/kernels/device/cuda/memory.cu ${CMAKE_SOURCE_DIR}/kernels/device/cuda/events.cu
      ${CMAKE_SOURCE_DIR}/kernels/device/cuda/blas.cu)
    kvlab_cuda_sources(${kvlab_cu} ${kvlab_row_cu})
    add_library(kernels_emulated OBJECT EXCLUDE_FROM_ALL ${sources} ${kvlab_cu} ${kvlab_row_cu} ${kvlab_cuda_host})
    target_link_libraries(kernels_emulated PUBLIC kvlab_flags Eigen3::Eigen)
    set(kvlab_tested_kernels kernels_emulated)
    set_target_properties(kernels_emulated PROPERTIES UNITY_BUILD OFF)  # names of the kernels' files may clash
  else()
    set(kvlab_tested_kernels kernels_cuda)
  endif()
endif()
target_link_libraries(kernels_cuda PUBLIC kvlab_flags)
set_target_properties(kernels_cuda PROPERTIES UNITY_BUILD OFF)
