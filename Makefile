# dptrain: `make help` lists what can be made.
#
# Nothing here runs a compiler while the file is read, so `make help`, `make deps` and `make demo` work on a machine
# that has only make. Settings on the command line or in the environment beat the defaults:
# `make CC=clang BUILD=build/clang`.

MAKEFLAGS += --no-builtin-rules
ifneq ($(filter default undefined,$(origin CC)),)
CC := gcc
endif
BUILD    ?= build
PYTHON   ?= python3
CFLAGS   ?= -g
SANITIZE ?=
WERROR   ?=
DEBUG    ?=
FUZZER   ?=
CPU      ?=

# libdnnl is bound to gcc's OpenMP runtime. clang's -fopenmp would bring a second one into the process, so builds with
# clang, which serve its warnings, ignore the pragmas and link gcc's runtime: one thread per device in our own kernels.
ifneq ($(findstring clang,$(notdir $(firstword $(CC)))),)
OPENMP      := -Wno-unknown-pragmas
OPENMP_LIBS := -l:libgomp.so.1
else
OPENMP      := -fopenmp
OPENMP_LIBS := -fopenmp
endif
LIBS       ?= $(if $(filter 0,$(CPU)),,-ldnnl) -ljansson -ljpeg -lpng -lz $(OPENMP_LIBS) -lm -ldl -lpthread
CHECK_LIBS ?= -lcheck -lsubunit -lrt

# Where make install puts things: $(DESTDIR)$(PREFIX)/bin, lib, include and share. DESTDIR stages a package.
PREFIX  ?= /usr/local
DESTDIR ?=

INSTRUMENT      := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
# One set of objects for both libraries. Only what the public headers declare leaves the shared one (status.h).
VISIBILITY      := -fPIC -fvisibility=hidden
ALL_CPPFLAGS    := -D_GNU_SOURCE -Iinclude -Isrc -I. $(if $(filter 0,$(CPU)),-DDP_WITHOUT_CPU) $(CPPFLAGS)
ALL_CFLAGS      := -std=c17 $(if $(DEBUG),-O0,-O3) $(CFLAGS) -Wall -Wextra $(if $(WERROR),-Werror) $(VISIBILITY) $(OPENMP) $(INSTRUMENT)
ALL_LDFLAGS     := $(LDFLAGS) $(INSTRUMENT)

