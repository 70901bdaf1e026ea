/* System calls that a rehearsal refuses: prints a line for each, with the name of its error, its signal, or "done". */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define VSOCK 40
#define LINK 8
#define USERS_KEYRING -4
#define OWN_KEYRING -2

static char ring[4096];

static long vsock(void) { return socket(VSOCK, SOCK_STREAM, 0); }
static long add_key(void) { return syscall(SYS_add_key, "user", "deployer-attack", "x", 1, OWN_KEYRING); }
static long request_key(void) { return syscall(SYS_request_key, "user", "deployer-attack", NULL, OWN_KEYRING); }
static long keyctl(void) { return syscall(SYS_keyctl, LINK, USERS_KEYRING, OWN_KEYRING, 0, 0); }
static long io_uring(void) { return syscall(425, 1, ring); }

#ifdef __x86_64__
static long call32(long number, long first, long second, long third) {
    long answer;
    __asm__ volatile("int $0x80"
                     : "=a"(answer)
                     : "a"(number), "b"(first), "c"(second), "d"(third)
                     : "memory", "r8", "r9", "r10", "r11");
    if (answer >= 0 || answer < -4095) return answer;
    errno = -answer;
    return -1;
}
static long vsock32(void) { return call32(359, VSOCK, SOCK_STREAM, 0); }
static long keyctl32(void) { return call32(288, LINK, USERS_KEYRING, OWN_KEYRING); }
static long pid32(void) { return call32(20, 0, 0, 0); }
static long vsock_x32(void) { return syscall(0x40000000 | SYS_socket, VSOCK, SOCK_STREAM, 0); }
#endif

static const struct {
    const char *name;
    long (*attempt)(void);
} ATTEMPTS[] = {
    {"vsock", vsock},       {"add_key", add_key},   {"request_key", request_key}, {"keyctl", keyctl},
    {"io_uring", io_uring},
#ifdef __x86_64__
    {"vsock32", vsock32},   {"keyctl32", keyctl32}, {"pid32", pid32},             {"vsock_x32", vsock_x32},
#endif
};

int main(void) {
    for (unsigned each = 0; each < sizeof ATTEMPTS / sizeof *ATTEMPTS; each++) {
        fflush(stdout);
        if (fork() == 0) _exit(ATTEMPTS[each].attempt() < 0 ? errno : 0);
        int status;
        wait(&status);
        printf("%s: %s\n", ATTEMPTS[each].name,
               WIFSIGNALED(status)     ? sigabbrev_np(WTERMSIG(status))
               : WEXITSTATUS(status)   ? strerrorname_np(WEXITSTATUS(status))
                                       : "done");
    }
    return 0;
}
