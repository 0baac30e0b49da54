/* Multinomial logistic regression by full-batch gradient descent: a serial program.
 *
 *     cc -O2 trainer.c plugml.c -lm -o trainer
 *     ./trainer shard.txt 200 weights.txt [lr]
 *
 * Each line of the shard is `label pixel0 ... pixel63`, whole numbers, pixels from 0 to 16.  The model is w[10][65], a row
 * of 64 pixels and a bias for each digit, and starts from zeros.  At the end it lies in weights.txt, one number a line.
 *
 * The lines marked "plugml" are all that was added to train it on many workers.  Without PLUGML_DIR they do nothing.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "plugml.h" /* plugml */

#ifndef REAL
#define REAL double
#endif

enum { CLASSES = 10, PIXELS = 64, WIDTH = PIXELS + 1, COUNT = CLASSES * WIDTH };

static void fail(const char *text, const char *name)
{
    fprintf(stderr, "trainer: %s %s\n", text, name);
    exit(2);
}

/* Read the shard; give back its number of rows. */
static long read_shard(const char *name, REAL **pixels, int **labels)
{
    FILE *file = fopen(name, "r");
    long rows = 0, room = 0;
    int label;

    if (!file)
        fail("cannot open", name);
    *pixels = NULL;
    *labels = NULL;
    while (fscanf(file, "%d", &label) == 1) {
        REAL *row;

        if (rows == room) {
            room = room ? 2 * room : 256;
            *pixels = (REAL *)realloc(*pixels, (size_t)room * WIDTH * sizeof(REAL));
            *labels = (int *)realloc(*labels, (size_t)room * sizeof(int));
            if (!*pixels || !*labels)
                fail("no memory for", name);
        }
        row = *pixels + rows * WIDTH;
        for (int j = 0; j < PIXELS; j++) {
            int pixel;

            if (fscanf(file, "%d", &pixel) != 1)
                fail("a row is cut off in", name);
            row[j] = (REAL)pixel / 16;
        }
        row[PIXELS] = 1;
        if (label < 0 || label >= CLASSES)
            fail("a label is not a digit in", name);
        (*labels)[rows++] = label;
    }
    fclose(file);
    if (!rows)
        fail("no rows in", name);
    return rows;
}

/* Fill g with the mean gradient over all rows; give back the mean loss. */
static double gradient(const REAL *x, const int *labels, long rows, const REAL *w, REAL *g)
{
    double loss = 0;

    for (int i = 0; i < COUNT; i++)
        g[i] = 0;
    for (long row = 0; row < rows; row++, x += WIDTH) {
        REAL p[CLASSES], top = 0, sum = 0;

        for (int k = 0; k < CLASSES; k++) {
            REAL z = 0;

            for (int j = 0; j < WIDTH; j++)
                z += w[k * WIDTH + j] * x[j];
            p[k] = z;
            if (k == 0 || z > top)
                top = z;
        }
        for (int k = 0; k < CLASSES; k++)
            sum += p[k] = (REAL)exp(p[k] - top);
        for (int k = 0; k < CLASSES; k++) {
            REAL miss = p[k] / sum - (k == labels[row]);

            for (int j = 0; j < WIDTH; j++)
                g[k * WIDTH + j] += miss * x[j];
        }
        loss -= log(p[labels[row]] / sum);
    }
    for (int i = 0; i < COUNT; i++)
        g[i] /= (REAL)rows;
    return loss / (double)rows;
}

static void write_weights(const char *name, const REAL *w)
{
    FILE *file = fopen(name, "w");

    if (!file)
        fail("cannot write", name);
    for (int i = 0; i < COUNT; i++)
        fprintf(file, "%.17g\n", (double)w[i]);
    if (fclose(file))
        fail("cannot write", name);
}

int main(int argc, char **argv)
{
    static REAL w[COUNT], g[COUNT];
    REAL *x, lr;
    int *labels;
    long rows, steps;

    if (argc < 4)
        fail("usage: trainer SHARD STEPS WEIGHTS [LR];", "see the top of trainer.c");
    rows = read_shard(argv[1], &x, &labels);
    steps = atol(argv[2]);
    lr = (REAL)(argc > 4 ? atof(argv[4]) : 1.0);

    plugml *p = plugml_attach(); /* plugml */
    for (long step = plugml_resume(p, w); step < steps && !plugml_done(p); step++) { /* plugml: from 0, no condition */
        double loss = gradient(x, labels, rows, w, g);

        if (step % 50 == 49 || step == 0)
            printf("step %ld loss %.6f\n", step + 1, loss), fflush(stdout);
        if (!plugml_step_w(p, g, w, (double)rows)) /* plugml */
            for (int i = 0; i < COUNT; i++)
                w[i] -= lr * g[i];
    }
    write_weights(argv[3], w);
    free(x);
    free(labels);
    return plugml_bye(p); /* plugml: was 0 */
}
