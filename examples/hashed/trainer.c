/* Logistic regression with the hashing trick, by minibatches: a serial program whose model has a weight for each feature.
 *
 *     cc -O2 trainer.c plugml.c -lm -o trainer
 *     ./trainer part.txt PASSES weights.txt [LR]
 *
 * Each line is `label feature feature ...`, and a feature is named by the 64-bit FNV-1a hash of its text.  weights.txt has
 * a line `hash weight` for each feature of the file.
 *
 * The lines marked "plugml" are all that was added to train it on many workers, each with a file of its own:
 *
 *     plugml run -n 4 --table w=sparse:f32,width=1,index=u64,lr=2 --combine sum -- ./trainer 'part{worker}.txt' 3 'weights{worker}.txt'
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plugml.h" /* plugml */

enum { BATCH = 50, WORDS = 64 };

struct line {
    int label, count;
    size_t at[WORDS]; /* numbers of its features, in the order of `keys` */
};

static struct line *lines;
static size_t line_count;
static uint64_t *keys; /* of all features of the file, in order, each once */
static size_t key_count;
static float *w; /* their weights */

static void fail(const char *text, const char *name)
{
    fprintf(stderr, "trainer: %s %s\n", text, name);
    exit(2);
}

static void *more(void *memory, size_t bytes)
{
    memory = realloc(memory, bytes);
    if (!memory)
        fail("no memory for", "the data");
    return memory;
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

static int compare_keys(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

static int compare_numbers(const void *left, const void *right)
{
    size_t a = *(const size_t *)left, b = *(const size_t *)right;

    return (a > b) - (a < b);
}

static size_t place_of(uint64_t key)
{
    return (size_t)((uint64_t *)bsearch(&key, keys, key_count, sizeof *keys, compare_keys) - keys);
}

/* Read the file twice: first for its keys, then for its lines. */
static void read_lines(const char *name)
{
    FILE *file = fopen(name, "r");
    char text[4096], *word;
    size_t distinct = 0;

    if (!file)
        fail("cannot open", name);
    while (fgets(text, sizeof text, file))
        if (strtok(text, " \n"))
            while ((word = strtok(NULL, " \n"))) {
                if (key_count % 4096 == 0)
                    keys = (uint64_t *)more(keys, (key_count + 4096) * sizeof *keys);
                keys[key_count++] = hash_of(word);
            }
    if (!key_count)
        fail("no features in", name);
    qsort(keys, key_count, sizeof *keys, compare_keys);
    for (size_t i = 0; i < key_count; i++)
        if (!distinct || keys[distinct - 1] != keys[i])
            keys[distinct++] = keys[i];
    key_count = distinct;
    rewind(file);
    while (fgets(text, sizeof text, file)) {
        struct line *line;

        if (!(word = strtok(text, " \n")))
            continue;
        if (line_count % 1024 == 0)
            lines = (struct line *)more(lines, (line_count + 1024) * sizeof *lines);
        line = &lines[line_count++];
        line->label = word[0] == '1';
        for (line->count = 0; line->count < WORDS && (word = strtok(NULL, " \n")); line->count++)
            line->at[line->count] = place_of(hash_of(word));
    }
    fclose(file);
    w = (float *)more(NULL, key_count * sizeof *w);
    memset(w, 0, key_count * sizeof *w);
}

/* The features of the lines from `from` on, in order, each once; gives back how many. */
static size_t features(size_t from, size_t to, size_t *found)
{
    size_t count = 0, distinct = 0;

    for (size_t i = from; i < to; i++)
        for (int j = 0; j < lines[i].count; j++)
            found[count++] = lines[i].at[j];
    qsort(found, count, sizeof *found, compare_numbers);
    for (size_t i = 0; i < count; i++)
        if (!distinct || found[distinct - 1] != found[i])
            found[distinct++] = found[i];
    return distinct;
}

static double predict(const struct line *line)
{
    double z = 0;

    for (int j = 0; j < line->count; j++)
        z += w[line->at[j]];
    return 1 / (1 + exp(-z));
}

/* Sum up in `g` what the lines say of the features `found`; gives back the loss. */
static double gradient(size_t from, size_t to, const size_t *found, size_t count, float *g)
{
    double loss = 0;

    memset(g, 0, count * sizeof *g);
    for (size_t i = from; i < to; i++) {
        double p = predict(&lines[i]);

        loss -= log(lines[i].label ? p : 1 - p);
        for (int j = 0; j < lines[i].count; j++) {
            const size_t *at = (const size_t *)bsearch(&lines[i].at[j], found, count, sizeof *found, compare_numbers);

            g[at - found] += (float)((p - lines[i].label) / (double)(to - from));
        }
    }
    return loss;
}

static void write_weights(const char *name)
{
    FILE *file = fopen(name, "w");

    if (!file)
        fail("cannot write", name);
    for (size_t i = 0; i < key_count; i++)
        fprintf(file, "%llu %.9g\n", (unsigned long long)keys[i], (double)w[i]);
    if (fclose(file))
        fail("cannot write", name);
}

/* plugml: all weights of this worker's features, as they are in the end. */
static void pull_all(plugml *p)
{
    for (size_t at = 0; at < key_count; at += BATCH * WORDS) {
        plugml_want(p, "w", key_count - at < BATCH * WORDS ? key_count - at : BATCH * WORDS, keys + at, w + at);
        plugml_pull(p, NULL);
    }
}

int main(int argc, char **argv)
{
    static size_t found[BATCH * WORDS];
    static uint64_t rows[BATCH * WORDS];
    static float g[BATCH * WORDS], came[BATCH * WORDS];
    double loss = 0;
    float lr;
    long batches, steps;

    if (argc < 4)
        fail("usage: trainer FILE PASSES WEIGHTS [LR];", "see the top of trainer.c");
    read_lines(argv[1]);
    lr = (float)(argc > 4 ? atof(argv[4]) : 2);
    batches = (long)((line_count + BATCH - 1) / BATCH);
    steps = batches * atol(argv[2]);

    plugml *p = plugml_attach();                                                 /* plugml */
    if (plugml_expect_rows(p, "w", "u64", "f32", 1) < 0)                         /* plugml */
        return plugml_bye(p);                                                    /* plugml */
    for (long step = plugml_clock(p); step < steps && !plugml_done(p); step++) { /* plugml: from 0, no condition */
        size_t from = (size_t)(step % batches) * BATCH, to = from + BATCH < line_count ? from + BATCH : line_count;
        size_t count = features(from, to, found);

        for (size_t i = 0; i < count; i++)                                       /* plugml */
            rows[i] = keys[found[i]];                                            /* plugml */
        plugml_want(p, "w", count, rows, came);                                  /* plugml */
        if (plugml_pull(p, NULL) > 0)                                            /* plugml */
            for (size_t i = 0; i < count; i++)                                   /* plugml */
                w[found[i]] = came[i];                                           /* plugml */
        loss = (from ? loss : 0) + gradient(from, to, found, count, g);
        plugml_rows(p, "w", count, rows, g);                                     /* plugml */
        if (!plugml_step(p, NULL, NULL))                                         /* plugml */
            for (size_t i = 0; i < count; i++)
                w[found[i]] -= lr * g[i];
        if (to == line_count)
            printf("pass %ld loss %.6f\n", step / batches + 1, loss / (double)line_count), fflush(stdout);
    }
    pull_all(p);                                                                 /* plugml */
    write_weights(argv[3]);
    free(keys);
    free(lines);
    free(w);
    return plugml_bye(p);                                                        /* plugml: was 0 */
}
