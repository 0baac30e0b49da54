/* plugml.c: the program's side of a channel.  See plugml.h, and shm_protocol/SPEC.md for the protocol.
 *
 * Owns: the open files of one channel, the number of the next request, the clock.  Refuses to know: what the numbers mean.
 *
 * The order of system calls is the protocol: data, then `cmd`, then the bell, then the wait.  A request lies in the file
 * `cmd`, so a bell or a reply that comes twice does no harm, and an agent that was started again finds what it missed.
 */
#define _POSIX_C_SOURCE 200809L

#include "plugml.h"

#include "plugml_shm.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef O_CLOEXEC
#define O_CLOEXEC 0
#endif

enum { REQ, REP, CMD, GRAD, PARAM, CTL, ERR, INFO, FILES };

static const char *const FILE_NAMES[FILES] = {"req", "rep", "cmd", "grad", "param", "ctl", "err", "info"};

/* req is opened for both directions, so that a ring never blocks and never raises SIGPIPE.  rep is opened for reading
 * only: when the last writer has gone, its end of file tells us. */
static const int FILE_FLAGS[FILES] = {O_RDWR, O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_RDONLY, O_RDONLY, O_RDONLY};

/* A file that we hold open.  A program may close descriptors that it does not know (daemons do), and the number may then
 * belong to another file: device and inode tell whether it is still ours. */
struct held {
    int fd;
    dev_t device;
    ino_t inode;
};

struct plugml {
    char *dir;
    pid_t owner;
    struct held files[FILES];
    plugml_table *tables;
    int table_count;
    uint64_t nbytes;       /* of all dense tables, as they lie in grad and param */
    uint64_t elements;
    uint64_t seq;          /* of the last request that was answered */
    long clock;            /* clocks finished */
    long lag;
    uint64_t version;
    double weight;
    int worker, workers;
    char *mapped[FILES];   /* only grad and param */
    int code;
    int fatal;             /* no request can succeed any more */
    int stop;              /* the stop rule has fired */
    int quiet;
    char text[1024];
};

/* Where errors go when there is no memory for a handle, or no usable channel. */
static struct plugml broken;

static const struct {
    const char *name, *meaning;
} CODES[] = {
#define ROW(number, word, happened, remedy) {#word, happened " " remedy},
    PLUGML_CODES(ROW)
#undef ROW
};

enum { CODE_COUNT = sizeof CODES / sizeof *CODES };

/* ---- errors ------------------------------------------------------------------------------------------------------ */

const char *plugml_code_name(int code) { return code >= 0 && code < CODE_COUNT ? CODES[code].name : "UNKNOWN"; }

static int code_of_name(const char *name, size_t length)
{
    for (int code = 0; code < CODE_COUNT; code++)
        if (strlen(CODES[code].name) == length && !memcmp(CODES[code].name, name, length))
            return code;
    return PLUGML_INTERNAL; /* A later agent has more words. */
}

/* Remember and print what went wrong; the return value is what the failing function returns. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static int fail(plugml *p, int code, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(p->text, sizeof p->text, format, arguments);
    va_end(arguments);
    p->code = code;
    if (code == PLUGML_GONE || code == PLUGML_VERSION || code == PLUGML_PERM || code == PLUGML_FENCED)
        p->fatal = 1;
    if (!p->quiet)
        fprintf(stderr, "plugml: worker %d, clock %ld: %s: %s\n", p->worker, p->clock, plugml_code_name(code), p->text);
    return -code;
}

int plugml_code(const plugml *p) { return p ? p->code : 0; }
const char *plugml_error(const plugml *p) { return p && p->code ? p->text : ""; }

void plugml_quiet(plugml *p, int quiet)
{
    if (p)
        p->quiet = quiet;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Open a file of the channel.  Returns the descriptor, or minus a code. */
