// How the emulation speaks: failures on stderr, figures in the file named by DPTRAIN_EMULATED_REPORT.
#include "internal.h"

#include <cstdarg>
#include <cstdio>
#include <fcntl.h>

extern "C" void emulation_fail(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    // Not through stdio: this may be a signal handler.
    char line[1100];
    int length = snprintf(line, sizeof line, "CUDA emulation: error: %s\n", text);
    ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    (void)written;
    _exit(emulation::failure_status);
}

namespace emulation
{

// One line of JSON for each physical GPU, appended: a run and the processes that it starts share the file.
// Each line is one write, so lines of two processes do not mix.
void write_report_at_exit()
{
    check_canaries_of_live_allocations();
    const std::string &path = settings().report_path;
    if (path.empty())
        return;
    int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0)
        emulation_fail("cannot write DPTRAIN_EMULATED_REPORT=%s", path.c_str());
    Guard guard(runtime().mutex);
    for (int gpu = 0; gpu < settings().gpus; gpu++) {
        const Figures &figures = runtime().figures[gpu];
        char line[512];
        int length =
            snprintf(line, sizeof line,
                     "{\"process\": %d, \"gpu\": %d, \"contexts\": %d, \"allocations\": %llu, "
                     "\"live_allocations\": %llu, "
                     "\"peak_bytes\": %llu, \"kernels\": %llu, \"copies\": %llu, \"peer_copies\": %llu, "
                     "\"direct_copies\": %llu, "
                     "\"peers_enabled\": %llu}\n",
                     (int)getpid(), gpu, figures.contexts, (unsigned long long)figures.allocations,
                     (unsigned long long)figures.live_allocations, (unsigned long long)figures.peak_bytes,
                     (unsigned long long)figures.kernels, (unsigned long long)figures.copies,
                     (unsigned long long)figures.peer_copies, (unsigned long long)figures.direct_copies,
                     (unsigned long long)figures.peers_enabled);
        if (write(file, line, (size_t)length) != length)
            emulation_fail("cannot write DPTRAIN_EMULATED_REPORT=%s", path.c_str());
    }
    close(file);
}

} // namespace emulation
