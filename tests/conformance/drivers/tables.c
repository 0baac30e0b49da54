/* Two tables of different types by name, in both ways; then everything again without a channel.  See test_clients_apart.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plugml.h"

static int failures;

static void check(int holds, const char *what, int line)
{
    if (!holds) {
        fprintf(stderr, "line %d: %s\n", line, what);
        failures++;
    }
}

#define CHECK(condition) check((condition) != 0, #condition, __LINE__)

static void without_a_channel(void)
{
    double w[2] = {1, 2};

    CHECK(plugml_attach() == NULL);
    CHECK(plugml_step(NULL, w, w) == 0 && plugml_step_w(NULL, w, w, 3) == 0 && plugml_push(NULL, w) == 0);
    CHECK(plugml_pull(NULL, w) == 0 && plugml_pushpull(NULL, w, w) == 0 && plugml_init(NULL, w) == 0);
    CHECK(plugml_tick(NULL) == 0 && plugml_ping(NULL) == 0 && plugml_expect(NULL, "f32", 1) == 0);
    CHECK(plugml_put(NULL, "w", w) == 0 && plugml_get(NULL, "w", w) == 0);
    CHECK(plugml_grad(NULL, "w") == NULL && plugml_param(NULL, NULL) == NULL);
    CHECK(plugml_resume(NULL, w) == 0 && plugml_clock(NULL) == 0 && plugml_lag(NULL) == 0 && plugml_version(NULL) == 0);
    CHECK(plugml_plugged(NULL) == 0 && plugml_main(NULL) == 1 && plugml_worker(NULL) == 0 && plugml_workers(NULL) == 1);
    CHECK(plugml_tables(NULL) == 0 && plugml_table_at(NULL, 0) == NULL && plugml_table_named(NULL, "w") == NULL);
    CHECK(plugml_code(NULL) == 0 && !strcmp(plugml_error(NULL), "") && plugml_done(NULL) == 0 && plugml_bye(NULL) == 0);
    plugml_weight(NULL, 2);
    plugml_close(NULL);
    plugml_quiet(NULL, 1);
    CHECK(w[0] == 1 && w[1] == 2);
}

static void with_a_channel(plugml *p)
{
    float bias[3] = {1, 2, 3}, got[3];
    int64_t seen[5] = {1, -2, 3, -4, (int64_t)1 << 40}, counted[5];
    const plugml_table *table = plugml_table_named(p, "seen");

    CHECK(plugml_tables(p) == 2 && plugml_table_at(p, 2) == NULL && plugml_table_at(p, -1) == NULL);
    CHECK(table && !strcmp(table->dtype, "i64") && table->order == 'C' && table->count == 5 && table->nbytes == 40);
    CHECK(table && table->offset == 64 && table->dimensions == 1 && table->shape[0] == 5);
    CHECK(plugml_table_named(p, "none") == NULL && plugml_table_named(p, NULL) == plugml_table_at(p, 0));

    CHECK(plugml_put(p, "bias", bias) == 1 && plugml_put(p, "seen", seen) == 1);
    CHECK(plugml_step(p, NULL, NULL) == 1);
    CHECK(plugml_get(p, "bias", got) == 1 && plugml_get(p, "seen", counted) == 1);
    CHECK(!memcmp(got, bias, sizeof got) && !memcmp(counted, seen, sizeof counted));

    CHECK(plugml_grad(p, "seen") && plugml_param(p, "bias"));
    CHECK((char *)plugml_grad(p, "seen") - (char *)plugml_grad(p, "bias") == 64);
    ((int64_t *)plugml_grad(p, "seen"))[0] = 10;
    ((float *)plugml_grad(p, "bias"))[2] = 0.5f;
    CHECK(plugml_step(p, NULL, NULL) == 1);
    CHECK(((int64_t *)plugml_param(p, "seen"))[0] == 11 && ((float *)plugml_param(p, "bias"))[2] == 3.5f);

    plugml_quiet(p, 1);
    CHECK(plugml_put(p, "none", bias) == -PLUGML_RANGE && plugml_code(p) == PLUGML_RANGE && strstr(plugml_error(p), "none"));
    CHECK(plugml_get(p, "none", got) == -PLUGML_RANGE && plugml_grad(p, "none") == NULL);
    CHECK(plugml_step_w(p, NULL, NULL, -0.5) == -PLUGML_RANGE && plugml_step_w(p, NULL, NULL, -1) == -PLUGML_RANGE);
    CHECK(plugml_ping(p) == 1 && plugml_code(p) == 0 && plugml_clock(p) == 2 && !strcmp(plugml_error(p), ""));
    CHECK(!strcmp(plugml_code_name(PLUGML_GONE), "GONE") && !strcmp(plugml_code_name(99), "UNKNOWN"));
}

int main(int argc, char **argv)
{
    plugml *p;

    (void)argv;
    if (argc > 1) {
        without_a_channel();
        return failures;
    }
    p = plugml_attach();
    with_a_channel(p);
    return plugml_bye(p) + failures;
}
