/* A counter, to find out whether a push is ever lost or doubled: whole numbers that depend on worker and clock.
 *
 *     cc -O2 -I ../../clients/c count.c ../../clients/c/plugml.c -o count
 *     plugml run -n 3 --table w=1000,dtype=i64,optimizer=add -- ./count STEPS [MILLISECONDS]
 *
 * In clock c worker k pushes (c + 1) (k + 1) + i to element i.  At the end it prints its clock and the first and last sum.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "plugml.h"

int main(int argc, char **argv)
{
    long steps = argc > 1 ? atol(argv[1]) : 10, wait = argc > 2 ? atol(argv[2]) : 0, step;
    struct timespec pause = {wait / 1000, wait % 1000 * 1000000};
    plugml *p = plugml_attach();
    int64_t n = plugml_tables(p) ? (int64_t)plugml_table_at(p, 0)->count : 4, worker = plugml_worker(p);
    int64_t *w = (int64_t *)calloc((size_t)n, sizeof *w), *g = (int64_t *)calloc((size_t)n, sizeof *g);

    if (!w || !g || plugml_expect(p, "i64", (uint64_t)n) < 0)
        return 1;
    for (step = plugml_resume(p, w); step < steps && !plugml_done(p); step++) {
        if (wait)
            nanosleep(&pause, NULL);
        for (int64_t i = 0; i < n; i++)
            g[i] = (step + 1) * (worker + 1) + i;
        if (!plugml_step(p, g, w))
            for (int64_t i = 0; i < n; i++)
                w[i] += g[i];
    }
    printf("count worker=%" PRId64 " clock=%ld first=%" PRId64 " last=%" PRId64 "\n", worker, step, w[0], w[n - 1]);
    free(w);
    free(g);
    return plugml_bye(p);
}
