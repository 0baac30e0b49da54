/* A bare FIFO ping-pong: two processes, two FIFOs, one byte there and 64 back.  Prints microseconds, one a line.
   usage: fifo DIRECTORY COUNT */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    char there[4096], back[4096], record[64] = {0};
    if (argc != 3) return 2;
    snprintf(there, sizeof there, "%s/there", argv[1]);
    snprintf(back, sizeof back, "%s/back", argv[1]);
    if (mkfifo(there, 0600) || mkfifo(back, 0600)) return perror("mkfifo"), 1;
    int to = open(there, O_RDWR), from = open(back, O_RDWR);
    if (to < 0 || from < 0) return perror("open"), 1;
    long count = atol(argv[2]);
    pid_t child = fork();
    if (child == 0) {
        for (long i = 0; i < count; i++)
            if (read(to, record, 1) != 1 || write(from, record, 64) != 64) _exit(1);
        _exit(0);
    }
    for (long i = 0; i < count; i++) {
        double start = now_us();
        if (write(to, "\n", 1) != 1 || read(from, record, 64) != 64) return 1;
        printf("%.2f\n", now_us() - start);
    }
    waitpid(child, NULL, 0);
    unlink(there);
    unlink(back);
    return 0;
}
