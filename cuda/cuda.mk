# The CUDA backend. Included by the top Makefile, or used alone from the repository's root:
#     make -f cuda/cuda.mk cuda            builds $(BUILD)/libdptrain_cuda.so, if the toolkit is there
#     make -f cuda/cuda.mk cuda-report     says what was found
#
# Settings: CUDA=0 (never) or 1 (an error if it cannot be built); CUDA_HOME, CUDNN_HOME; CUDA_ARCH="75 90";
# CUDA_PYTHON, the folders "nvidia" of Python's packages.
# What others use:
#   CUDA_AVAILABLE       "yes" if the backend can be built, else empty; CUDA_REASON says why not
#   CUDA_LIB             the shared object
#   CUDA_BACKEND_OBJECTS its C half, position-independent: with EMULATION_KERNEL_OBJECTS and EMULATION_LIB of
#                        tests/cuda_emulation/emulation.mk it is the backend on the emulation
#   CUDA_BASE_OBJECTS    what the backend needs of the library, position-independent
#   CUDA_EMULATED_LIB    the same shared object on the emulation, for a whole dptrain (DPTRAIN_EMULATED_GPUS=N)
#   CUDA_CHECKED_LIB, CUDA_CHECKED_TEST_OPS    on the emulation with every access of the kernels looked at
#   CUDA_TEST_OPS, CUDA_TEST_BACKEND, CUDA_TEST_PLANS, CUDA_KERNEL_SPEED
#                        test programs on the real libraries (see tests/cuda)
#   CUDA_EMULATED_TEST_OPS, CUDA_EMULATED_TEST_BACKEND, CUDA_EMULATED_TEST_ENGINE, CUDA_EMULATED_TEST_FAULTS,
#   CUDA_EMULATED_KERNEL_SPEED
#                        and on the emulation
#
# Nothing runs while this is read, and it can be read where nothing is installed.

BUILD    ?= build
CUDA     ?=
CUDA_ARCH ?= 75 80 86 89 90
ifneq ($(filter default undefined,$(origin CC)),)
CC := gcc
endif

# ---- what is there

# nvcc may be a link in /usr/bin to the toolkit's own.
CUDA_NVCC_ON_PATH := $(firstword $(realpath $(wildcard $(addsuffix /nvcc,$(subst :, ,$(PATH))))))
# NVIDIA's packages for Python, which come with PyTorch: a folder for each part, or for the toolkit of CUDA 13 as a whole.
CUDA_PYTHON ?= $(wildcard $(addsuffix /lib/python3*/site-packages/nvidia,$(VIRTUAL_ENV) $(CONDA_PREFIX) /opt/* /usr/local \
    $(HOME)/.local) /usr/local/lib/python3*/dist-packages/nvidia)
CUDA_PARTS := $(wildcard $(foreach d,$(CUDA_PYTHON),$(d)/cu13 $(addprefix $(d)/,cuda_nvcc cuda_runtime cublas cudnn nvtx cuda_cccl)))
ifneq ($(filter undefined file,$(origin CUDA_HOME)),)
CUDA_HOME := $(firstword $(patsubst %/bin/nvcc,%,$(CUDA_NVCC_ON_PATH) \
    $(wildcard $(addsuffix /bin/nvcc,/usr/local/cuda $(CUDA_PARTS)))) /usr/local/cuda)
endif
CUDA_NVCC := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc))

# The first of some directories that holds a file.
cuda_directory_with = $(patsubst %/,%,$(dir $(firstword $(wildcard $(addsuffix /$(1),$(2))))))
CUDA_LIB_DIRS := $(CUDA_HOME)/lib64 $(CUDA_HOME)/targets/x86_64-linux/lib $(CUDA_HOME)/lib \
    /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu $(addsuffix /lib,$(CUDA_PARTS))