static int open_file(plugml *p, int which)
{
    char path[4096];
    struct stat found;
    int is_bell = which == REQ || which == REP;
    int fd, high;

    if (snprintf(path, sizeof path, "%s/%s", p->dir, FILE_NAMES[which]) >= (int)sizeof path)
        return fail(p, PLUGML_PERM, "the path of the channel is too long");
    /* Without O_NONBLOCK the open itself would wait for a writer, for ever if there is none. */
    do
        fd = open(path, FILE_FLAGS[which] | O_CLOEXEC | (is_bell ? O_NONBLOCK : 0));
    while (fd < 0 && errno == EINTR);
    if (fd < 0 && errno == ENOENT)
        return fail(p, PLUGML_GONE, "%s is not there any more: the channel has ended; end the program", path);
    if (fd < 0)
        return fail(p, PLUGML_PERM, "cannot open %s: %s", path, strerror(errno));
    if (fd < 3) { /* A program that closed its standard files must not print into ours. */
        high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        close(fd);
        if (high < 0)
            return fail(p, PLUGML_PERM, "cannot keep %s open: %s", path, strerror(errno));
        fd = high;
    }
    if (fstat(fd, &found) || (is_bell ? !S_ISFIFO(found.st_mode) : !S_ISREG(found.st_mode))) {
        close(fd);
        return fail(p, PLUGML_PERM, "%s is not the %s that it must be", path, is_bell ? "FIFO" : "file");
    }
    if (which == REP && fcntl(fd, F_SETFL, O_RDONLY) < 0) {
        close(fd);
        return fail(p, PLUGML_PERM, "cannot wait on %s: %s", path, strerror(errno));
    }
    p->files[which].fd = fd;
    p->files[which].device = found.st_dev;
    p->files[which].inode = found.st_ino;
    return fd;
}

/* The descriptor of a file, opened now if it is not or if the program closed it under us; or minus a code. */
static int file(plugml *p, int which)
{
    struct held *held = &p->files[which];
    struct stat now;

    if (held->fd >= 0 && !fstat(held->fd, &now) && now.st_ino == held->inode && now.st_dev == held->device)
        return held->fd;
    held->fd = -1;
    return open_file(p, which);
}

static int write_all(plugml *p, int which, const void *data, size_t length, uint64_t offset)
{
    const char *from = (const char *)data;
    int fd = file(p, which);

    if (fd < 0)
        return fd;
    while (length) {
        ssize_t done = pwrite(fd, from, length, (off_t)offset);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return fail(p, errno == ENOSPC ? PLUGML_NOSPC : PLUGML_PERM, "cannot write %s: %s", FILE_NAMES[which], strerror(errno));
        from += done;
        offset += (uint64_t)done;
        length -= (size_t)done;
    }
    return 0;
}

/* Returns the number of bytes read, less than `length` at the end of the file; or minus a code. */
static long read_some(plugml *p, int which, void *data, size_t length, uint64_t offset)
{
    char *to = (char *)data;
    size_t got = 0;
    int fd = file(p, which);

    if (fd < 0)
        return fd;
    while (got < length) {
        ssize_t done = pread(fd, to + got, length - got, (off_t)(offset + got));

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return fail(p, PLUGML_PERM, "cannot read %s: %s", FILE_NAMES[which], strerror(errno));
        if (done == 0)
            break;
        got += (size_t)done;
    }
    return (long)got;
}

static int read_all(plugml *p, int which, void *data, size_t length, uint64_t offset)
{
    long got = read_some(p, which, data, length, offset);

    if (got < 0)
        return (int)got;
    if ((size_t)got < length)
        return fail(p, PLUGML_SIZE, "%s is shorter than info promises", FILE_NAMES[which]);
    return 0;
}