# CPU=0: no CPU devices, so no oneDNN.
SOURCES     := $(filter-out $(if $(filter 0,$(CPU)),src/cpu/%),$(wildcard src/*/*.c))
CLI_SOURCES := $(filter src/cli/%,$(SOURCES))
LIB_SOURCES := $(filter-out src/cli/%,$(SOURCES))
UNIT_TESTS  := $(wildcard tests/unit/test_*.c)
OPS_SOURCES := $(wildcard tests/ops/*.c)
CLI_TESTS   := $(wildcard tests/cli/*.c)
FAULT_TESTS := $(wildcard tests/faults/*.c)
FUZZ_TESTS  := $(wildcard tests/fuzz/fuzz_*.c)
C_SOURCES   := $(SOURCES) $(wildcard tests/unit/*.c) $(OPS_SOURCES) $(CLI_TESTS) $(FAULT_TESTS) $(wildcard tests/fuzz/*.c tests/demo/*.c) \
    tests/library/example.c $(wildcard bench/*.c)

objects        = $(patsubst %.c,$(BUILD)/%.o,$(1))
LIB           := $(BUILD)/libdptrain.a
VERSION       := $(subst ",,$(firstword $(filter "%",$(file <include/dptrain/status.h))))
SONAME        := libdptrain.so.$(firstword $(subst ., ,$(VERSION)))
SHARED_LIB    := $(BUILD)/libdptrain.so.$(VERSION)
BENCH_PROGRAMS := $(patsubst bench/%.c,$(BUILD)/bench/%,$(wildcard bench/*.c))
DEMO_PROGRAMS := $(patsubst tests/demo/%.c,$(BUILD)/demo/%,$(wildcard tests/demo/*.c))
FUZZ_PROGRAMS := $(patsubst tests/fuzz/%.c,$(BUILD)/tests/%,$(FUZZ_TESTS))
TEST_PROGRAMS := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(UNIT_TESTS)) \
    $(if $(OPS_SOURCES),$(BUILD)/tests/test_ops) $(if $(CLI_TESTS),$(BUILD)/tests/test_cli) \
    $(if $(FAULT_TESTS),$(BUILD)/tests/test_faults) $(FUZZ_PROGRAMS)

.PHONY: all fuzzers tests emulated help deps demo demo-segmentation quick check check-long gpu-check kernel-check gpu-bundle bench guide lint lint-format lint-rules lint-scripts format clean \
    install uninstall
.DELETE_ON_ERROR:
.SECONDARY:
.SUFFIXES:

all: $(BUILD)/dptrain $(if $(SANITIZE),,$(SHARED_LIB) cuda)
fuzzers: $(FUZZ_PROGRAMS)
tests: $(BUILD)/dptrain $(TEST_PROGRAMS) $(DEMO_PROGRAMS) $(BENCH_PROGRAMS)

help:
	@echo 'make            build $(BUILD)/dptrain'
	@echo 'make demo       install what is missing, build, train LeNet on Fashion-MNIST'
	@echo 'make demo-segmentation  draw cracks in pavement, train a U-Net on them: about three minutes'
	@echo 'make check      every test; installs what it needs'
	@echo 'make quick      the 90-second subset of it'
	@echo 'make check-long check, with repeats and wider runs under the sanitizers'
	@echo 'make gpu-check  on a machine with an NVIDIA GPU: the CUDA backend, every operation, parity with PyTorch'
	@echo 'make kernel-check  every access of the CUDA kernels looked at, on emulated GPUs; LONG=1: in every model'
	@echo 'make gpu-bundle  static libraries for make gpu-check on a machine that lacks them, into $(BUILD)/gpu-bundle'
	@echo 'make deps       install what building, demo and check need and is missing (Debian, as root)'
	@echo 'make emulated   build/emulated/dptrain: the program on emulated GPUs (DPTRAIN_EMULATED_GPUS=1..8)'
	@echo 'make tests      build every test program, without running any'
	@echo 'make install    into $(DESTDIR)$(PREFIX): program, libraries, headers, man page, completion; also make uninstall'
	@echo 'make bench      training speed of all devices against one (dptrain bench), and the cost of --trace'
	@echo 'make guide      bench/GUIDE.md, with what its commands print on this machine'
	@echo 'make lint       formatting, rules of the source tree, scripts'
	@echo 'make format     clang-format every source in place'
	@echo 'make clean      remove $(BUILD)'
	@echo
	@echo 'Variables (now): CC=$(CC) BUILD=$(BUILD) CFLAGS="$(CFLAGS)" CPPFLAGS LDFLAGS LIBS PYTHON=$(PYTHON)'
	@echo '  PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)   where make install puts things'
	@echo '  DEBUG=1                      no optimisation'
	@echo '  WERROR=1                     warnings are errors'
	@echo '  SANITIZE=address,undefined   or SANITIZE=thread; give these builds a BUILD of their own'
	@echo '  CPU=0                        no CPU devices, and no oneDNN'
	@echo '  CUDA=0 or CUDA=1             never, or an error where it cannot be built; CUDA_HOME, CUDNN_HOME, CUDA_ARCH'

# ---- building ----

# Two files hold what a build was made from, and change when it does: the flags, for every object, and the list of the
# library's sources, so that a source that was removed leaves the library too.
FLAGS := $(strip $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(LIBS))
ifneq ($(file <$(BUILD)/flags),$(FLAGS))
.PHONY: $(BUILD)/flags
endif
ifneq ($(file <$(BUILD)/members),$(LIB_SOURCES))
.PHONY: $(BUILD)/members
endif
$(BUILD)/flags: export TEXT = $(FLAGS)
$(BUILD)/members: export TEXT = $(LIB_SOURCES)
$(BUILD)/flags $(BUILD)/members:
	@mkdir -p $(@D)
	@printf '%s\n' "$$TEXT" >$@

# Compiler, headers and libraries are looked for once per set of flags, before the first source is compiled. `cuda`:
# what the CUDA backend needs beside its toolkit.
NEEDS_TO_BUILD = build $(if $(CUDA_AVAILABLE),cuda)
PROBE = CPU='$(CPU)' CC='$(CC)' CPPFLAGS='$(CPPFLAGS)' LDFLAGS='$(LDFLAGS)' PYTHON='$(PYTHON)' tests/tools/deps.sh
$(BUILD)/probed: $(BUILD)/flags
	@$(PROBE) --probe $(NEEDS_TO_BUILD)
	@touch $@

$(BUILD)/%.o: %.c $(BUILD)/flags | $(BUILD)/probed
	@mkdir -p $(@D)
	@echo '  CC   $<'
	@$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

$(LIB): $(call objects,$(LIB_SOURCES)) $(BUILD)/members
	@echo '  AR   $@'
	@rm -f $@
	@ar rcs $@ $(filter %.o,$^)

# Beside it the names that programs start with (the soname) and are linked with. The library lists its own symbols;
# what it uses of others must be there when it is linked.
$(SHARED_LIB): $(call objects,$(LIB_SOURCES)) $(BUILD)/members
	@echo '  LINK $@'
	@$(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,$(SONAME) -Wl,-z,defs $(filter %.o,$^) $(LIBS) -o $@
	@ln -sf $(@F) $(BUILD)/$(SONAME)
	@ln -sf $(@F) $(BUILD)/libdptrain.so

link = @mkdir -p $(@D); echo '  LINK $@'; $(CC) $(ALL_LDFLAGS) $(filter %.o,$^) $(LIB) $(1) $(LIBS) -o $@

# A CUDA backend of an earlier build may not fit a program that is linked without one.
$(BUILD)/dptrain: $(call objects,$(CLI_SOURCES)) $(LIB)
	$(call link)
	$(if $(CUDA_AVAILABLE),,@rm -f $(CUDA_LIB))
$(BUILD)/tests/test_options: $(call objects,$(filter-out src/cli/main.c,$(CLI_SOURCES)))
$(BUILD)/tests/test_ops: $(call objects,$(OPS_SOURCES)) $(LIB)
	$(call link,$(CHECK_LIBS))
$(BUILD)/tests/test_cli: $(call objects,$(CLI_TESTS)) $(LIB) | $(BUILD)/tests/kill_at.so
	$(call link,$(CHECK_LIBS))
# Preloaded into the program by its tests; never built with a sanitizer, which would want to come first.
$(BUILD)/tests/kill_at.so: tests/cli/preload/kill_at.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -D_GNU_SOURCE $(filter-out $(OPENMP) $(INSTRUMENT) $(VISIBILITY),$(ALL_CFLAGS)) -shared -fPIC $< -ldl -o $@
$(BUILD)/demo/%: $(BUILD)/tests/demo/%.o $(LIB)
	$(call link)
$(BENCH_PROGRAMS): $(BUILD)/bench/%: $(BUILD)/bench/%.o $(LIB)
	$(call link)
$(BUILD)/tests/test_%: $(BUILD)/tests/unit/test_%.o $(LIB)
	$(call link,$(CHECK_LIBS))
# The system's calls that tests/faults lets fail: only in this program, and only where our own code makes them.
FAULTY := calloc realloc aligned_alloc free json_loads json_loadb json_dumps inflateInit2_ pthread_create pthread_join \
    pthread_mutex_init pthread_cond_init open pread fstat write fsync rename mkdir flock
comma  := ,
$(BUILD)/tests/test_faults: $(call objects,$(FAULT_TESTS) $(filter-out src/cli/main.c,$(CLI_SOURCES))) $(LIB)
	$(call link,$(FAULTY:%=-Wl$(comma)--wrap=%) $(CHECK_LIBS))
# FUZZER=-fsanitize=fuzzer links libFuzzer, for builds with CC=clang SANITIZE=fuzzer-no-link,...; otherwise the corpus is
# all that these programs run.
$(BUILD)/tests/fuzz_options: $(call objects,$(filter-out src/cli/main.c,$(CLI_SOURCES)))
$(BUILD)/tests/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/fuzz.o \
    $(if $(FUZZER),,$(BUILD)/tests/fuzz/replay.o) $(LIB)
	$(call link,$(FUZZER))

-include $(patsubst %.c,$(BUILD)/%.d,$(C_SOURCES))

# ---- CUDA, and its emulation for tests ----

include tests/cuda_emulation/emulation.mk
include cuda/cuda.mk
$(CUDA_BACKEND_OBJECTS) $(CUDA_BASE_OBJECTS) $(CUDA_KERNEL_OBJECTS) $(CUDA_OPS_OBJECTS): | $(BUILD)/probed
$(EMULATION_OBJECTS) $(EMULATION_KERNEL_OBJECTS) $(EMULATION_CHECKED_KERNEL_OBJECTS) $(EMULATION_CHECKER_OBJECTS) $(EMULATION_TEST_OBJECTS): | $(BUILD)/probed

# The normal program beside a CUDA backend that runs on emulated GPUs: --device cuda with DPTRAIN_EMULATED_GPUS=N.
emulated: $(if $(EMULATION_AVAILABLE),$(BUILD)/emulated/dptrain $(CUDA_EMULATED_LIB) $(EMULATION_TOOLS),emulated-missing)
.PHONY: emulated-missing
emulated-missing:
	@echo 'the headers of CUDA, cuBLAS and cuDNN are not there: set CUDA_HOME' >&2; exit 1
# A program looks for the backend beside itself.
$(BUILD)/emulated/dptrain: $(BUILD)/dptrain | $(CUDA_EMULATED_LIB)
	@mkdir -p $(@D)
	@cp $< $@
$(BUILD)/checked/dptrain: $(BUILD)/dptrain | $(CUDA_CHECKED_LIB)
	@mkdir -p $(@D)
	@cp $< $@
$(BUILD)/emulated/test_%: $(BUILD)/tests/test_% | $(CUDA_EMULATED_LIB)
	@mkdir -p $(@D)
	@cp $< $@
$(BUILD)/test_%: $(BUILD)/tests/test_% | $(CUDA_LIB)
	@cp $< $@
$(BUILD)/emulated/example: $(BUILD)/tests/library/example.o $(LIB) | $(CUDA_EMULATED_LIB)
	$(call link)

# ---- using ----

deps:
	@$(PROBE) $(NEEDS_TO_BUILD) demo test check

# Builds in a second make, after the compiler has arrived; on all cores unless -j was given.
demo:
	@$(PROBE) $(NEEDS_TO_BUILD) demo
	@$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$$(nproc)) all
	@$(BUILD)/dptrain train --model lenet --data fashion-mnist --optimizer sgd --lr 0.05 --momentum 0.9 \
	    --weight-decay 0 --batch-size 128 --n-epoch 5 --lr-step 0 --model-dir $(BUILD)/demo --overwrite

demo-segmentation:
	@$(PROBE) $(NEEDS_TO_BUILD)
	@$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$$(nproc)) all $(DEMO_PROGRAMS)
	@tests/demo/segmentation.sh $(BUILD)

# The short form is part of make check; with LONG=1 every model, and every operation.
kernel-check:
	@MAKE='$(MAKE_COMMAND)' BUILD='$(BUILD)' PYTHON='$(PYTHON)' tests/tools/kernel_check.sh $(if $(LONG),--long)

quick check check-long:
	@MAKE='$(MAKE_COMMAND)' BUILD='$(BUILD)' PYTHON='$(PYTHON)' tests/tools/check.sh $@

# The same script on emulated GPUs with EMULATED=1.
gpu-check:
	@MAKE='$(MAKE_COMMAND)' BUILD='$(BUILD)' PYTHON='$(PYTHON)' tests/tools/gpu_check.sh $(if $(EMULATED),--emulated)

# What gpu-check needs beside gcc and CUDA, for a machine where nothing can be installed: copy the folder there.
gpu-bundle:
	@CC='$(CC)' CPPFLAGS='$(CPPFLAGS)' tests/tools/gpu_bundle.sh '$(BUILD)/gpu-bundle'

# ---- installing ----

MANUAL     := $(BUILD)/dptrain.1
COMPLETION := src/cli/completion.bash
HEADERS    := $(wildcard include/dptrain/*.h)
DESTINATION = $(DESTDIR)$(PREFIX)
INSTALLED   = bin/dptrain lib/libdptrain.a lib/libdptrain.so.$(VERSION) lib/$(SONAME) lib/libdptrain.so \
    lib/libdptrain_cuda.so lib/pkgconfig/dptrain.pc share/man/man1/dptrain.1 \
    share/bash-completion/completions/dptrain $(HEADERS)

$(MANUAL): src/cli/manual.sh $(BUILD)/dptrain
	@echo '  MAN  $@'
	@src/cli/manual.sh $(BUILD)/dptrain >$@

define PKG_CONFIG_FILE
prefix=$(PREFIX)
libdir=$${prefix}/lib
includedir=$${prefix}/include

Name: dptrain
Description: DataParallel training on all devices of one machine
Version: $(VERSION)
Cflags: -I$${includedir}
Libs: -L$${libdir} -ldptrain
Libs.private: $(LIBS)
endef

install: export TEXT = $(PKG_CONFIG_FILE)
install: all $(SHARED_LIB) $(MANUAL)
	@install -d '$(DESTINATION)/bin' '$(DESTINATION)/lib/pkgconfig' '$(DESTINATION)/include/dptrain' '$(DESTINATION)/share/man/man1' \
	    '$(DESTINATION)/share/bash-completion/completions'
	@install -m 755 $(BUILD)/dptrain '$(DESTINATION)/bin/dptrain'
	@install -m 644 $(LIB) $(SHARED_LIB) '$(DESTINATION)/lib'
	@ln -sf libdptrain.so.$(VERSION) '$(DESTINATION)/lib/$(SONAME)'
	@ln -sf libdptrain.so.$(VERSION) '$(DESTINATION)/lib/libdptrain.so'
ifneq ($(CUDA_AVAILABLE),)
	@install -m 644 $(CUDA_LIB) '$(DESTINATION)/lib'
else
	@rm -f '$(DESTINATION)/lib/libdptrain_cuda.so'
endif
	@install -m 644 $(HEADERS) '$(DESTINATION)/include/dptrain'
	@install -m 644 $(MANUAL) '$(DESTINATION)/share/man/man1/dptrain.1'
	@install -m 644 $(COMPLETION) '$(DESTINATION)/share/bash-completion/completions/dptrain'
	@printf '%s\n' "$$TEXT" >'$(DESTINATION)/lib/pkgconfig/dptrain.pc'
	@chmod 644 '$(DESTINATION)/lib/pkgconfig/dptrain.pc'
	@echo 'installed in $(DESTINATION)'

# Directories that others use too stay.
uninstall:
	@rm -f $(foreach file,$(INSTALLED),'$(DESTINATION)/$(file)')
	@rmdir '$(DESTINATION)/include/dptrain' 2>/dev/null || :
	@echo 'removed from $(DESTINATION)'

bench: $(BUILD)/dptrain $(BENCH_PROGRAMS)
	@for model in mlp lenet; do $(BUILD)/dptrain bench --model $$model || exit 1; done
	@$(BUILD)/bench/trace_overhead $(BUILD)/bench/trace.json

guide: $(BUILD)/dptrain
	@$(PYTHON) bench/guide.py bench/GUIDE.md $(BUILD)/dptrain

# ---- keeping order ----

FORMATTED := $(wildcard include/dptrain/*.h src/*/*.[ch] tests/*/*.[ch] tests/*/*.cpp bench/*.c cuda/*.[ch] cuda/*/*.cu)
SCRIPTS   := $(wildcard tests/tools/*.sh tests/library/*.sh tests/report/*.sh tests/demo/*.sh src/cli/*.sh src/cli/*.bash) .ci/run

lint: lint-format lint-rules lint-scripts
lint-format:
	@clang-format --dry-run -Werror $(FORMATTED)
lint-rules:
	@tests/tools/lint.sh
lint-scripts:
	@shellcheck -x $(SCRIPTS)

format:
	@clang-format -i $(FORMATTED)

clean:
	@rm -rf $(BUILD)
