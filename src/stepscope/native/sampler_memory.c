/* Reads of memory that other threads change and free meanwhile, and of other processes.
 *
 * Every read is a system call: a bad address is an error, where a plain load would end the program. A process may read
 * itself without any privilege; only a seccomp filter can forbid it, and then /proc/self/mem takes its place.
 */
#define _GNU_SOURCE
#if defined(__linux__) && defined(__x86_64__)
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sampler.h"

/* No object lies below this address. */
enum { LOWEST = 4096 };

int64_t ss_at[SS_OFFSETS];
static int memory = -1;

/* Opens the way to this process's memory: by a file if `plain` is 0 and the system call is refused. 0, or an errno. */
int ss_memory_open(int plain) {
    char from = 1, to = 0;
    ss_memory_close();
    if (!plain && !ss_read(getpid(), &to, (uint64_t)&from, 1)) return 0;
    memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    return memory < 0 ? errno : 0;
}

void ss_memory_close(void) {
    if (memory >= 0) close(memory);
    memory = -1;
}

int ss_read_pieces(int pid, struct iovec *to, struct iovec *from, int count) {
    size_t wanted = 0;
    for (int i = 0; i < count; i++) wanted += to[i].iov_len;
    if (memory < 0 || pid != getpid())
        return syscall(SYS_process_vm_readv, pid, to, (long)count, from, (long)count, 0L) == (ssize_t)wanted ? 0 : -1;
    for (int i = 0; i < count; i++)
        if (pread(memory, to[i].iov_base, to[i].iov_len, (off_t)from[i].iov_base) != (ssize_t)to[i].iov_len) return -1;
    return 0;
}

int ss_read(int pid, void *to, uint64_t from, size_t size) {
    struct iovec into = {to, size}, of = {(void *)from, size};
    if (from < LOWEST) return -1;
    return ss_read_pieces(pid, &into, &of, 1);
}
#else
typedef int ss_no_sampler_memory;
#endif
