/* A plugged program that does nothing but step, on command, and times each step.
   usage: stepper COMMANDS RESULTS      two FIFOs: a line "verb count" in, the times in microseconds and a blank line out;
   verbs are ping, step (files by read and write), mapped (the program computes in the mapped files); "end 0" ends it */
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

int main(int argc, char **argv) {
    char verb[16];
    long count;
    plugml *p = plugml_attach();
    const plugml_table *table = plugml_table_at(p, 0);
    if (argc != 3 || !table) return fprintf(stderr, "stepper: run me plugged, with two FIFOs\n"), 2;
    char *g = calloc(1, table->nbytes), *w = calloc(1, table->nbytes);
    FILE *commands = fopen(argv[1], "r"), *results = fopen(argv[2], "w");
    if (!commands || !results || !g || !w) return perror("stepper"), 1;
    if (!plugml_grad(p, NULL) || !plugml_param(p, NULL)) return 1;
    while (fscanf(commands, "%15s %ld", verb, &count) == 2 && strcmp(verb, "end")) {
        for (long i = 0; i < count; i++) {
            double start = now_us();
            int done = strcmp(verb, "ping") == 0     ? plugml_ping(p)
                       : strcmp(verb, "mapped") == 0 ? plugml_step(p, NULL, NULL)
                                                     : plugml_step(p, g, w);
            if (done != 1) return 1;
            fprintf(results, "%.2f\n", now_us() - start);
        }
        fprintf(results, "\n");
        fflush(results);
    }
    return plugml_bye(p);
}
