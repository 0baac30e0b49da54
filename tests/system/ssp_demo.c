/* Counts its own clocks in a table that all workers share, and checks at every pull what the slack allows to see.
 *
 *     ssp_demo CLOCKS SLACK SEED [END]      SLACK below 0: no bound; END: say bye after so many clocks
 *
 * Element k holds the clocks that worker k has pushed.  A worker that has finished c clocks must read its own count as c,
 * every other one as at least c - SLACK (or that worker's END, given in ENDS="3:300 5:20"), and, since nobody runs more
 * than SLACK ahead of the slowest, as at most c + SLACK + 1.  (Bounds as in Ho et al., NIPS 2013.)
 */
#include "plugml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORKERS 64

static unsigned long long state;

static unsigned draw(unsigned below) /* an LCG: the same sleeps in every run of one seed */
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(state >> 33) % below;
}

int main(int argc, char **argv)
{
    long clocks = atol(argv[1]), slack = atol(argv[2]), end = argc > 4 ? atol(argv[4]) : clocks;
    long ends[WORKERS], violations = 0, most_behind = 0, most_ahead = 0;
    int64_t g[WORKERS] = {0}, w[WORKERS] = {0};
    plugml *p = plugml_attach();
    int me = plugml_worker(p), workers = plugml_workers(p);

    if (p == NULL || workers > WORKERS || plugml_expect(p, "i64", (uint64_t)workers) < 0)
        return 1;
    state = (unsigned long long)atol(argv[3]) * 1000 + (unsigned)me;
    for (int k = 0; k < workers; k++)
        ends[k] = clocks;
    const char *text = getenv("ENDS");
    for (; text != NULL && *text != '\0'; text = strchr(text, ' ') ? strchr(text, ' ') + 1 : NULL) {
        int worker;
        long last;
        if (sscanf(text, "%d:%ld", &worker, &last) == 2 && worker >= 0 && worker < workers)
            ends[worker] = last;
    }

    g[me] = 1;
    for (long clock = plugml_resume(p, w); clock < end; clock++) {
        if (me == 0)
            usleep(draw(1500)); /* one straggler */
        else if (draw(20) == 0)
            usleep(draw(4000)); /* and everybody's bad moments */
        if (plugml_step(p, g, w) != 1)
            return 1;
        long done = clock + 1;
        for (int k = 0; k < workers; k++) {
            long seen = (long)w[k], least = slack < 0 ? 0 : done - slack;
            if (least > ends[k])
                least = ends[k];
            if (k == me ? seen != done : seen < least || (slack >= 0 && seen > done + slack + 1)) {
                if (violations++ < 5)
                    fprintf(stderr, "worker %d after %ld clocks reads %ld of worker %d\n", me, done, seen, k);
            }
            if (k != me && seen < ends[k] && done - seen > most_behind)
                most_behind = done - seen;
            if (k != me && seen - done > most_ahead)
                most_ahead = seen - done;
        }
    }
    printf("violations %ld behind %ld ahead %ld\n", violations, most_behind, most_ahead);
    return plugml_bye(p);
}
