/* Does what its arguments say, with the C client, and prints the outcome of each.  See test_clients_driven.py.
 *
 *     drive [-m] pull step:1 step:1:2.5 tick bye        -m: mapped files instead of read and write
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "plugml.h"

#ifndef REAL
#define REAL double
#define FORMAT "%.9g"
#define PRINTED double
#endif

static plugml *p;
static REAL *w, *g;
static size_t n = 4;
static int mapped;

static void tell(const char *op, int outcome)
{
    printf("%s %s %s clock=%ld done=%d w=", op, outcome > 0 ? "1" : outcome == 0 ? "0" : outcome == -PLUGML_STOP ? "S" : "E",
           plugml_code_name(plugml_code(p)), plugml_clock(p), plugml_done(p));
    for (size_t i = 0; i < n && i < 6; i++)
        printf("%s" FORMAT, i ? "," : "", (PRINTED)w[i]);
    printf("\n");
    fflush(stdout);
}

/* The gradient of an operation `name:constant[:weight]`: constant + i. */
static const char *fill(const char *op)
{
    const char *constant = strchr(op, ':'), *weight = constant ? strchr(constant + 1, ':') : NULL;

    for (size_t i = 0; i < n; i++)
        g[i] = (REAL)((constant ? (REAL)strtold(constant + 1, NULL) : 0) + (REAL)i);
    return weight ? weight + 1 : NULL;
}

static int is(const char *op, const char *name)
{
    size_t length = strlen(name);

    return !strncmp(op, name, length) && (!op[length] || op[length] == ':');
}

static void do_one(const char *op)
{
    const char *weight = fill(op), *language = getenv("LC_ALL");
    const void *from = mapped ? NULL : g;
    void *into = mapped ? NULL : w;
    int outcome = 0;

    if (weight)
        plugml_weight(p, strtod(weight, NULL));
    setlocale(LC_ALL, language ? language : "C"); /* The user's language may write a decimal comma. */
    if (is(op, "step"))
        outcome = plugml_step(p, from, into);
    else if (is(op, "push"))
        outcome = plugml_push(p, from);
    else if (is(op, "pull"))
        outcome = plugml_pull(p, into);
    else if (is(op, "pushpull"))
        outcome = plugml_pushpull(p, from, into);
    else if (is(op, "init"))
        outcome = plugml_init(p, mapped ? into : g);
    else if (is(op, "tick"))
        outcome = plugml_tick(p);
    else if (is(op, "ping"))
        outcome = plugml_ping(p);
    else if (is(op, "expect"))
        outcome = plugml_expect(p, sizeof(REAL) == 4 ? "f32" : (REAL)0.5 != 0 ? "f64" : "i64", strtoull(op + 7, NULL, 10));
    if (is(op, "init") && !mapped && outcome == 1)
        memcpy(w, g, n * sizeof *w);
    setlocale(LC_ALL, "C");
    tell(op, outcome);
}

/* The operations in the file of PLUGML_OPS (docs/conform.md) in the place of arguments; `first` are kept. */
static int read_ops(int first, char **argv, char **into, int most)
{
    static char text[4096];
    FILE *file = fopen(getenv("PLUGML_OPS"), "r");
    int count = 0;

    for (; count < first; count++)
        into[count] = argv[count];
    if (!file)
        exit(5);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    for (char *op = strtok(text, "\n"); op && count < most; op = strtok(NULL, "\n"))
        into[count++] = op;
    return count;
}

int main(int argc, char **argv)
{
    int first = 1;
    char *ops[64];

    if (argc > 1 && !strcmp(argv[1], "-m")) {
        mapped = 1;
        first = 2;
    }
    if (getenv("PLUGML_OPS")) {
        argc = read_ops(first, argv, ops, 64);
        argv = ops;
    }
    p = plugml_attach();
    if (plugml_tables(p))
        n = (size_t)plugml_table_at(p, 0)->count;
    w = mapped ? (REAL *)plugml_param(p, NULL) : (REAL *)malloc(n * sizeof *w);
    g = mapped ? (REAL *)plugml_grad(p, NULL) : (REAL *)malloc(n * sizeof *g);
    if (!w || !g)
        return plugml_bye(p) ? 1 : 3;
    for (size_t i = 0; i < n; i++)
        w[i] = (REAL)-1;
    for (int i = first; i < argc; i++) {
        const char *op = argv[i];

        if (is(op, "bye"))
            break;
        if (is(op, "who")) {
            printf("who plugged=%d main=%d worker=%d of=%d clock=%ld\n", plugml_plugged(p), plugml_main(p), plugml_worker(p),
                   plugml_workers(p), plugml_clock(p));
        } else if (is(op, "fork")) {
            pid_t child;

            fflush(stdout);
            child = fork();
            if (child == 0) {
                do_one("step:1");
                _exit(plugml_bye(p));
            }
            waitpid(child, NULL, 0);
        } else if (is(op, "close")) {
            for (int fd = 3; fd < 256; fd++)
                close(fd);
        } else if (is(op, "reuse")) { /* Our numbers belong to other files from now on, and those must stay empty. */
            for (int fd = 3; fd < 64; fd++)
                close(fd);
            for (int fd = 3; fd < 64; fd++) {
                FILE *file = tmpfile();

                if (!file)
                    return 4;
            }
        } else if (is(op, "die")) {
            fill(op);
            plugml_put(p, NULL, g);
            raise(SIGKILL);
        } else {
            do_one(op);
        }
    }
    if (!mapped) {
        free(w);
        free(g);
    }
    first = plugml_bye(p);
    return first;
}
