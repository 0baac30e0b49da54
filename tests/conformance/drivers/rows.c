/* Does what its arguments say with rows of sparse tables, and prints the outcome of each.  See rows.py. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "plugml.h"

#ifdef nanosleep /* -Dnanosleep=...: the library's pauses take no time */
int nanosleep(const struct timespec *pause, struct timespec *rest)
{
    (void)rest;
    return pause->tv_sec < 2 ? 0 : -1;
}
#endif

enum { SECTIONS = 16, WORDS = 4096 };

struct wanted {
    const plugml_table *table;
    size_t count;
    void *w;
};

static plugml *p;
static struct wanted wanted[SECTIONS];
static int wanted_count;
static void *lent[4 * SECTIONS]; /* what the next request reads and fills */
static int lent_count;

static void *lend(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);

    if (!memory || lent_count == 4 * SECTIONS)
        exit(4);
    return lent[lent_count++] = memory;
}

static void put(const plugml_table *table, void *to, size_t at, double value)
{
    if (!strcmp(table->dtype, "f32"))
        ((float *)to)[at] = (float)value;
    else if (!strcmp(table->dtype, "f64"))
        ((double *)to)[at] = value;
    else
        ((int64_t *)to)[at] = (int64_t)value;
}

static double get(const plugml_table *table, const void *from, size_t at)
{
    if (!strcmp(table->dtype, "f32"))
        return (double)((const float *)from)[at];
    if (!strcmp(table->dtype, "f64"))
        return ((const double *)from)[at];
    return (double)((const int64_t *)from)[at];
}

/* The keys `a,b,c` as the table's index has them. */
static const void *keys_of(const plugml_table *table, char *text, size_t *count)
{
    const char **strings = (const char **)lend(WORDS * sizeof *strings);
    uint64_t *long_numbers = (uint64_t *)lend(WORDS * sizeof *long_numbers);
    uint32_t *numbers = (uint32_t *)lend(WORDS * sizeof *numbers);
    char *copy = (char *)lend(strlen(text) + 1), *word;

    strcpy(copy, text);
    *count = 0;
    for (word = strtok(copy, ","); word && *count < WORDS; word = strtok(NULL, ",")) {
        strings[*count] = word;
        long_numbers[*count] = strtoull(word, NULL, 10);
        numbers[*count] = (uint32_t)long_numbers[*count];
        ++*count;
    }
    if (table && !strcmp(table->index, "str"))
        return strings;
    return table && !strcmp(table->index, "u32") ? (const void *)numbers : (const void *)long_numbers;
}

static void name_rows(char *table_name, char *keys, const char *constant)
{
    const plugml_table *table = plugml_table_named(p, table_name);
    size_t count, width = table && table->width ? (size_t)table->width : 1;
    const void *rows = keys_of(table, keys, &count);
    void *numbers = lend(count * width * 8);

    if (constant) {
        for (size_t i = 0; table && i < count * width; i++)
            put(table, numbers, i, strtod(constant, NULL) + 10 * (double)(i / width) + (double)(i % width));
        plugml_rows(p, table_name, count, rows, numbers);
    } else if (plugml_want(p, table_name, count, rows, numbers) > 0 && wanted_count < SECTIONS) {
        wanted[wanted_count].table = table;
        wanted[wanted_count].count = count;
        wanted[wanted_count++].w = numbers;
    }
}

static void tell(const char *op, int outcome)
{
    printf("%s %s %s clock=%ld stopped=%d lag=%ld", op, outcome > 0 ? "1" : outcome == 0 ? "0" : outcome == -PLUGML_STOP ? "S" : "E",
           plugml_code_name(plugml_code(p)), plugml_clock(p), plugml_stopped(p), plugml_lag(p));
}

static void show(const plugml_table *table, const void *from, size_t count, size_t width, const char *name)
{
    printf(" %s=", name);
    for (size_t i = 0; i < count; i++)
        printf("%s%.9g", i == 0 ? "" : i % width ? "," : ";", get(table, from, i));
}

/* push, pull, pushpull, step or async; `rest` NULL: without the dense tables. */
static void do_request(const char *op, const char *verb, const char *rest)
{
    const plugml_table *dense = plugml_table_named(p, NULL);
    void *g = NULL, *w = NULL;
    int outcome = 0, pulls = strcmp(verb, "push") && strcmp(verb, "async");

    if (rest && dense) {
        w = lend((size_t)dense->nbytes);
        g = *rest ? lend((size_t)dense->nbytes) : NULL;
        for (size_t i = 0; g && i < dense->count; i++)
            put(dense, g, i, strtod(rest, NULL) + (double)i);
    }
    if (!strcmp(verb, "push"))
        outcome = plugml_push(p, g);
    else if (!strcmp(verb, "async"))
        outcome = plugml_push_async(p, g);
    else if (!strcmp(verb, "pull"))
        outcome = plugml_pull(p, w);
    else if (!strcmp(verb, "pushpull"))
        outcome = plugml_pushpull(p, g, w);
    else
        outcome = plugml_step(p, g, w);
    tell(op, outcome);
    if (outcome > 0 && w && pulls)
        show(dense, w, (size_t)dense->count, (size_t)dense->count, "w");
    for (int i = 0; outcome > 0 && i < wanted_count; i++)
        show(wanted[i].table, wanted[i].w, wanted[i].count * (size_t)wanted[i].table->width, (size_t)wanted[i].table->width, wanted[i].table->name);
    printf("\n");
    wanted_count = 0;
    while (lent_count)
        free(lent[--lent_count]);
}

static void do_one(char *op)
{
    char copy[4096], *verb, *rest, *more;

    snprintf(copy, sizeof copy, "%s", op);
    verb = copy;
    rest = strchr(copy, ':');
    if (rest)
        *rest++ = 0;
    if (!strcmp(verb, "rows") || !strcmp(verb, "want")) {
        more = strchr(rest, ':');
        *more++ = 0;
        if (!strcmp(verb, "want")) {
            name_rows(rest, more, NULL);
        } else {
            char *constant = strchr(more, ':');

            *constant++ = 0;
            name_rows(rest, more, constant);
        }
    } else if (!strcmp(verb, "timeout")) {
        plugml_timeout(p, atol(rest));
    } else if (!strcmp(verb, "next")) {
        const char *text = plugml_next(p, NULL);

        tell(op, plugml_code(p) ? -plugml_code(p) : plugml_plugged(p));
        if (text)
            printf(" %ld:%ld:%s\n", plugml_piece(p), plugml_turn(p), text);
        else
            printf("%s\n", plugml_code(p) ? "" : " none");
    } else if (!strcmp(verb, "tick") || !strcmp(verb, "ping")) {
        tell(op, !strcmp(verb, "tick") ? plugml_tick(p) : plugml_ping(p));
        printf("\n");
    } else {
        do_request(op, verb, rest);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    p = plugml_attach();
    for (int i = 1; i < argc && strcmp(argv[i], "bye"); i++) {
        if (!strcmp(argv[i], "end"))
            _exit(0);
        do_one(argv[i]);
    }
    while (lent_count)
        free(lent[--lent_count]);
    return plugml_bye(p);
}