CUDA_INCLUDE_DIRS := $(CUDA_HOME)/include $(addsuffix /include,$(CUDA_PARTS))
# Python's packages have no libNAME.so, only libNAME.so.MAJOR, which is linked by that name.
cuda_library = $(firstword $(foreach d,$(2),$(firstword $(wildcard $(d)/lib$(1).so) $(wildcard $(d)/lib$(1).so.*))))
cuda_folder = $(patsubst %/,%,$(dir $(1)))
CUDNN_INCLUDE_DIR := $(call cuda_directory_with,cudnn_graph.h,$(if $(CUDNN_HOME),$(CUDNN_HOME)/include, \
    $(CUDA_HOME)/include /usr/include /usr/include/x86_64-linux-gnu /usr/include/aarch64-linux-gnu $(CUDA_INCLUDE_DIRS)))
CUDNN_LIBRARY := $(call cuda_library,cudnn,$(if $(CUDNN_HOME),$(CUDNN_HOME)/lib64 $(CUDNN_HOME)/lib,$(CUDA_LIB_DIRS)))
CUDART_LIBRARY := $(call cuda_library,cudart,$(CUDA_LIB_DIRS))
CUBLAS_LIBRARY := $(call cuda_library,cublas,$(CUDA_LIB_DIRS))
CUDNN_LIB_DIR := $(call cuda_folder,$(CUDNN_LIBRARY))
CUDA_LIB_DIR := $(call cuda_folder,$(CUDART_LIBRARY))
CUBLAS_LIB_DIR := $(call cuda_folder,$(CUBLAS_LIBRARY))
CUBLAS_INCLUDE_DIR := $(call cuda_directory_with,cublas_v2.h,$(CUDA_INCLUDE_DIRS))

CUDA_REASON := $(strip \
    $(if $(filter 0,$(CUDA)),switched off by CUDA=0, \
    $(if $(CUDA_NVCC),,nvcc is neither on PATH nor in $(CUDA_HOME)/bin: set CUDA_HOME)))
ifndef CUDA_REASON
CUDA_REASON := $(strip \
    $(if $(CUDA_LIB_DIR),,libcudart.so does not lie beside $(CUDA_NVCC): set CUDA_HOME))
endif
ifndef CUDA_REASON
CUDA_REASON := $(if $(and $(CUBLAS_LIB_DIR),$(CUBLAS_INCLUDE_DIR)),,cuBLAS is not in $(CUDA_HOME))
endif
ifndef CUDA_REASON
CUDA_REASON := $(if $(and $(CUDNN_INCLUDE_DIR),$(CUDNN_LIB_DIR)),,no cuDNN 9 (cudnn_graph.h and libcudnn.so) was found: set CUDNN_HOME)
endif
CUDA_AVAILABLE := $(if $(CUDA_REASON),,yes)

# ---- how to build

CUDA_BUILD := $(BUILD)/cuda
CUDA_LIB   := $(BUILD)/libdptrain_cuda.so

CUDA_SYSTEM_INCLUDES := $(addprefix -isystem ,$(wildcard $(CUDA_INCLUDE_DIRS)) \
    $(filter-out $(CUDA_INCLUDE_DIRS) /usr/include,$(CUDNN_INCLUDE_DIR)))
CUDA_CPPFLAGS := -D_GNU_SOURCE -I. -Iinclude -Isrc $(CPPFLAGS) $(CUDA_SYSTEM_INCLUDES)
CUDA_CFLAGS := -std=c17 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra $(if $(WERROR),-Werror) -MMD -MP -pthread $(CFLAGS) \
    $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)

cuda_comma := ,
CUDA_GENCODE := $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a)$(cuda_comma)code=sm_$(a)) \
    -gencode arch=compute_$(lastword $(CUDA_ARCH)),code=compute_$(lastword $(CUDA_ARCH))
CUDA_NVCCFLAGS := -std=c++17 -O3 -lineinfo -ccbin g++ $(CUDA_GENCODE) -MD -MP $(addprefix -isystem ,$(wildcard $(filter-out $(CUDA_HOME)/%,$(CUDA_INCLUDE_DIRS)))) \
    -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra $(if $(WERROR),-Werror all-warnings)
