/* plugml.h: plug a serial C or C++ program into its channel.
 *
 *     cc -O2 trainer.c plugml.c -o trainer
 *
 * Without PLUGML_DIR in the environment the program runs alone: plugml_attach() gives NULL, and every function takes NULL
 * and does nothing.  A request returns
 *
 *      1   plugged: it was carried out
 *      0   alone: do your own update
 *     <0   an error: minus one of the codes below.  A sentence was printed to standard error and is in plugml_error().
 *
 * A whole program:
 *
 *     plugml *p = plugml_attach();
 *     for (long step = plugml_resume(p, w); step < steps && !plugml_done(p); step++) {
 *         gradient(w, g);
 *         if (!plugml_step(p, g, w))
 *             for (int i = 0; i < n; i++) w[i] -= lr * g[i];
 *     }
 *     return plugml_bye(p);
 *
 * The arrays `g` and `w` hold all dense tables as `info` lays them out, in the job's number type.  With one table that is
 * the table itself; with several use plugml_put() and plugml_get(), or plugml_table_at() for offsets.
 *
 * Sparse tables travel by rows, with the next request; the dense ones go along iff `g` or `w` is given (or was put):
 *
 *     plugml_rows(p, "emb", k, rows, g);           push g[i] to row rows[i]
 *     plugml_want(p, "emb", m, next, w);           fill w[i] with row next[i]
 *     if (!plugml_step(p, NULL, NULL))
 *         your own update, when alone
 *
 * Not here: threads.  One handle belongs to one thread at a time; a program with many threads calls from one of them, or
 * holds its own lock around each call.  A forked child must not use its parent's handle, and is refused.
 */
#ifndef PLUGML_H
#define PLUGML_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Outcomes.  shm_protocol/SPEC.md says of each what happened and what to do. */
enum {
    PLUGML_OK = 0,
    PLUGML_SEQ = 1,
    PLUGML_FORMAT = 2,
    PLUGML_RANGE = 3,
    PLUGML_SIZE = 4,
    PLUGML_NONFINITE = 5,
    PLUGML_TIMEOUT = 6,
    PLUGML_AGAIN = 7,
    PLUGML_NOSERVER = 8,
    PLUGML_VERSION = 9,
    PLUGML_PERM = 10,
    PLUGML_GONE = 11,
    PLUGML_NOSPC = 12,
    PLUGML_COLLIDE = 13,
    PLUGML_STOP = 14,
    PLUGML_INTERNAL = 15,
    PLUGML_FENCED = 16
};

typedef struct plugml plugml;

/* A table.  A dense one says where it lies in `grad` and in `param`; a sparse one (`width` above 0) lies nowhere. */
typedef struct plugml_table {
    char name[64];
    char dtype[4];     /* f32, f64 or i64 */
    char order;        /* C: the last index runs fastest; F: the first one */
    int dimensions;    /* at most 8 are told */
    uint64_t shape[8]; /* sparse: rows (0: every number) and width */
    uint64_t count;    /* elements; 0 of a sparse table */
    uint64_t offset;   /* bytes from the start of the file */
    uint64_t nbytes;
    uint64_t width;    /* sparse: elements of a row; else 0 */
    uint64_t batch;    /* sparse: the most rows that one request pushes, and the most that it wants */
    char index[4];     /* sparse: u32, u64 or str */
} plugml_table;

/* Attach to the channel that PLUGML_DIR names, and say hello.  NULL: not plugged.  If there is a channel but it cannot be
 * used, the reason is printed and every later request fails with it: a program that should be plugged never runs alone. */
plugml *plugml_attach(void);

/* Refuse to go on unless the channel holds `count` elements of `dtype` ("f32", "f64", "i64"). */
int plugml_expect(plugml *p, const char *dtype, uint64_t count);

/* Fill `w` with the values of now and give back the clock to go on at: 0, unless the worker was started again.
 * Alone: 0, and `w` is not touched. */
long plugml_resume(plugml *p, void *w);

/* Push `g`, end this clock, and fill `w` with what the consistency model allows to see.  `g` NULL: it lies in the file
 * already (plugml_put, plugml_grad).  `w` NULL: leave it in the file (plugml_get, plugml_param). */
int plugml_step(plugml *p, const void *g, void *w);
int plugml_step_w(plugml *p, const void *g, void *w, double weight);   /* weight: examples behind this push; 0 where there are none */

