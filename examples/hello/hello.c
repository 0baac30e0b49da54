/* The smallest trainer: push a constant gradient, print what the model has become.
 *
 *     cc -O2 -I ../../clients/c hello.c ../../clients/c/plugml.c -o hello
 *     ./hello STEPS [SECONDS] [CONSTANT]            alone: four numbers, lr 0.1
 *     plugml run -n 2 --table w=4,lr=0.1 -- ./hello 10
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "plugml.h"

#ifndef REAL
#define REAL float
#define DTYPE "f32"
#endif

int main(int argc, char **argv)
{
    long steps = argc > 1 ? atol(argv[1]) : 10;
    double seconds = argc > 2 ? atof(argv[2]) : 0;
    REAL constant = (REAL)(argc > 3 ? atof(argv[3]) : 1);
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    plugml *p = plugml_attach();
    size_t n = plugml_tables(p) ? (size_t)plugml_table_at(p, 0)->count : 4;
    REAL *w = (REAL *)calloc(n, sizeof *w), *g = (REAL *)calloc(n, sizeof *g);

    if (!w || !g || plugml_expect(p, DTYPE, n) < 0)
        return 1;
    for (long step = plugml_resume(p, w); step < steps && !plugml_done(p); step++) {
        if (seconds > 0)
            nanosleep(&pause, NULL);
        for (size_t i = 0; i < n; i++)
            g[i] = constant;
        if (!plugml_step(p, g, w))
            for (size_t i = 0; i < n; i++)
                w[i] -= (REAL)0.1 * g[i];
    }
    printf("clock=%ld w=", plugml_plugged(p) ? plugml_clock(p) : steps);
    for (size_t i = 0; i < n && i < 8; i++)
        printf("%s%.9g", i ? "," : "", (double)w[i]);
    printf("\n");
    free(w);
    free(g);
    return plugml_bye(p);
}
