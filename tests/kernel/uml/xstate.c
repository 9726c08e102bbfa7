/*
 * Preloaded into linux.uml: lets it run on hosts whose extended register state is larger than it was built for.
 *
 * User-mode Linux 6.1 writes a fixed 2696 bytes of that state back to its processes. The host accepts only its
 * own full size, which is larger where the CPU has AMX, so the very first process would die. Writing is turned
 * into: read everything, lay the known part over it, write everything.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef long (*ptrace_function)(enum __ptrace_request, pid_t, void *, void *);

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_function real;
    static unsigned char state[65536];
    va_list arguments;
    va_start(arguments, request);
    pid_t pid = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);

    if (!real)
        real = (ptrace_function)dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE) {
        const struct iovec *known = data;
        struct iovec full = {.iov_base = state, .iov_len = sizeof state};
        if (real(PTRACE_GETREGSET, pid, address, &full) == 0 && full.iov_len > known->iov_len) {
            memcpy(state, known->iov_base, known->iov_len);
            return real(PTRACE_SETREGSET, pid, address, &full);
        }
    }
    return real(request, pid, address, data);
}
