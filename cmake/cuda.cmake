# FUSEWIRE_CUDA=AUTO|ON|OFF: whether the kernels for GPUs are built, which takes minutes and needs
# nvcc 13 and cuBLASLt. AUTO builds them where nvidia-smi shows a GPU and both are found, ON builds
# them or fails, OFF leaves them out. One line says what was chosen.
#
# cuBLASLt is that of the toolkit, or of the pip package nvidia-cublas, which a compiler without the
# full toolkit needs.
set(FUSEWIRE_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON or OFF")
if(DEFINED ENV{FUSEWIRE_CUDA})
  set(FUSEWIRE_CUDA $ENV{FUSEWIRE_CUDA} CACHE STRING "CUDA kernels: AUTO, ON or OFF" FORCE)
endif()
set_property(CACHE FUSEWIRE_CUDA PROPERTY STRINGS AUTO ON OFF)
# 80: Ampere and Ada run the general kernels; 90a: Hopper, with its own instructions too. Nothing is
# kept as PTX for later ones: that of 80 would leave out the waits between dependent launches.
set(FUSEWIRE_CUDA_ARCHITECTURES "80;90a" CACHE STRING "Compute capabilities to compile for")

function(find_gpu found_variable)
  execute_process(COMMAND nvidia-smi -L OUTPUT_VARIABLE gpus ERROR_QUIET)
  string(FIND "${gpus}" "GPU 0" at)
  if(at EQUAL -1)
    set(${found_variable} FALSE PARENT_SCOPE)
  else()
    set(${found_variable} TRUE PARENT_SCOPE)
  endif()
endfunction()

function(find_cuda found_variable why_variable)
  set(${found_variable} FALSE PARENT_SCOPE)
  # Each nvidia-* package of pip puts its part of the toolkit into one folder.
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import nvidia, os; print(';'.join(os.path.join(p, 'cu13') for p in nvidia.__path__))"
    OUTPUT_VARIABLE pip_toolkits OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(toolkits $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda ${pip_toolkits})
  set(install "pip install -r cmake/cuda-compiler.txt, then build with --no-build-isolation")
  # A compiler that was named is accepted or rejected; else the first of CUDA 13.
  if(CMAKE_CUDA_COMPILER)
    set(compilers ${CMAKE_CUDA_COMPILER})
  elseif(DEFINED ENV{CUDACXX})
    set(compilers $ENV{CUDACXX})
  else()
    find_program(on_path nvcc HINTS $ENV{CUDA_HOME}/bin NO_CACHE)
    set(compilers ${on_path})
    foreach(toolkit ${toolkits})
      file(GLOB compiler ${toolkit}/bin/nvcc)
      list(APPEND compilers ${compiler})
    endforeach()
    list(REMOVE_ITEM compilers on_path-NOTFOUND)
  endif()
  set(${why_variable} "no nvcc; ${install}" PARENT_SCOPE)
  foreach(compiler ${compilers})
    execute_process(COMMAND ${compiler} --version OUTPUT_VARIABLE version_text)
    string(REGEX MATCH "release ([0-9]+)" _ "${version_text}")
    if(CMAKE_MATCH_1 EQUAL 13)
      set(chosen ${compiler})
      break()
    endif()
    set(${why_variable} "${compiler} of CUDA ${CMAKE_MATCH_1}, wanted 13; name another by CUDACXX \
or CUDA_HOME, or ${install}" PARENT_SCOPE)
  endforeach()
  if(NOT chosen)
    return()
  endif()
  set(CMAKE_CUDA_COMPILER ${chosen} CACHE FILEPATH "nvcc")
  get_filename_component(its_toolkit ${chosen}/../.. ABSOLUTE)
  list(PREPEND toolkits ${its_toolkit})
  find_path(CUBLASLT_INCLUDE cublasLt.h HINTS ${toolkits}
            PATH_SUFFIXES include targets/x86_64-linux/include)
  find_library(CUBLASLT_LIBRARY NAMES cublasLt libcublasLt.so.13 HINTS ${toolkits}
               PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
  if(NOT CUBLASLT_INCLUDE OR NOT CUBLASLT_LIBRARY)
    set(${why_variable} "no cuBLASLt; ${install}" PARENT_SCOPE)
    return()
  endif()
  set(${found_variable} TRUE PARENT_SCOPE)
endfunction()

# Compiles csrc/cuda into the target and links what it needs.
function(add_cuda_target target)
  set(CMAKE_CUDA_STANDARD 17)
  file(GLOB kernels CONFIGURE_DEPENDS csrc/cuda/*.cu csrc/cuda/*/*.cu)
  file(GLOB hopper CONFIGURE_DEPENDS csrc/cuda/*/sm90_*.cu)
  list(REMOVE_ITEM kernels ${hopper})
  add_library(cuda_general OBJECT ${kernels})
  add_library(cuda_hopper OBJECT ${hopper})
  set_target_properties(cuda_general PROPERTIES CUDA_ARCHITECTURES "${FUSEWIRE_CUDA_REAL}")
  set_target_properties(cuda_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real)
  foreach(objects cuda_general cuda_hopper)
    set_target_properties(${objects} PROPERTIES CUDA_STANDARD 17 CUDA_VISIBILITY_PRESET hidden
                                                POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${objects} PRIVATE csrc)
    target_include_directories(${objects} SYSTEM PRIVATE ${CUBLASLT_INCLUDE})
    target_compile_options(${objects} PRIVATE --expt-relaxed-constexpr -Xcompiler=-Wall)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
  # The target was made before CUDA was a language, and linking it asks for this too.
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${FUSEWIRE_CUDA_REAL}")
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
  # cuBLASLt is loaded on first use (cublaslt_library.cu). An installed module finds the pip package
  # beside its own in site-packages, whoever built it; a build by hand, where it was found.
  get_filename_component(folder ${CUBLASLT_LIBRARY} DIRECTORY)
  set_target_properties(${target} PROPERTIES BUILD_RPATH ${folder}
                        INSTALL_RPATH "$ORIGIN/../nvidia/cu13/lib")
endfunction()

set(cuda_found FALSE)
if(NOT FUSEWIRE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "FUSEWIRE_CUDA: got '${FUSEWIRE_CUDA}', wanted AUTO, ON or OFF; "
                      "leave it out for AUTO")
elseif(FUSEWIRE_CUDA STREQUAL OFF)
  message(STATUS "fusewire: CPU only (FUSEWIRE_CUDA=OFF)")
else()
  if(FUSEWIRE_CUDA STREQUAL AUTO)
    find_gpu(wanted)
  else()
    set(wanted TRUE)
  endif()
  if(wanted)
    find_cuda(cuda_found why)
  else()
    set(why "nvidia-smi shows no GPU; FUSEWIRE_CUDA=ON builds for one elsewhere")
  endif()
  if(cuda_found)
    list(TRANSFORM FUSEWIRE_CUDA_ARCHITECTURES APPEND -real OUTPUT_VARIABLE FUSEWIRE_CUDA_REAL)
    set(CMAKE_CUDA_ARCHITECTURES ${FUSEWIRE_CUDA_REAL})
    # The pip packages keep their libraries in lib, where this compiler looks in lib64.
    get_filename_component(toolkit ${CMAKE_CUDA_COMPILER} DIRECTORY)
    string(APPEND CMAKE_CUDA_FLAGS " -L${toolkit}/../lib")
    enable_language(CUDA)
    message(STATUS "fusewire: CPU and CUDA ${CMAKE_CUDA_COMPILER_VERSION} for compute capability "
                   "${FUSEWIRE_CUDA_ARCHITECTURES}, cuBLASLt ${CUBLASLT_LIBRARY}")
  elseif(FUSEWIRE_CUDA STREQUAL ON)
    message(FATAL_ERROR "FUSEWIRE_CUDA: got ON, wanted nvcc and cuBLASLt; there is ${why}")
  else()
    message(STATUS "fusewire: CPU only (${why})")
  endif()
endif()
