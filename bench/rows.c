/* A plugged program that pushes and pulls rows of a sparse table, on command, and times each step.
   usage: rows COMMANDS RESULTS      a line "verb count rows" in, the times in microseconds and a blank line out;
   verbs are new (other random keys in each step) and same (those of the last step); "end 0 0" ends it */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../clients/c/plugml.h"

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static uint64_t mixed(uint64_t z) { /* splitmix64 */
    z += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

int main(int argc, char **argv) {
    char verb[16];
    long count, rows;
    uint64_t drawn = 0;
    plugml *p = plugml_attach();
    const plugml_table *table = plugml_table_named(p, "e");
    if (argc != 3 || !table) return fprintf(stderr, "rows: run me plugged, with two FIFOs\n"), 2;
    uint64_t *keys = calloc(table->batch, sizeof *keys);
    float *g = calloc(table->batch, table->width * 4), *w = calloc(table->batch, table->width * 4);
    FILE *commands = fopen(argv[1], "r"), *results = fopen(argv[2], "w");
    if (!commands || !results || !keys || !g || !w) return perror("rows"), 1;
    for (uint64_t i = 0; i < table->batch * table->width; i++) g[i] = 1e-3f;
    while (fscanf(commands, "%15s %ld %ld", verb, &count, &rows) == 3 && strcmp(verb, "end")) {
        for (long i = 0; i < count; i++) {
            if (strcmp(verb, "new") == 0)
                for (long k = 0; k < rows; k++) keys[k] = mixed(++drawn);
            double start = now_us();
            plugml_rows(p, "e", (size_t)rows, keys, g);
            plugml_want(p, "e", (size_t)rows, keys, w);
            if (plugml_step(p, NULL, NULL) != 1) return 1;
            fprintf(results, "%.2f\n", now_us() - start);
        }
        fprintf(results, "\n");
        fflush(results);
    }
    return plugml_bye(p);
}
