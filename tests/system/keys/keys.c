/* Pushes i + 1 to the i-th of many keys, again and again; then reads them all: keys KEYS.txt PUSHES */
#include "plugml.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t n = 0, room = 1 << 16;
    uint64_t *rows = malloc(room * sizeof *rows);
    double *g = malloc(room * sizeof *g), *w = malloc(room * sizeof *w);
    FILE *file = fopen(argv[1], "r");
    long pushes = atol(argv[2]);
    plugml *p = plugml_attach();

    if (!rows || !g || !w || !file || !p)
        return 2;
    while (n < room && fscanf(file, "%" SCNu64, &rows[n]) == 1) {
        g[n] = (double)n + 1;
        n++;
    }
    fclose(file);
    for (long push = 0; push < pushes; push++) {
        plugml_rows(p, "e", n, rows, g);
        plugml_want(p, "e", n, rows, w);
        if (plugml_step(p, NULL, NULL) != 1)
            return 1;
        for (size_t i = 0; i < n; i++)
            if (w[i] < (double)(push + 1) * g[i])
                return 3; /* an own push is missing */
    }
    free(rows);
    free(g);
    free(w);
    return plugml_bye(p);
}