/* The loop is over: the job's stop rule has fired, or the last request failed.  Alone: 0. */
int plugml_done(const plugml *p);
int plugml_stopped(const plugml *p);                          /* only: the stop rule has fired */

/* Say that this worker has finished, and give everything back.  Returns the exit code for main(): 0, or 1 if the last
 * request failed.  A program that ends without it, with exit code 0, has finished too. */
int plugml_bye(plugml *p);

/* Give everything back without a word: for a program that ends because it failed, and says so by its exit code. */
void plugml_close(plugml *p);

/* Rows of a sparse table, for the next request that pushes or pulls: the arrays must stay as they are until it returns.  `rows`
 * holds uint32_t or uint64_t row numbers from 0 on, or `const char *` keys, as the table's index says; `g` and `w` hold `k` rows of the
 * table's width and dtype.  In any order; a row that is pushed twice is added up.  One call of each for each table.  A
 * mistake is told at once, and the next request is refused with it. */
int plugml_rows(plugml *p, const char *table, size_t k, const void *rows, const void *g);
int plugml_want(plugml *p, const char *table, size_t k, const void *rows, void *w);

/* Refuse to go on unless this is a sparse table of that index ("u32", "u64", "str"), dtype and width. */
int plugml_expect_rows(plugml *p, const char *table, const char *index, const char *dtype, uint64_t width);

/* The next piece of input that this worker shall read (a file's name, or whatever the job's list says), until the next call;
 * NULL: nothing is left, or an error.  Alone it gives `alone` back, so that one loop does for both:
 *
 *     for (const char *file = plugml_next(p, argv[1]); file; file = plugml_next(p, NULL))
 */
const char *plugml_next(plugml *p, const char *alone);
long plugml_piece(const plugml *p);                           /* its number, from 0; -1: there was none */
long plugml_turn(const plugml *p);                            /* the pass over all pieces that it belongs to, from 0 */

/* The single steps. */
int plugml_init(plugml *p, void *w);                          /* offer first values; `w` becomes the job's */
int plugml_push(plugml *p, const void *g);                    /* several pushes may go into one clock */
int plugml_push_async(plugml *p, const void *g);              /* answered at once, carried out behind; what fails is told at the next one */
int plugml_pull(plugml *p, void *w);
int plugml_pushpull(plugml *p, const void *g, void *w);
int plugml_tick(plugml *p);                                   /* end this clock without a push */
int plugml_ping(plugml *p);
void plugml_weight(plugml *p, double weight);                 /* of all following pushes; 1 in the beginning */
void plugml_timeout(plugml *p, long milliseconds);            /* how long all following requests may take; 0 (at first): for ever.
                                                               * After PLUGML_TIMEOUT a push or step is under way: do not repeat it */

/* Who and where am I. */
int plugml_plugged(const plugml *p);                          /* 1 with a channel, 0 alone */
int plugml_main(const plugml *p);                             /* alone or worker 0: prints and saves */
int plugml_worker(const plugml *p);                           /* 0 alone */
int plugml_workers(const plugml *p);                          /* 1 alone */
long plugml_clock(const plugml *p);                           /* clocks finished */
long plugml_lag(const plugml *p);                             /* how far the slowest worker is behind */
uint64_t plugml_version(const plugml *p);                     /* of the values last pulled */

/* Several tables.  `table` NULL means the first dense one.  plugml_put before a push, plugml_get after a pull. */
int plugml_tables(const plugml *p);
const plugml_table *plugml_table_at(const plugml *p, int number);               /* NULL: there is no such table */
const plugml_table *plugml_table_named(const plugml *p, const char *table);
int plugml_put(plugml *p, const char *table, const void *g);
int plugml_get(plugml *p, const char *table, void *w);

/* The files themselves, mapped: no copy on our side.  Fill `grad`, step with g = NULL and w = NULL, read `param`.
 * NULL: alone, or an error.  Between the ring and the reply both belong to the agent. */
void *plugml_grad(plugml *p, const char *table);
void *plugml_param(plugml *p, const char *table);

/* The last error: its code (0: none) and its text. */
int plugml_code(const plugml *p);
const char *plugml_error(const plugml *p);
const char *plugml_code_name(int code);
void plugml_quiet(plugml *p, int quiet);                      /* 1: do not print errors */

#ifdef __cplusplus
}
#endif

#endif
