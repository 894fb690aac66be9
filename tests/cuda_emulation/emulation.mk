# The test-only CUDA emulation. Included by the top Makefile, or used alone from the repository's root:
#     make -f tests/cuda_emulation/emulation.mk emulation-check
#
# What others use:
#   EMULATION_AVAILABLE             "yes" if CUDA's headers (runtime, cuBLAS, cuDNN) are there, else empty
#   EMULATION_LIB                   the emulation, in place of -lcudart -lcublas -lcudnn
#   EMULATION_LDLIBS                what to link behind it
#   EMULATION_SHARED_LDFLAGS        and how, if the result is a shared object
#   EMULATION_TOOLS                 shared objects that stand in for NVML and for a profiler
#   EMULATION_KERNEL_OBJECTS        cuda/kernels/*.cu compiled by g++ on it
#   CUDA_INCLUDES                   flags for C files that include CUDA's headers
#   EMULATION_CHECKED_KERNEL_OBJECTS, EMULATION_CHECKER_OBJECTS
#                                   the same kernels with every access looked at, and what looks; link both
# and the same with EMULATION_TSAN_KERNEL_OBJECTS and EMULATION_TSAN_FLAGS for a program under ThreadSanitizer (the
# library is the same: it must not be instrumented, see private_lock.h).

BUILD ?= build
ifeq ($(origin CUDA_HOME),undefined)
CUDA_HOME := /usr/local/cuda
endif
EMULATION_DIR := tests/cuda_emulation
EMULATION_BUILD := $(BUILD)/emulation