static char *map_file(plugml *p, int which)
{
    struct stat found;
    void *start;
    int fd;

    if (p->mapped[which])
        return p->mapped[which];
    if ((fd = file(p, which)) < 0)
        return NULL;
    if (fstat(fd, &found) || (uint64_t)found.st_size < p->nbytes) { /* A store behind the end would be SIGBUS. */
        fail(p, PLUGML_SIZE, "%s is shorter than info promises: it cannot be mapped", FILE_NAMES[which]);
        return NULL;
    }
    start = mmap(NULL, (size_t)p->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (start == MAP_FAILED) {
        fail(p, PLUGML_NOSPC, "cannot map %s: %s", FILE_NAMES[which], strerror(errno));
        return NULL;
    }
    return p->mapped[which] = (char *)start;
}

/* ---- attaching --------------------------------------------------------------------------------------------------- */

/* The value of `key=` in a line of words, or NULL.  The value ends at a blank. */
static const char *value_of(const char *line, const char *key)
{
    size_t length = strlen(key);

    for (const char *word = line; *word; word += *word == ' ') {
        if (!strncmp(word, key, length) && word[length] == '=')
            return word + length + 1;
        word += strcspn(word, " ");
    }
    return NULL;
}

static int copy_word(char *to, size_t room, const char *from)
{
    size_t length = from ? strcspn(from, " ") : 0;

    if (!length || length >= room)
        return 0;
    memcpy(to, from, length);
    to[length] = 0;
    return 1;
}

static int number_of(const char *line, const char *key, uint64_t *number)
{
    const char *word = value_of(line, key);
    char *end;

    if (!word || *word < '0' || *word > '9')
        return 0;
    errno = 0;
    *number = strtoull(word, &end, 10);
    return !errno && (*end == ' ' || *end == ',' || !*end);
}

static size_t size_of_dtype(const char *dtype)
{
    return !strcmp(dtype, "f32") ? 4 : !strcmp(dtype, "f64") || !strcmp(dtype, "i64") ? 8 : 0;
}

/* One `table=` line of info.  Sparse tables are not ours to serve: they have no place in grad and param. */
static int read_table(plugml *p, const char *line)
{
    plugml_table *more, *table;
    char kind[16], order[4];
    const char *shape;

    if (!copy_word(kind, sizeof kind, value_of(line, "kind")) || strcmp(kind, "dense"))
        return 1;
    more = (plugml_table *)realloc(p->tables, (size_t)(p->table_count + 1) * sizeof *more);
    if (!more)
        return 0;
    p->tables = more;
    table = &more[p->table_count];
    memset(table, 0, sizeof *table);
    if (!copy_word(table->name, sizeof table->name, value_of(line, "table")) || !copy_word(order, sizeof order, value_of(line, "order")) ||
        !copy_word(table->dtype, sizeof table->dtype, value_of(line, "dtype")) || !size_of_dtype(table->dtype) ||
        !number_of(line, "offset", &table->offset) || !number_of(line, "count", &table->count))
        return 0;
    table->order = order[0];
    table->nbytes = table->count * size_of_dtype(table->dtype);
    shape = value_of(line, "shape");
    while (shape && *shape >= '0' && *shape <= '9' && table->dimensions < 8) {
        char *end;

        table->shape[table->dimensions++] = strtoull(shape, &end, 10);
        shape = *end == ',' ? end + 1 : NULL;
    }
    p->table_count++;
    p->elements += table->count;
    if (table->offset + table->nbytes > p->nbytes)
        p->nbytes = table->offset + table->nbytes;
    return 1;
}

static int read_info(plugml *p)
{
    struct stat found;
    uint64_t version = 0, worker = 0, workers = 1;
    char *text, *line, *end;
    long got;
    int fd = file(p, INFO), complete = 1;

    if (fd < 0)
        return fd;
    if (fstat(fd, &found) || found.st_size > (1 << 24) || !(text = (char *)malloc((size_t)found.st_size + 1)))
        return fail(p, PLUGML_FORMAT, "info cannot be read");
    got = read_some(p, INFO, text, (size_t)found.st_size, 0);
    if (got < 0) {
        free(text);
        return (int)got;
    }
    text[got] = 0;
    for (line = text; *line && complete; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = 0;
        if (!strncmp(line, "table=", 6))
            complete = read_table(p, line);
        number_of(line, "version", &version);
        number_of(line, "worker", &worker);
        number_of(line, "workers", &workers);
    }
    free(text);
    if (version != PLUGML_PROTOCOL_VERSION)
        return fail(p, PLUGML_VERSION, "the channel speaks version %lu, this client speaks %d: install the client that belongs to this plugml",
                    (unsigned long)version, PLUGML_PROTOCOL_VERSION);
    if (!complete)
        return fail(p, PLUGML_FORMAT, "info holds a table that cannot be read");
    p->worker = (int)worker;
    p->workers = (int)workers;
    return 0;
}

/* CRC-32 as zlib counts it.  128 bytes once: a table would be longer than the time it saves. */
static uint32_t crc32_of(const unsigned char *bytes, size_t length)
{
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static int check_page(plugml *p)
{
    struct plugml_ctl page;
    int outcome = read_all(p, CTL, &page, sizeof page, 0);
    uint32_t crc32;

    if (outcome)
        return outcome;
    if (memcmp(page.magic, PLUGML_MAGIC, sizeof page.magic))
        return fail(p, PLUGML_VERSION, "%s/ctl is no page of a channel", p->dir);
    if (page.endian != PLUGML_ENDIAN_TAG)
        return fail(p, PLUGML_VERSION, "the channel was written with another byte order than this program's");
    if (page.abi_major != PLUGML_ABI_MAJOR)
        return fail(p, PLUGML_VERSION, "the channel has layout %d, this client knows %d: install the client that belongs to this plugml",
                    page.abi_major, PLUGML_ABI_MAJOR);
    crc32 = page.crc32;
    page.crc32 = 0;
    if (crc32 != crc32_of((const unsigned char *)&page, PLUGML_CONSTANT_BYTES))
        return fail(p, PLUGML_VERSION, "%s/ctl is damaged: its checksum does not fit", p->dir);
    return 0;
}

/* ---- one request ------------------------------------------------------------------------------------------------- */

struct reply {
    int ok, code, stop;
    uint64_t seq, clock, done, version, lag;
};

/* Read 64 bytes of text.  Unknown keys are passed over: a later agent may say more. */
static int read_reply(char *record, struct reply *reply)
{
    const char *code;
    char *end;
    uint64_t stop = 0;

    memset(reply, 0, sizeof *reply);
    if (record[PLUGML_RECORD_BYTES - 1] != '\n')
        return 0;
    record[PLUGML_RECORD_BYTES - 1] = 0;
    reply->ok = !strncmp(record, "ok ", 3);
    if (!reply->ok && strncmp(record, "err ", 4))
        return 0;
    record += reply->ok ? 3 : 4;
    reply->seq = strtoull(record, &end, 10);
    if (end == record || *end != ' ')
        return 0;
    record = end + 1;
    reply->clock = strtoull(record, &end, 10);
    if (end == record)
        return 0;
    number_of(end, "done", &reply->done);
    number_of(end, "v", &reply->version);
    number_of(end, "lag", &reply->lag);
    number_of(end, "stop", &stop);
    reply->stop = stop == 1;
    code = value_of(end, "code");
    reply->code = code ? code_of_name(code, strcspn(code, " ")) : reply->ok ? PLUGML_OK : PLUGML_INTERNAL;
    return 1;
}

/* Sleep until the agent has answered `seq`.  Older replies come again after an agent was restarted: they are passed over.
 * The keeper of the channel answers GONE when there will be no agent any more, and it need not know our seq. */
static int wait_reply(plugml *p, uint64_t seq, struct reply *reply)
{
    char record[PLUGML_RECORD_BYTES];
    size_t got = 0;

    for (;;) {
        int fd = file(p, REP);
        ssize_t done;

        if (fd < 0)
            return fd;
        done = read(fd, record + got, sizeof record - got);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return fail(p, PLUGML_PERM, "cannot read rep: %s", strerror(errno));
        if (done == 0)
            return fail(p, PLUGML_GONE, "agent and launcher are gone; whether the last request was carried out is unknown; run the program again");
        got += (size_t)done;
        if (got < sizeof record)
            continue;
        got = 0;
        if (!read_reply(record, reply)) {
            p->fatal = 1;
            return fail(p, PLUGML_INTERNAL, "the agent's reply cannot be read: is something else writing to %s/rep?", p->dir);
        }
        if (reply->seq == seq || reply->code == PLUGML_GONE)
            return 0;
    }
}

/* Data lie in their files: write the request, ring, wait. */
static int ask(plugml *p, const char *line, uint64_t seq, struct reply *reply)
{
    struct timespec pause = {0, 10 * 1000 * 1000};

    for (int tries = 1;; tries++) {
        int outcome = write_all(p, CMD, line, strlen(line), 0);
        int fd;

        if (outcome)
            return outcome;
        if ((fd = file(p, REQ)) < 0)
            return fd;
        while (write(fd, "\n", 1) < 0 && errno != EAGAIN) /* EAGAIN: 64 KiB of rings wait already, ours would add nothing. */
            if (errno != EINTR)
                return fail(p, PLUGML_PERM, "cannot ring req: %s", strerror(errno));
        outcome = wait_reply(p, seq, reply);
        if (outcome || reply->code != PLUGML_AGAIN || tries == 60)
            return outcome;
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 500 * 1000 * 1000)
            pause.tv_nsec *= 2;
    }
}

/* Fail with the sentence that the agent left in err, as `CODE seq=<seq>: text`. */
static int refused(plugml *p, const struct reply *reply)
{
    char text[sizeof p->text - 64] = "";
    const char *name = plugml_code_name(reply->code), *sentence;
    int fd = reply->code == PLUGML_GONE ? -1 : file(p, ERR); /* The launcher says GONE, and it writes no text. */
    ssize_t got = fd < 0 ? 0 : pread(fd, text, sizeof text - 1, 0);

    text[got > 0 ? got : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    sentence = strstr(text, ": ");
    if (!sentence || strncmp(text, name, strlen(name)) || !sentence[2])
        return fail(p, reply->code, "%s", CODES[reply->code].meaning);
    return fail(p, reply->code, "%s", sentence + 2);
}

/* Throw away what waits in rep: an earlier program of this generation may have died before it read its reply. */
static int discard_replies(plugml *p)
{
    char rest[PLUGML_RECORD_BYTES * 64];
    int fd = file(p, REP);

    if (fd < 0)
        return fd;
    fcntl(fd, F_SETFL, O_RDONLY | O_NONBLOCK);
    while (read(fd, rest, sizeof rest) > 0)
        ;
    fcntl(fd, F_SETFL, O_RDONLY);
    return 0;
}

/* Ask where this generation stands.  The answer to hello has seq 0 and names the last request that was answered. */
static int say_hello(plugml *p)
{
    char line[64];
    struct reply reply;
    int outcome;

    snprintf(line, sizeof line, "hello 0 %ld\n", p->clock);
    outcome = ask(p, line, 0, &reply);
    if (outcome)
        return outcome;
    if (!reply.ok)
        return refused(p, &reply);
    p->seq = reply.done;
    p->clock = (long)reply.clock;
    return 0;
}

static void format_weight(char *to, size_t room, double weight)
{
    const char *point = localeconv()->decimal_point;
    char *found;

    snprintf(to, room, "%.17g", weight);
    if (!strcmp(point, ".") || !(found = strstr(to, point)))
        return;
    *found = '.'; /* The user's language may write 0,5. */
    memmove(found + 1, found + strlen(point), strlen(found + strlen(point)) + 1);
}

/* May a request be made at all?  1 yes, 0 alone, or minus a code. */
static int ready(plugml *p)
{
    if (!p)
        return 0;
    if (p->fatal)
        return -p->code;
    if (p->owner != getpid())
        return fail(p, PLUGML_PERM, "process %ld is a forked child of process %ld, which owns the channel: call plugml from there",
                    (long)getpid(), (long)p->owner);
    return 1;
}

/* What follows verb, seq and clock in the line of a push; writes `g` first. */
#define WEIGHT_MAX 9007199254740992.0 /* 2^53 */

static int prepare_push(plugml *p, const void *g, double weight, char *words, size_t room)
{
    char shown[48];

    if (!(weight > 0) || weight > WEIGHT_MAX)
        return fail(p, PLUGML_RANGE, "weight %g: a weight is above 0 and at most 2^53; nothing was pushed", weight);
    format_weight(shown, sizeof shown, weight);
    snprintf(words, room, " n=%llu w=%s", (unsigned long long)p->elements, shown);
    return g && g != p->mapped[GRAD] ? write_all(p, GRAD, g, (size_t)p->nbytes, 0) : 0;
}

/* One request: pushes `g` if `pushing`, fills `w` if `pulling`.  See plugml.h for the return value. */
static int request(plugml *p, const char *verb, int pushing, const void *g, int pulling, void *w, double weight)
{
    char line[160], words[96] = "";
    struct reply reply;
    int outcome = ready(p);

    if (outcome <= 0)
        return outcome;
    if (p->code == PLUGML_SEQ && (outcome = say_hello(p)) != 0) /* Somebody else has used the channel: take up his count. */
        return outcome;
    if (pushing && (outcome = prepare_push(p, g, weight, words, sizeof words)) != 0)
        return outcome;
    snprintf(line, sizeof line, "%s %llu %ld%s\n", verb, (unsigned long long)p->seq + 1, p->clock, words);
    outcome = ask(p, line, p->seq + 1, &reply);
    if (outcome)
        return outcome;
    p->seq += reply.code != PLUGML_SEQ && reply.code != PLUGML_AGAIN; /* Refused for good is answered, too. */
    p->stop |= reply.stop;
    if (reply.code == PLUGML_STOP) { /* No error: the loop has come to its end. */
        p->stop = 1;
        p->code = PLUGML_STOP;
        snprintf(p->text, sizeof p->text, "%s", CODES[PLUGML_STOP].meaning);
        return -PLUGML_STOP;
    }
    if (!reply.ok)
        return refused(p, &reply);
    p->code = 0;
    p->clock = (long)reply.clock;
    p->lag = (long)reply.lag;
    p->version = reply.version ? reply.version : p->version;
    if (pulling && w && w != p->mapped[PARAM] && (outcome = read_all(p, PARAM, w, (size_t)p->nbytes, 0)) != 0)
        return outcome;
    return 1;
}

int plugml_step_w(plugml *p, const void *g, void *w, double weight) { return request(p, "step", 1, g, 1, w, weight); }
int plugml_step(plugml *p, const void *g, void *w) { return request(p, "step", 1, g, 1, w, p ? p->weight : 1); }
int plugml_init(plugml *p, void *w) { return request(p, "init", 1, w, 1, w, 1); }
int plugml_push(plugml *p, const void *g) { return request(p, "push", 1, g, 0, NULL, p ? p->weight : 1); }
int plugml_pull(plugml *p, void *w) { return request(p, "pull", 0, NULL, 1, w, 1); }
int plugml_pushpull(plugml *p, const void *g, void *w) { return request(p, "pushpull", 1, g, 1, w, p ? p->weight : 1); }
int plugml_tick(plugml *p) { return request(p, "clock", 0, NULL, 0, NULL, 1); }
int plugml_ping(plugml *p) { return request(p, "ping", 0, NULL, 0, NULL, 1); }

long plugml_resume(plugml *p, void *w)
{
    plugml_pull(p, w);
    return plugml_clock(p);
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

static long environment_number(const char *name, long otherwise)
{
    const char *text = getenv(name);
    char *end;
    long number;

    if (!text || !*text)
        return otherwise;
    number = strtol(text, &end, 10);
    return *end ? otherwise : number;
}

plugml *plugml_attach(void)
{
    const char *dir = getenv("PLUGML_DIR");
    plugml *p;

    if (!dir || !*dir)
        return NULL;
    p = (plugml *)calloc(1, sizeof *p);
    if (!p || !(p->dir = strdup(dir))) {
        free(p);
        broken.fatal = 1;
        fail(&broken, PLUGML_NOSPC, "no memory to attach to %s", dir);
        return &broken;
    }
    for (int which = 0; which < FILES; which++)
        p->files[which].fd = -1;
    p->owner = getpid();
    p->weight = 1;
    p->workers = 1;
    p->worker = (int)environment_number("PLUGML_WORKER", 0);
    p->clock = environment_number("PLUGML_CLOCK", 0);
    if (check_page(p) || read_info(p) || discard_replies(p) || say_hello(p))
        p->fatal = 1; /* Told already.  Every request says no from here on. */
    return p;
}

int plugml_expect(plugml *p, const char *dtype, uint64_t count)
{
    int outcome = ready(p);

    if (outcome <= 0)
        return outcome;
    for (int i = 0; i < p->table_count; i++)
        if (strcmp(p->tables[i].dtype, dtype)) {
            p->fatal = 1;
            return fail(p, PLUGML_SIZE, "table %s holds %s numbers, the program has %s: declare the table as %s",
                        p->tables[i].name, p->tables[i].dtype, dtype, dtype);
        }
    if (p->elements != count) {
        p->fatal = 1;
        return fail(p, PLUGML_SIZE, "the job's tables have %llu elements, the program has %llu: make the shapes agree",
                    (unsigned long long)p->elements, (unsigned long long)count);
    }
    return 1;
}

int plugml_done(const plugml *p) { return p && (p->stop || p->code); }

int plugml_bye(plugml *p)
{
    int failed;

    if (!p || p->owner != getpid()) /* A forked child that ends must not say bye for its parent. */
        return p == &broken;
    failed = p->fatal || (p->code && p->code != PLUGML_STOP);
    if (!failed) /* After an error the exit code speaks: the launcher decides whether to start the worker again. */
        failed = request(p, "bye", 0, NULL, 0, NULL, 1) < 0;
    for (int which = 0; which < FILES; which++) {
        struct stat now;
        struct held *held = &p->files[which];

        if (p->mapped[which])
            munmap(p->mapped[which], (size_t)p->nbytes);
        if (held->fd >= 0 && !fstat(held->fd, &now) && now.st_ino == held->inode && now.st_dev == held->device)
            close(held->fd);
    }
    free(p->tables);
    free(p->dir);
    free(p);
    return failed;
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

void plugml_weight(plugml *p, double weight)
{
    if (p)
        p->weight = weight;
}

int plugml_plugged(const plugml *p) { return p != NULL; }
int plugml_main(const plugml *p) { return !p || p->worker == 0; }
int plugml_worker(const plugml *p) { return p ? p->worker : 0; }
int plugml_workers(const plugml *p) { return p ? p->workers : 1; }
long plugml_clock(const plugml *p) { return p ? p->clock : 0; }
long plugml_lag(const plugml *p) { return p ? p->lag : 0; }
uint64_t plugml_version(const plugml *p) { return p ? p->version : 0; }
int plugml_tables(const plugml *p) { return p ? p->table_count : 0; }

const plugml_table *plugml_table_at(const plugml *p, int number)
{
    return p && number >= 0 && number < p->table_count ? &p->tables[number] : NULL;
}

const plugml_table *plugml_table_named(const plugml *p, const char *table)
{
    if (!table)
        return plugml_table_at(p, 0);
    for (int i = 0; i < plugml_tables(p); i++)
        if (!strcmp(p->tables[i].name, table))
            return &p->tables[i];
    return NULL;
}

/* The table, or NULL with the error told. */
static const plugml_table *table_or_error(plugml *p, const char *name)
{
    const plugml_table *table = plugml_table_named(p, name);

    if (!table)
        fail(p, PLUGML_RANGE, "the job has no dense table %s: see the table= lines of %s/info", name ? name : "at all", p->dir);
    return table;
}

int plugml_put(plugml *p, const char *table, const void *g)
{
    const plugml_table *place;
    int outcome = ready(p);

    if (outcome <= 0)
        return outcome;
    if (!(place = table_or_error(p, table)))
        return -p->code;
    outcome = write_all(p, GRAD, g, (size_t)place->nbytes, place->offset);
    return outcome ? outcome : 1;
}

int plugml_get(plugml *p, const char *table, void *w)
{
    const plugml_table *place;
    int outcome = ready(p);

    if (outcome <= 0)
        return outcome;
    if (!(place = table_or_error(p, table)))
        return -p->code;
    outcome = read_all(p, PARAM, w, (size_t)place->nbytes, place->offset);
    return outcome ? outcome : 1;
}

static void *mapped_table(plugml *p, int which, const char *table)
{
    const plugml_table *place;
    char *start;

    if (ready(p) <= 0 || !(place = table_or_error(p, table)) || !(start = map_file(p, which)))
        return NULL;
    return start + place->offset;
}

void *plugml_grad(plugml *p, const char *table) { return mapped_table(p, GRAD, table); }
void *plugml_param(plugml *p, const char *table) { return mapped_table(p, PARAM, table); }
