# How a kvasir target is made.
#
#   kvasir_module(base SOURCES error.cc DEPS fmt::fmt)          -> library kvasir_base
#   kvasir_kernels(ops SOURCES rms_norm/cpu.cc)                 -> each source compiled once per instruction-set level, into kvasir_ops
#   kvasir_test(base SOURCES error_test.cc DEPS kvasir_base)    -> executable base_test, registered test by test with ctest
#   kvasir_bench(ops SOURCES rms_norm/rms_norm_bench.cc DEPS …) -> executable ops_bench
#   kvasir_fuzzer(gguf SOURCES gguf_fuzz.cc DEPS …)             -> executable gguf_fuzz (libFuzzer; Clang, preset "fuzz")

add_library(kvasir_options INTERFACE)
target_include_directories(kvasir_options INTERFACE
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>" "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
# Floating-point contraction is off everywhere: a fused multiply-add appears only where the source asks for one,
# so the bits of a result never depend on the optimizer.
target_compile_options(kvasir_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Werror -ffp-contract=off -fno-math-errno)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports false positives of these in inlined standard-library and intrinsics code.
  target_compile_options(kvasir_options INTERFACE -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds
    -Wno-restrict -Wno-psabi -Wno-ignored-attributes -Wno-dangling-pointer -Wno-free-nonheap-object)
endif()
if(KVASIR_SANITIZE)
  add_compile_options(-fsanitize=${KVASIR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${KVASIR_SANITIZE})
endif()
if(KVASIR_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "KVASIR_BUILD_FUZZERS needs Clang (use the preset \"fuzz\")")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
endif()

# Code in which no time goes, at a lower optimization level: half of what a release build takes is commands and tests.
set(KVASIR_COLD_OPTIONS $<$<CONFIG:Release>:-O1>)

function(kvasir_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_library(kvasir_${name} STATIC ${arg_SOURCES})
  target_link_libraries(kvasir_${name} PUBLIC ${arg_DEPS} PRIVATE $<BUILD_INTERFACE:kvasir_options>)
  target_include_directories(kvasir_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>" "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
endfunction()

# Instruction-set levels (src/base/isa.h keeps the same list and says which processor features each needs).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(KVASIR_ISA_LEVELS generic avx2 avxvnni avx512vnni avx512bf16)
  set(KVASIR_ISA_FLAGS_generic -march=x86-64)
  set(KVASIR_ISA_FLAGS_avx2 -march=x86-64-v3)
  set(KVASIR_ISA_FLAGS_avxvnni -march=x86-64-v3 -mavxvnni)
  set(KVASIR_ISA_FLAGS_avx512vnni -march=x86-64-v4 -mavx512vnni -mprefer-vector-width=512)
  set(KVASIR_ISA_FLAGS_avx512bf16 -march=x86-64-v4 -mavx512vnni -mavx512bf16 -mavx512vbmi -mavx512vbmi2 -mprefer-vector-width=512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(KVASIR_ISA_LEVELS generic neon)
  # Highway gives its functions an attribute (crypto) that ours have not, unless it cannot detect processors.
  set(KVASIR_ISA_FLAGS_generic -DTOOLCHAIN_MISS_SYS_AUXV_H)
  set(KVASIR_ISA_FLAGS_neon -march=armv8.2-a+dotprod+bf16 -DTOOLCHAIN_MISS_SYS_AUXV_H)
else()
  set(KVASIR_ISA_LEVELS generic)
  set(KVASIR_ISA_FLAGS_generic "")
endif()

function(kvasir_kernels name)
  cmake_parse_arguments(arg "" "" "SOURCES" ${ARGN})
  foreach(level IN LISTS KVASIR_ISA_LEVELS)
    add_library(kvasir_${name}_${level} OBJECT ${arg_SOURCES})
    # Highway's AVX2 and AVX-512 targets ask for AES and carry-less multiplication too unless told that they are not used;
    # without this the static target of x86-64-v3 and v4 would be SSSE3.
    target_compile_definitions(kvasir_${name}_${level} PRIVATE KVASIR_ISA=${level} HWY_DISABLE_PCLMUL_AES)
    target_compile_options(kvasir_${name}_${level} PRIVATE ${KVASIR_ISA_FLAGS_${level}})
    if(KVASIR_SANITIZE MATCHES "address" OR KVASIR_BUILD_FUZZERS)
      # A kernel is one function out of hundreds of inlined ones: marking the scope of each of their variables keeps
      # the compiler busy for ten minutes a file. Bounds of arrays, pointers and pages are checked as everywhere.
      target_compile_options(kvasir_${name}_${level} PRIVATE -fno-sanitize-address-use-after-scope)
    endif()
    if(KVASIR_BUILD_FUZZERS)
      # Clang's checks of every access beside ASan's own: minutes a file, and nothing that ASan would not see.
      target_compile_options(kvasir_${name}_${level} PRIVATE
        -fno-sanitize=alignment,null,pointer-overflow,object-size,vptr,bounds)
    endif()
    target_link_libraries(kvasir_${name}_${level} PRIVATE kvasir_options)
    target_include_directories(kvasir_${name}_${level} SYSTEM PRIVATE ${HWY_INCLUDE_DIRS})
    target_sources(kvasir_${name} PRIVATE $<TARGET_OBJECTS:kvasir_${name}_${level}>)
  endforeach()
endfunction()

function(kvasir_test name)
  if(NOT KVASIR_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(KVASIR_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 5")
  endif()
  add_executable(${name}_test ${arg_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${arg_DEPS} kvasir_options GTest::gmock GTest::gtest_main)
  target_compile_options(${name}_test PRIVATE ${KVASIR_COLD_OPTIONS})
  target_compile_definitions(${name}_test PRIVATE KVASIR_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
    KVASIR_MODELS_DIR="${PROJECT_SOURCE_DIR}/models")
  include(GoogleTest)
  gtest_discover_tests(${name}_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT ${arg_TIMEOUT})
endfunction()

function(kvasir_bench name)
  if(NOT KVASIR_BUILD_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name}_bench ${arg_SOURCES})
  target_link_libraries(${name}_bench PRIVATE ${arg_DEPS} kvasir_options benchmark::benchmark benchmark::benchmark_main)
endfunction()

function(kvasir_fuzzer name)
  if(NOT KVASIR_BUILD_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name}_fuzz ${arg_SOURCES})
  target_link_libraries(${name}_fuzz PRIVATE ${arg_DEPS} kvasir_options)
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  # `fuzzers` builds the fuzz targets and what they need: none of them links a kernel.
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${name}_fuzz)
endfunction()