# cuDNN's headers come with the toolkit, from a package of their own, or from where CUDNN_INCLUDE says.
CUDNN_INCLUDE ?= $(patsubst %/,%,$(dir $(firstword $(wildcard $(CUDA_HOME)/include/cudnn.h \
    /usr/include/cudnn.h /usr/include/*/cudnn.h /usr/local/cudnn/include/cudnn.h))))
CUDA_INCLUDES = -isystem $(CUDA_HOME)/include $(if $(filter-out $(CUDA_HOME)/include /usr/include,$(CUDNN_INCLUDE)),-isystem $(CUDNN_INCLUDE))
EMULATION_AVAILABLE := $(if $(and $(wildcard $(CUDA_HOME)/include/cuda_runtime.h), \
    $(wildcard $(CUDA_HOME)/include/cublas_v2.h),$(CUDNN_INCLUDE)),yes)

EMULATION_LIB := $(EMULATION_BUILD)/libemulation.a
EMULATION_LDLIBS := -lstdc++ -lpthread -ldl -lm
# In a shared object: a CUDA function that is not emulated must fail the link, and streams' threads must not outlive
# their code.
EMULATION_SHARED_LDFLAGS := -Wl,-z,defs -Wl,-z,nodelete
# The memory of shared variables is thread-local. In a shared object that is loaded late there is no room for all of it in
# the fixed block that the fastest access needs; descriptors are the next best (glibc's tls-descriptors, as on aarch64).
EMULATION_TLS := $(if $(filter x86_64%,$(MAKE_HOST)),-mtls-dialect=gnu2)
# Without -fno-semantic-interposition position-independent code could inline nothing.
EMULATION_CXXFLAGS := $(EMULATION_TLS) -std=c++17 -O2 -g -fPIC -fno-semantic-interposition -Wall -Wextra -MMD -MP

EMULATION_SOURCES := $(wildcard $(EMULATION_DIR)/*.cpp)
EMULATION_OBJECTS := $(EMULATION_SOURCES:$(EMULATION_DIR)/%.cpp=$(EMULATION_BUILD)/%.o)

# The arithmetic of cuBLAS and cuDNN is worth vectorising.
$(EMULATION_BUILD)/cublas.o $(EMULATION_BUILD)/convolution.o: EMULATION_CXXFLAGS += -O3

$(EMULATION_BUILD)/%.o: $(EMULATION_DIR)/%.cpp
	@mkdir -p $(@D)
	$(CXX) $(EMULATION_CXXFLAGS) $(CUDA_INCLUDES) -c $< -o $@

$(EMULATION_LIB): $(EMULATION_OBJECTS)
	@rm -f $@
	$(AR) rcs $@ $^

# ---- kernels: the product's .cu files, and those of the emulation's own tests

# No contraction to FMA: nvcc and g++ would not contract the same expressions.
EMULATION_CUFLAGS := $(EMULATION_TLS) -std=c++17 -g -fPIC -ffp-contract=off -Wall -Wextra -Wno-unknown-pragmas -MMD -MP \
    -x c++ -include $(EMULATION_DIR)/emulation.h -Iinclude -Isrc -Icuda
# Constant-size memset and memcpy would be expanded inline, where TSan does not see them.
EMULATION_TSAN_FLAGS := -fsanitize=thread -O1 -fno-builtin-memset -fno-builtin-memcpy

EMULATION_KERNEL_SOURCES := $(wildcard cuda/kernels/*.cu)
EMULATION_KERNEL_OBJECTS := $(EMULATION_KERNEL_SOURCES:cuda/kernels/%.cu=$(EMULATION_BUILD)/kernels/%.o)
EMULATION_TSAN_KERNEL_OBJECTS := $(EMULATION_KERNEL_SOURCES:cuda/kernels/%.cu=$(EMULATION_BUILD)/tsan/kernels/%.o)

$(EMULATION_BUILD)/kernels/%.o: cuda/kernels/%.cu $(EMULATION_DIR)/emulation.h
	@mkdir -p $(@D)
	$(CXX) -O2 $(EMULATION_CUFLAGS) $(CUDA_INCLUDES) -c $< -o $@

$(EMULATION_BUILD)/tsan/kernels/%.o: cuda/kernels/%.cu $(EMULATION_DIR)/emulation.h
	@mkdir -p $(@D)
	$(CXX) $(EMULATION_TSAN_FLAGS) $(EMULATION_CUFLAGS) $(CUDA_INCLUDES) -c $< -o $@

# ---- the checker: kernels whose every load and store is looked at (checker/checker.cpp)

# g++ calls a function of the checker before each; libtsan is not linked. Structures are to be loaded as nvcc loads
# them, whole (no-tree-sra); and no two barriers of different branches become one.
EMULATION_CHECKED_CUFLAGS := -fsanitize=thread -O1 -fno-tree-sra -fno-crossjumping -fno-code-hoisting -DEMULATION_CHECK
EMULATION_CHECKED_KERNEL_OBJECTS := $(EMULATION_KERNEL_SOURCES:cuda/kernels/%.cu=$(EMULATION_BUILD)/checked/kernels/%.o)
EMULATION_CHECKER_OBJECTS := $(patsubst $(EMULATION_DIR)/%.cpp,$(EMULATION_BUILD)/%.o,$(wildcard $(EMULATION_DIR)/checker/*.cpp))

$(EMULATION_BUILD)/checked/kernels/%.o: cuda/kernels/%.cu $(EMULATION_DIR)/emulation.h
	@mkdir -p $(@D)
	$(CXX) $(EMULATION_CHECKED_CUFLAGS) $(EMULATION_CUFLAGS) $(CUDA_INCLUDES) -c $< -o $@

$(EMULATION_BUILD)/checked/tests/%.o: $(EMULATION_DIR)/tests/%.cu $(EMULATION_DIR)/emulation.h
	@mkdir -p $(@D)
	$(CXX) $(EMULATION_CHECKED_CUFLAGS) $(EMULATION_CUFLAGS) $(CUDA_INCLUDES) -c $< -o $@

$(EMULATION_BUILD)/checked/tests/%.o: $(EMULATION_DIR)/checker/tests/%.cu $(EMULATION_DIR)/emulation.h
	@mkdir -p $(@D)
	$(CXX) $(EMULATION_CHECKED_CUFLAGS) $(EMULATION_CUFLAGS) $(CUDA_INCLUDES) -c $< -o $@

# ---- what a driver and a profiler bring, for tests: see the files

EMULATION_TOOLS := $(BUILD)/emulated/tools/libnvidia-ml.so.1 $(BUILD)/emulated/tools/libnvtx_recorder.so
EMULATION_TOOL_CFLAGS := -std=c17 -D_GNU_SOURCE -O1 -g -fPIC -shared -Wall -Wextra -Wno-cast-function-type

$(BUILD)/emulated/tools/libnvidia-ml.so.1: $(EMULATION_DIR)/nvml.c
$(BUILD)/emulated/tools/libnvtx_recorder.so: $(EMULATION_DIR)/nvtx_recorder.c
$(EMULATION_TOOLS):
	@mkdir -p $(@D)
	$(CC) $(EMULATION_TOOL_CFLAGS) $(CUDA_INCLUDES) $< -o $@

# ---- the emulation's own tests

EMULATION_TEST := $(EMULATION_BUILD)/test_emulation
EMULATION_ORDERING := $(EMULATION_BUILD)/ordering
EMULATION_TSAN_ORDERING := $(EMULATION_BUILD)/tsan/ordering
EMULATION_TEST_CFLAGS := -std=c17 -D_GNU_SOURCE -O1 -g -Wall -Wextra -MMD -MP
EMULATION_TEST_SOURCES := $(EMULATION_DIR)/tests/support.c $(wildcard $(EMULATION_DIR)/tests/test_*.c)
EMULATION_TEST_OBJECTS := $(EMULATION_TEST_SOURCES:$(EMULATION_DIR)/tests/%.c=$(EMULATION_BUILD)/tests/%.o)

$(EMULATION_BUILD)/tests/%.o: $(EMULATION_DIR)/tests/%.c
	@mkdir -p $(@D)
	$(CC) $(EMULATION_TEST_CFLAGS) $(CUDA_INCLUDES) -c $< -o $@

$(EMULATION_BUILD)/tests/%.o: $(EMULATION_DIR)/tests/%.cu $(EMULATION_DIR)/emulation.h
	@mkdir -p $(@D)
	$(CXX) -O2 $(EMULATION_CUFLAGS) $(CUDA_INCLUDES) -c $< -o $@

$(EMULATION_BUILD)/tsan/tests/%.o: $(EMULATION_DIR)/tests/%.c
	@mkdir -p $(@D)
	$(CC) $(EMULATION_TEST_CFLAGS) $(EMULATION_TSAN_FLAGS) $(CUDA_INCLUDES) -c $< -o $@

$(EMULATION_BUILD)/tsan/tests/%.o: $(EMULATION_DIR)/tests/%.cu $(EMULATION_DIR)/emulation.h
	@mkdir -p $(@D)
	$(CXX) $(EMULATION_TSAN_FLAGS) $(EMULATION_CUFLAGS) $(CUDA_INCLUDES) -c $< -o $@

$(EMULATION_TEST): $(EMULATION_TEST_OBJECTS) $(EMULATION_BUILD)/tests/kernels.o $(EMULATION_LIB)
	$(CC) -rdynamic $^ -o $@ $(shell pkg-config --libs check 2>/dev/null || echo -lcheck -lsubunit -lrt) $(EMULATION_LDLIBS)

EMULATION_TEST_CHECKER := $(EMULATION_BUILD)/test_checker
$(EMULATION_BUILD)/tests/test_checker.o: $(EMULATION_DIR)/checker/tests/test_checker.c
	@mkdir -p $(@D)
	$(CC) $(EMULATION_TEST_CFLAGS) -I. $(CUDA_INCLUDES) -c $< -o $@

$(EMULATION_TEST_CHECKER): $(EMULATION_BUILD)/tests/test_checker.o $(EMULATION_BUILD)/tests/support.o \
    $(EMULATION_BUILD)/checked/tests/mistakes.o $(EMULATION_BUILD)/checked/tests/kernels.o $(EMULATION_CHECKER_OBJECTS) \
    $(EMULATION_LIB)
	$(CC) -rdynamic $^ -o $@ $(shell pkg-config --libs check 2>/dev/null || echo -lcheck -lsubunit -lrt) $(EMULATION_LDLIBS)

$(EMULATION_ORDERING): $(EMULATION_BUILD)/tests/ordering.o $(EMULATION_BUILD)/tests/kernels.o $(EMULATION_LIB)
	$(CC) -rdynamic $^ -o $@ $(EMULATION_LDLIBS)

$(EMULATION_TSAN_ORDERING): $(EMULATION_BUILD)/tsan/tests/ordering.o $(EMULATION_BUILD)/tsan/tests/kernels.o $(EMULATION_LIB)
	$(CC) -rdynamic -fsanitize=thread $^ -o $@ $(EMULATION_LDLIBS)

.PHONY: emulation emulation-test emulation-check emulation-check-tsan
emulation: $(EMULATION_LIB)
emulation-test: $(EMULATION_TEST)
emulation-check: $(EMULATION_TEST)
	$(EMULATION_TEST)

# Planted mistakes in the ordering of streams: each must be reported in every run, the correct program in none.
EMULATION_SEEDS ?= 1 2 3 4 5
emulation-check-tsan: $(EMULATION_TSAN_ORDERING)
	$(EMULATION_DIR)/tests/check_tsan.sh $(EMULATION_TSAN_ORDERING) $(EMULATION_SEEDS)

-include $(wildcard $(EMULATION_BUILD)/*.d $(EMULATION_BUILD)/kernels/*.d $(EMULATION_BUILD)/tests/*.d \
    $(EMULATION_BUILD)/checker/*.d $(EMULATION_BUILD)/checked/kernels/*.d $(EMULATION_BUILD)/checked/tests/*.d \
    $(EMULATION_BUILD)/tsan/kernels/*.d $(EMULATION_BUILD)/tsan/tests/*.d)