CUDA_LDFLAGS := $(foreach d,$(sort $(CUDA_LIB_DIR) $(CUBLAS_LIB_DIR) $(CUDNN_LIB_DIR)),-L$(d) -Wl,-rpath,$(d))
CUDA_LDLIBS  := $(addprefix -l:,$(notdir $(CUDNN_LIBRARY) $(CUBLAS_LIBRARY) $(CUDART_LIBRARY))) -lm -ldl -pthread

CUDA_C_SOURCES      := $(wildcard cuda/*.c)
CUDA_KERNEL_SOURCES := $(wildcard cuda/kernels/*.cu)
CUDA_BASE_SOURCES   := src/base/error.c src/base/memory.c src/device/device.c
CUDA_BACKEND_OBJECTS := $(CUDA_C_SOURCES:%.c=$(CUDA_BUILD)/%.o)
CUDA_KERNEL_OBJECTS  := $(CUDA_KERNEL_SOURCES:%.cu=$(CUDA_BUILD)/%.o)
CUDA_BASE_OBJECTS    := $(CUDA_BASE_SOURCES:%.c=$(CUDA_BUILD)/%.o)

.PHONY: cuda cuda-report cuda-tests

# Rebuilds when flags change.
CUDA_FLAGS_FILE := $(CUDA_BUILD)/flags
CUDA_FLAGS_TEXT := $(CC) $(CUDA_CPPFLAGS) $(CUDA_CFLAGS) $(CUDA_NVCC) $(CUDA_NVCCFLAGS) $(CUDA_LDFLAGS)
ifneq ($(strip $(file <$(CUDA_FLAGS_FILE))),$(strip $(CUDA_FLAGS_TEXT)))
.PHONY: $(CUDA_FLAGS_FILE)
endif
$(CUDA_FLAGS_FILE):
	@mkdir -p $(@D)
	@printf '%s\n' '$(CUDA_FLAGS_TEXT)' >$@

$(CUDA_BUILD)/%.o: %.c $(CUDA_FLAGS_FILE)
	@mkdir -p $(@D)
	@echo '  CC   $<'
	@$(CC) $(CUDA_CPPFLAGS) $(CUDA_CFLAGS) -c $< -o $@

$(CUDA_BUILD)/%.o: %.cu $(CUDA_FLAGS_FILE)
	@mkdir -p $(@D)
	@echo '  NVCC $<'
	@$(CUDA_NVCC) $(CUDA_NVCCFLAGS) -c $< -o $@

# One symbol is exported, whatever the compilers say of the rest.
$(CUDA_LIB): $(CUDA_BACKEND_OBJECTS) $(CUDA_KERNEL_OBJECTS) $(CUDA_BASE_OBJECTS) cuda/exports.map
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -shared -Wl,-soname,$(@F) -Wl,--version-script=cuda/exports.map -Wl,-z,defs \
	  $(filter %.o,$^) $(CUDA_LDFLAGS) $(CUDA_LDLIBS) -lstdc++ -o $@

cuda: cuda-report $(if $(CUDA_AVAILABLE),$(CUDA_LIB))

cuda-report:
ifneq ($(CUDA_AVAILABLE),)
	@echo 'CUDA: yes ($(CUDA_NVCC), cuDNN in $(CUDNN_LIB_DIR); sm_$(subst $() , sm_,$(strip $(CUDA_ARCH))))'
else
	@echo 'CUDA: no ($(CUDA_REASON))'
ifeq ($(CUDA),1)
	@echo 'CUDA=1 was asked for, but the CUDA backend cannot be built' >&2; exit 1
endif
endif

# ---- tests: on real libraries (with no GPU only the plans are made), and on the emulation

CUDA_OPS_SOURCES := $(filter-out tests/ops/test_%.c,$(wildcard tests/ops/*.c)) tests/cuda/test_ops_cuda.c \
    src/base/rng.c src/base/thread.c
CUDA_OPS_OBJECTS := $(CUDA_OPS_SOURCES:%.c=$(CUDA_BUILD)/%.o)
CUDA_TEST_OPS    := $(BUILD)/tests/test_ops_cuda
CUDA_TEST_BACKEND := $(BUILD)/tests/test_backend_cuda
CUDA_TEST_PLANS  := $(BUILD)/tests/deviceless_plans
CUDA_KERNEL_SPEED := $(BUILD)/tests/kernel_speed_cuda
CUDA_EMULATED_KERNEL_SPEED := $(BUILD)/tests/kernel_speed_cuda_emulated
CUDA_EMULATED_TEST_OPS := $(BUILD)/tests/test_ops_cuda_emulated
CUDA_EMULATED_LIB          := $(BUILD)/emulated/libdptrain_cuda.so
CUDA_EMULATED_TEST_BACKEND := $(BUILD)/tests/test_backend_cuda_emulated
CUDA_EMULATED_TEST_ENGINE := $(BUILD)/tests/test_engine_cuda_emulated
CUDA_EMULATED_TEST_FAULTS := $(BUILD)/tests/test_faults_cuda_emulated
CUDA_CHECKED_LIB      := $(BUILD)/checked/libdptrain_cuda.so
CUDA_CHECKED_TEST_OPS := $(BUILD)/tests/test_ops_cuda_checked
CUDA_CHECK_LIBS  := $(LDFLAGS) -lcheck -lsubunit -lrt

$(CUDA_BUILD)/tests/%.o: CUDA_CPPFLAGS += -Itests/ops

$(CUDA_TEST_OPS): $(CUDA_OPS_OBJECTS) $(CUDA_BACKEND_OBJECTS) $(CUDA_KERNEL_OBJECTS) $(CUDA_BASE_OBJECTS)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) $^ $(CUDA_LDFLAGS) $(CUDA_LDLIBS) $(CUDA_CHECK_LIBS) -lstdc++ -o $@

$(CUDA_TEST_BACKEND): $(CUDA_BUILD)/tests/cuda/test_backend.o $(CUDA_BUILD)/src/base/thread.o \
    $(CUDA_BACKEND_OBJECTS) $(CUDA_KERNEL_OBJECTS) $(CUDA_BASE_OBJECTS)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) $^ $(CUDA_LDFLAGS) $(CUDA_LDLIBS) $(CUDA_CHECK_LIBS) -lstdc++ -o $@

$(CUDA_KERNEL_SPEED): $(CUDA_BUILD)/tests/cuda/kernel_speed.o $(CUDA_KERNEL_OBJECTS)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) $^ $(CUDA_LDFLAGS) $(CUDA_LDLIBS) -lstdc++ -o $@

$(CUDA_EMULATED_KERNEL_SPEED): $(CUDA_BUILD)/tests/cuda/kernel_speed.o $(EMULATION_KERNEL_OBJECTS) $(EMULATION_LIB)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -rdynamic $^ $(EMULATION_LDLIBS) -o $@

# The models come from the library LIB of the top Makefile, with what that needs (LIBS).
$(CUDA_TEST_PLANS): $(CUDA_BUILD)/tests/cuda/deviceless_plans.o $(CUDA_BUILD)/cuda/conv_plan.o \
    $(CUDA_BUILD)/cuda/check.o $(LIB)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) $^ $(CUDA_LDFLAGS) $(CUDA_LDLIBS) $(LIBS) -o $@

# These need tests/cuda_emulation/emulation.mk, included before. With SANITIZE=thread the kernels are instrumented too;
# the emulation itself never is.
$(CUDA_EMULATED_LIB): $(CUDA_BACKEND_OBJECTS) $(CUDA_BASE_OBJECTS) \
    $(if $(filter thread,$(SANITIZE)),$(EMULATION_TSAN_KERNEL_OBJECTS),$(EMULATION_KERNEL_OBJECTS)) $(EMULATION_LIB) \
    cuda/exports.map
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -shared -Wl,-soname,$(@F) -Wl,--version-script=cuda/exports.map $(EMULATION_SHARED_LDFLAGS) \
	  $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(filter %.o %.a,$^) $(EMULATION_LDLIBS) -o $@

# Kernels whose every load and store is looked at (tests/cuda_emulation/checker), for a whole dptrain and for the
# table of operations.
CUDA_CHECKED_OBJECTS := $(CUDA_BACKEND_OBJECTS) $(CUDA_BASE_OBJECTS) $(EMULATION_CHECKED_KERNEL_OBJECTS) \
    $(EMULATION_CHECKER_OBJECTS)
$(CUDA_CHECKED_LIB): $(CUDA_CHECKED_OBJECTS) $(EMULATION_LIB) cuda/exports.map
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -shared -Wl,-soname,$(@F) -Wl,--version-script=cuda/exports.map $(EMULATION_SHARED_LDFLAGS) \
	  $(filter %.o %.a,$^) $(EMULATION_LDLIBS) -o $@

$(CUDA_CHECKED_TEST_OPS): $(CUDA_OPS_OBJECTS) $(CUDA_CHECKED_OBJECTS) $(EMULATION_LIB)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -rdynamic $^ $(CUDA_CHECK_LIBS) $(EMULATION_LDLIBS) -o $@

$(CUDA_EMULATED_TEST_BACKEND): $(CUDA_BUILD)/tests/cuda/test_backend.o $(CUDA_BUILD)/src/base/thread.o \
    $(CUDA_BACKEND_OBJECTS) $(CUDA_BASE_OBJECTS) $(EMULATION_KERNEL_OBJECTS) $(EMULATION_LIB)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -rdynamic $^ $(CUDA_CHECK_LIBS) $(EMULATION_LDLIBS) -o $@

# Names of the backend are its own, as in the shared object.
$(CUDA_BUILD)/emulated_backend.o: $(CUDA_BACKEND_OBJECTS) $(CUDA_BASE_OBJECTS) $(EMULATION_KERNEL_OBJECTS)
	@$(CC) -r -nostdlib $^ -o $@ && objcopy --keep-global-symbol=dp_cuda_backend_open $@

# The engine comes from LIB, too.
$(CUDA_EMULATED_TEST_ENGINE): $(CUDA_BUILD)/tests/cuda/test_engine_cuda.o $(CUDA_BUILD)/tests/cuda/overlap.o \
    $(CUDA_BUILD)/emulated_backend.o $(EMULATION_BUILD)/tests/kernels.o $(LIB) $(EMULATION_LIB)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -rdynamic $^ $(CUDA_CHECK_LIBS) $(LIBS) $(EMULATION_LDLIBS) -o $@

$(CUDA_EMULATED_TEST_FAULTS): $(CUDA_BUILD)/tests/cuda/test_faults_cuda.o $(CUDA_BUILD)/emulated_backend.o \
    $(LIB) $(EMULATION_LIB)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -rdynamic $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $^ $(LIBS) $(EMULATION_LDLIBS) -o $@

$(CUDA_EMULATED_TEST_OPS): $(CUDA_OPS_OBJECTS) $(CUDA_BACKEND_OBJECTS) $(CUDA_BASE_OBJECTS) \
    $(EMULATION_KERNEL_OBJECTS) $(EMULATION_LIB)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -rdynamic $^ $(CUDA_CHECK_LIBS) $(EMULATION_LDLIBS) -o $@

cuda-tests: $(CUDA_TEST_OPS) $(CUDA_TEST_PLANS)
	$(CUDA_TEST_PLANS) tests/cuda/devices/*.json
	$(CUDA_TEST_OPS)

-include $(patsubst %.o,%.d,$(CUDA_BACKEND_OBJECTS) $(CUDA_KERNEL_OBJECTS) $(CUDA_BASE_OBJECTS) $(CUDA_OPS_OBJECTS) \
    $(CUDA_BUILD)/tests/cuda/deviceless_plans.d $(CUDA_BUILD)/tests/cuda/kernel_speed.d \
    $(CUDA_BUILD)/tests/cuda/test_backend.d $(CUDA_BUILD)/tests/cuda/test_engine_cuda.d $(CUDA_BUILD)/tests/cuda/overlap.d $(CUDA_BUILD)/tests/cuda/test_faults_cuda.d)
