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
#include <poll.h>
#include <semaphore.h>
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

/* Older C libraries have semaphores in another library (-pthread).  Only jobs with bell=sem need them: told where one comes. */
#if defined(__GLIBC__) && __GLIBC__ == 2 && __GLIBC_MINOR__ < 34
#pragma weak sem_open
#pragma weak sem_close
#pragma weak sem_trywait
#pragma weak sem_timedwait
#define HAVE_SEMAPHORES (sem_open && sem_timedwait)
#else
#define HAVE_SEMAPHORES 1
#endif

enum { REQ, REP, CMD, GRAD, PARAM, GIDX, WANT, GKEY, WKEY, DATA, REPLY, CTL, ERR, INFO, FILES };

static const char *const FILE_NAMES[FILES] = {"req", "rep", "cmd", "grad", "param", "gidx", "want", "gkey", "wkey", "data", "reply", "ctl", "err", "info"};

/* req is opened for both directions, so that a ring never blocks and never raises SIGPIPE.  rep is opened for reading
 * only: when the last writer has gone, its end of file tells us. */
static const int FILE_FLAGS[FILES] = {O_RDWR,   O_RDONLY, O_WRONLY, O_RDWR,   O_RDWR,   O_WRONLY, O_WRONLY,
                                      O_WRONLY, O_WRONLY, O_RDONLY, O_RDONLY, O_RDONLY, O_RDONLY, O_RDONLY};

/* A file that we hold open.  A program may close descriptors that it does not know (daemons do), and the number may then
 * belong to another file: device and inode tell whether it is still ours. */
struct held {
    int fd;
    dev_t device;
    ino_t inode;
};

/* What the next request says of one sparse table.  The arrays are the caller's. */
struct section {
    int table;
    int pushes, wants; /* plugml_rows and plugml_want were called */
    size_t k, want;
    const void *rows, *g, *wanted;
    void *w;
};

struct plugml {
    char *dir;
    pid_t owner;
    struct held files[FILES];
    plugml_table *tables;
    int table_count;
    struct section *sections;
    int section_count;
    int mistake;           /* code of a refused plugml_rows or plugml_want: the request that they belong to is refused, too */
    int put;               /* plugml_put was called since the last request */
    uint64_t nbytes;       /* of all dense tables, as they lie in grad and param */
    uint64_t elements;
    uint64_t seq;          /* of the last request that was answered */
    long clock;            /* clocks finished */
    long lag;
    uint64_t version;
    double weight;
    long timeout;          /* milliseconds; 0 = for ever */
    char *pieces;          /* what `data` held at the last next */
    long piece, turn;
    char bell[8];
    sem_t *semaphore;      /* NULL: bell=fifo */
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

enum {
#define ROW(number, word, meaning) STATE_##word = number,
    PLUGML_STATES(ROW)
#undef ROW
    STATES
};

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

static size_t size_of_index(const char *index) { return !strcmp(index, "u32") ? 4 : !strcmp(index, "u64") ? 8 : 0; }

/* One `table=` line of info. */
static int read_table(plugml *p, const char *line)
{
    plugml_table *more, *table;
    char kind[16], order[4];
    const char *shape;
    int sparse;

    if (!copy_word(kind, sizeof kind, value_of(line, "kind")) || (strcmp(kind, "dense") && strcmp(kind, "sparse")))
        return 1;
    sparse = !strcmp(kind, "sparse");
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
    if (sparse && (!copy_word(table->index, sizeof table->index, value_of(line, "index")) || !number_of(line, "width", &table->width) ||
                   !table->width || !number_of(line, "batch", &table->batch)))
        return 0;
    table->order = order[0];
    if (sparse)
        table->count = table->offset = 0;
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

static int open_semaphore(plugml *p, const char *name)
{
    if (!HAVE_SEMAPHORES)
        return fail(p, PLUGML_VERSION, "this job wakes its programs by a semaphore (bell=sem), which this program was linked without: link with -pthread");
    p->semaphore = sem_open(name, 0);
    if (p->semaphore != SEM_FAILED)
        return 0;
    p->semaphore = NULL;
    return fail(p, errno == ENOENT ? PLUGML_GONE : PLUGML_PERM, "cannot open the semaphore %s: %s", name, strerror(errno));
}

static int read_info(plugml *p)
{
    struct stat found;
    uint64_t version = 0, worker = 0, workers = 1;
    char *text, *line, *end, semaphore[256] = "";
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
        copy_word(p->bell, sizeof p->bell, value_of(line, "bell"));
        copy_word(semaphore, sizeof semaphore, value_of(line, "sem"));
    }
    free(text);
    if (version != PLUGML_PROTOCOL_VERSION)
        return fail(p, PLUGML_VERSION, "the channel speaks version %lu, this client speaks %d: install the client that belongs to this plugml",
                    (unsigned long)version, PLUGML_PROTOCOL_VERSION);
    if (!complete)
        return fail(p, PLUGML_FORMAT, "info holds a table that cannot be read");
    p->worker = (int)worker;
    p->workers = (int)workers;
    if (!strcmp(p->bell, "sem"))
        return open_semaphore(p, semaphore);
    return strcmp(p->bell, "fifo") ? fail(p, PLUGML_VERSION, "the channel has a bell that this client does not know: use bell=fifo") : 0;
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
    uint64_t seq, clock, done, version;
    long lag; /* -1: not said */
};

/* Read 64 bytes of text.  Unknown keys are passed over: a later agent may say more. */
static int read_reply(char *record, struct reply *reply)
{
    const char *code;
    char *end;
    uint64_t stop = 0, lag;

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
    reply->lag = number_of(end, "lag", &lag) ? (long)lag : -1;
    number_of(end, "stop", &stop);
    reply->stop = stop == 1;
    code = value_of(end, "code");
    reply->code = code ? code_of_name(code, strcspn(code, " ")) : reply->ok ? PLUGML_OK : PLUGML_INTERNAL;
    return 1;
}

/* Nobody is left who answers: no writer holds `rep` (agent and launcher are dead), or the agent has closed the channel. */
static int is_over(plugml *p)
{
    struct pollfd rep = {file(p, REP), 0, 0};
    uint32_t state = 0;

    if (rep.fd < 0 || (poll(&rep, 1, 0) > 0 && rep.revents & POLLHUP))
        return 1;
    return read_all(p, CTL, &state, sizeof state, PLUGML_AT_STATE) || state == STATE_CLOSED || state == STATE_BROKEN;
}

/* Is it the reply to `seq` that lies in the file?  0 or 1, or minus a code. */
static int look_into_reply(plugml *p, uint64_t seq, struct reply *reply)
{
    char record[PLUGML_RECORD_BYTES], again[PLUGML_RECORD_BYTES];
    int outcome;

    do
        if ((outcome = read_all(p, REPLY, record, sizeof record, 0)) != 0 || (outcome = read_all(p, REPLY, again, sizeof again, 0)) != 0)
            return outcome;
    while (memcmp(record, again, sizeof record));
    return read_reply(record, reply) && (reply->seq == seq || reply->code == PLUGML_GONE);
}

/* bell=sem: the reply lies in a file, and a post says so.  Posts for earlier replies do no harm: the file still has another seq. */
static int wait_semaphore(plugml *p, uint64_t seq, struct reply *reply)
{
    for (;;) {
        struct timespec until;
        int outcome, over;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1; /* Only to look whether anybody is left who could post. */
        outcome = sem_timedwait(p->semaphore, &until);
        if (outcome && errno == EINTR)
            continue;
        if (outcome && errno != ETIMEDOUT)
            return fail(p, PLUGML_PERM, "cannot wait for the semaphore: %s", strerror(errno));
        if (outcome && !is_over(p))
            continue;
        if ((outcome = look_into_reply(p, seq, reply)) != 0)
            return outcome < 0 ? outcome : 0;
        over = is_over(p);
        if (over && (outcome = look_into_reply(p, seq, reply)) != 0) /* It may have come between the two looks. */
            return outcome < 0 ? outcome : 0;
        if (over)
            return fail(p, PLUGML_GONE, "agent and launcher are gone; whether the last request was carried out is unknown; run the program again");
    }
}

/* Sleep until the agent has answered `seq`.  Older replies come again after an agent was restarted: they are passed over.
 * The keeper of the channel answers GONE when there will be no agent any more, and it need not know our seq. */
static int wait_reply(plugml *p, uint64_t seq, struct reply *reply)
{
    char record[PLUGML_RECORD_BYTES];
    size_t got = 0;

    if (p->semaphore)
        return wait_semaphore(p, seq, reply);
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

    for (int tries = 1;; tries++) { /* AGAIN: 60 times, with pauses that grow from 10 ms to a second. */
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
        if (pause.tv_sec)
            continue;
        if (pause.tv_nsec < 500 * 1000 * 1000)
            pause.tv_nsec *= 2;
        else
            pause.tv_sec = 1, pause.tv_nsec = 0;
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
    while (p->semaphore && !sem_trywait(p->semaphore))
        ;
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

/* ---- rows of sparse tables --------------------------------------------------------------------------------------- */

static uint64_t up(uint64_t number, uint64_t step) { return (number + step - 1) / step * step; }

static int is_string(const plugml_table *table) { return !strcmp(table->index, "str"); }

static size_t row_bytes(const plugml_table *table) { return (size_t)table->width * size_of_dtype(table->dtype); }

/* Where the rows begin in grad and param: behind the dense tables, if those take part. */
static uint64_t rows_start(const plugml *p, int dense) { return dense ? up(p->nbytes, 64) : 0; }

/* The string keys of all sections, one a line; nothing may lie behind them. */
static int write_keys(plugml *p, int which)
{
    size_t length = 0, at = 0;
    char *text = NULL;
    int outcome, strings = 0;

    for (int fill = 0; fill < 2; fill++) {
        for (int i = 0; i < p->section_count; i++) {
            const struct section *section = &p->sections[i];
            const char *const *keys = (const char *const *)(which == GKEY ? section->rows : section->wanted);
            size_t count = which == GKEY ? section->k : section->want;

            if (!is_string(&p->tables[section->table]))
                continue;
            strings = 1;
            for (size_t key = 0; key < count; key++) {
                size_t bytes = strlen(keys[key]);

                if (!fill && memchr(keys[key], '\n', bytes)) {
                    return fail(p, PLUGML_FORMAT, "key %lu of table %s holds a newline, which ends a key; nothing was applied",
                                (unsigned long)key + 1, p->tables[section->table].name);
                } else if (fill) {
                    memcpy(text + at, keys[key], bytes);
                    text[at + bytes] = '\n';
                    at += bytes + 1;
                } else {
                    length += bytes + 1;
                }
            }
        }
        if (!strings)
            return 0;
        if (!fill && !(text = (char *)malloc(length + 1)))
            return fail(p, PLUGML_NOSPC, "no memory for %lu bytes of keys", (unsigned long)length);
    }
    outcome = write_all(p, which, text, length, 0);
    free(text);
    if (!outcome && (file(p, which) < 0 || ftruncate(file(p, which), (off_t)length)))
        return fail(p, PLUGML_PERM, "cannot cut %s: %s", FILE_NAMES[which], strerror(errno));
    return outcome;
}

/* The rows that are pushed: their numbers or keys, and what is pushed to them. */
static int write_rows(plugml *p, int dense)
{
    uint64_t at = rows_start(p, dense), index_at = 0;
    int outcome;

    for (int i = 0; i < p->section_count; i++) {
        const struct section *section = &p->sections[i];
        const plugml_table *table = &p->tables[section->table];
        size_t numbers = section->k * row_bytes(table), index = section->k * size_of_index(table->index);

        if (numbers && (outcome = write_all(p, GRAD, section->g, numbers, at)) != 0)
            return outcome;
        if (index && (outcome = write_all(p, GIDX, section->rows, index, index_at)) != 0)
            return outcome;
        at = up(at + numbers, 8);
        index_at = up(index_at + index, 8);
    }
    return write_keys(p, GKEY);
}

/* The numbers or keys of the rows that are wanted. */
static int write_wanted(plugml *p)
{
    uint64_t at = 0;
    int outcome;

    for (int i = 0; i < p->section_count; i++) {
        const struct section *section = &p->sections[i];
        size_t index = section->want * size_of_index(p->tables[section->table].index);

        if (index && (outcome = write_all(p, WANT, section->wanted, index, at)) != 0)
            return outcome;
        at = up(at + index, 8);
    }
    return write_keys(p, WKEY);
}

static int read_wanted(plugml *p, int dense)
{
    uint64_t at = rows_start(p, dense);
    int outcome;

    for (int i = 0; i < p->section_count; i++) {
        const struct section *section = &p->sections[i];
        size_t numbers = section->want * row_bytes(&p->tables[section->table]);

        if (numbers && (outcome = read_all(p, PARAM, section->w, numbers, at)) != 0)
            return outcome;
        at = up(at + numbers, 8);
    }
    return 0;
}

/* Refuse the rows, and with them the request that they belong to. */
static int refuse_rows(plugml *p, int outcome)
{
    p->mistake = -outcome;
    return outcome;
}

/* The names of all sparse tables, as many as there is room for. */
static const char *sparse_names(const plugml *p, char *text, size_t room)
{
    size_t at = 0;

    snprintf(text, room, "none");
    for (int i = 0; i < p->table_count; i++)
        if (p->tables[i].width && at < room)
            at += (size_t)snprintf(text + at, room - at, "%s%s", at ? ", " : "", p->tables[i].name);
    return text;
}

/* The section of a table for `k` rows, or NULL with the error told. */
static struct section *section_of(plugml *p, const char *name, size_t k)
{
    const plugml_table *table = plugml_table_named(p, name);
    struct section *more;

    if (!table || !table->width || !name) {
        char known[256];

        fail(p, PLUGML_RANGE, "the job has no sparse table %s; it has %s", name ? name : "without a name", sparse_names(p, known, sizeof known));
        return NULL;
    }
    if (k > table->batch) {
        fail(p, PLUGML_RANGE, "%lu rows of table %s: one request takes at most %lu (the table's batch=)", (unsigned long)k, name,
             (unsigned long)table->batch);
        return NULL;
    }
    for (int i = 0; i < p->section_count; i++)
        if (&p->tables[p->sections[i].table] == table)
            return &p->sections[i];
    more = (struct section *)realloc(p->sections, (size_t)(p->section_count + 1) * sizeof *more);
    if (!more) {
        fail(p, PLUGML_NOSPC, "no memory for a request");
        return NULL;
    }
    p->sections = more;
    memset(&more[p->section_count], 0, sizeof *more);
    more[p->section_count].table = (int)(table - p->tables);
    return &more[p->section_count++];
}

int plugml_rows(plugml *p, const char *table, size_t k, const void *rows, const void *g)
{
    struct section *section;
    int outcome = ready(p);

    if (outcome <= 0)
        return outcome;
    if (!(section = section_of(p, table, k)))
        return refuse_rows(p, -p->code);
    if (section->pushes++)
        return refuse_rows(p, fail(p, PLUGML_FORMAT, "table %s has its rows for this request already: give all of them in one call", table));
    section->k = k;
    section->rows = rows;
    section->g = g;
    return 1;
}

int plugml_want(plugml *p, const char *table, size_t k, const void *rows, void *w)
{
    struct section *section;
    int outcome = ready(p);

    if (outcome <= 0)
        return outcome;
    if (!(section = section_of(p, table, k)))
        return refuse_rows(p, -p->code);
    if (section->wants++)
        return refuse_rows(p, fail(p, PLUGML_FORMAT, "rows of table %s are wanted by this request already: name all of them in one call", table));
    section->want = k;
    section->wanted = rows;
    section->w = w;
    return 1;
}

int plugml_expect_rows(plugml *p, const char *table, const char *index, const char *dtype, uint64_t width)
{
    const plugml_table *found;
    int outcome = ready(p);

    if (outcome <= 0)
        return outcome;
    found = table ? plugml_table_named(p, table) : NULL;
    if (found && found->width == width && !strcmp(found->index, index) && !strcmp(found->dtype, dtype))
        return 1;
    p->fatal = 1;
    if (!found || !found->width)
        return fail(p, PLUGML_SIZE, "the job has no sparse table %s: declare --table %s=sparse:%s,width=%lu,index=%s", table ? table : "?",
                    table ? table : "NAME", dtype, (unsigned long)width, index);
    return fail(p, PLUGML_SIZE, "table %s has index %s, dtype %s and width %lu, the program has %s, %s and %lu: make them agree", table,
                found->index, found->dtype, (unsigned long)found->width, index, dtype, (unsigned long)width);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

#define WEIGHT_MAX 9007199254740992.0 /* 2^53 */

static int is_in_time(const char *verb) /* May it have t=? */
{
    return !strcmp(verb, "step") || !strcmp(verb, "push") || !strcmp(verb, "pull") || !strcmp(verb, "pushpull") || !strcmp(verb, "clock");
}

/* The data lie in their files: make the request.  1, or minus a code. */
static int carry_out(plugml *p, const char *verb, const char *words, struct reply *reply)
{
    char line[PLUGML_REQUEST_BYTES_MAX + 2], limit[32] = "";
    int outcome;

    if (p->code == PLUGML_SEQ && (outcome = say_hello(p)) != 0) /* Somebody else has used the channel: take up his count. */
        return outcome;
    if (p->timeout > 0 && is_in_time(verb))
        snprintf(limit, sizeof limit, " t=%ld", p->timeout);
    if (snprintf(line, sizeof line, "%s %llu %ld%s%s\n", verb, (unsigned long long)p->seq + 1, p->clock, limit, words) >= (int)sizeof line)
        return fail(p, PLUGML_FORMAT, "the request names too many tables for one line: make several pushes of it");
    outcome = ask(p, line, p->seq + 1, reply);
    if (outcome)
        return outcome;
    p->seq += reply->code != PLUGML_SEQ && reply->code != PLUGML_AGAIN; /* Refused for good is answered, too. */
    if (reply->code != PLUGML_AGAIN && reply->code != PLUGML_GONE)
        p->clock = (long)reply->clock; /* After TIMEOUT a refusal moves it, too. */
    p->stop |= reply->stop;
    if (reply->code == PLUGML_STOP) { /* No error: the loop has come to its end. */
        p->stop = 1;
        p->code = PLUGML_STOP;
        snprintf(p->text, sizeof p->text, "%s", CODES[PLUGML_STOP].meaning);
        return -PLUGML_STOP;
    }
    if (!reply->ok)
        return refused(p, reply);
    p->code = 0;
    p->lag = reply->lag >= 0 ? reply->lag : p->lag;
    p->version = reply->version ? reply->version : p->version;
    return 1;
}

/* What follows verb, seq and clock in the line; writes what is pushed, and the numbers of the rows. */
static int prepare(plugml *p, int pushing, const void *g, int pulling, int dense, double weight, int unwaited, char *words, size_t room)
{
    char shown[48];
    size_t at = 0;
    int outcome;

    words[0] = 0;
    if (dense && (pushing || p->section_count))
        at += (size_t)snprintf(words + at, room - at, " n=%llu", (unsigned long long)p->elements);
    if (pushing) {
        if (!(weight >= 0) || weight > WEIGHT_MAX)
            return fail(p, PLUGML_RANGE, "weight %g: a weight is from 0 to 2^53; nothing was pushed", weight);
        format_weight(shown, sizeof shown, weight);
        at += (size_t)snprintf(words + at, room - at, " w=%s%s", shown, unwaited ? " async=1" : "");
    }
    for (int i = 0; i < p->section_count && at < room; i++) {
        const struct section *section = &p->sections[i];

        at += (size_t)snprintf(words + at, room - at, " table=%s", p->tables[section->table].name);
        if (section->k && at < room)
            at += (size_t)snprintf(words + at, room - at, " k=%lu", (unsigned long)section->k);
        if (section->want && at < room)
            at += (size_t)snprintf(words + at, room - at, " want=%lu", (unsigned long)section->want);
    }
    if (pushing && dense && g && g != p->mapped[GRAD] && (outcome = write_all(p, GRAD, g, (size_t)p->nbytes, 0)) != 0)
        return outcome;
    if (pushing && p->section_count && (outcome = write_rows(p, dense)) != 0)
        return outcome;
    return pulling && p->section_count ? write_wanted(p) : 0;
}

static int with_data(plugml *p, const char *verb, int pushing, const void *g, int pulling, void *w, double weight, int unwaited)
{
    char words[PLUGML_REQUEST_BYTES_MAX + 1];
    struct reply reply;
    /* Beside rows the dense tables take part iff somebody gives them, or a place for them. */
    int outcome, dense = !p->section_count || g || (pushing ? p->put : w != NULL);

    if (p->mistake)
        return fail(p, p->mistake, "nothing was asked, since the rows that were named for this request had been refused");
    if (w && !dense)
        return fail(p, PLUGML_FORMAT, "the dense tables are pulled where they are pushed, too: give their g beside the rows, or pull them alone");
    outcome = prepare(p, pushing, g, pulling, dense, weight, unwaited, words, sizeof words);
    if (outcome)
        return outcome;
    outcome = carry_out(p, verb, words, &reply);
    if (outcome < 0 || !pulling)
        return outcome;
    if (w && w != p->mapped[PARAM] && (outcome = read_all(p, PARAM, w, (size_t)p->nbytes, 0)) != 0)
        return outcome;
    outcome = p->section_count ? read_wanted(p, dense) : 0;
    return outcome ? outcome : 1;
}

/* One request that pushes `g` if `pushing`, fills `w` if `pulling`, and takes the rows along that were named for it.
 * See plugml.h for the return value. */
static int request(plugml *p, const char *verb, int pushing, const void *g, int pulling, void *w, double weight, int unwaited)
{
    int outcome = ready(p);

    if (outcome <= 0)
        return outcome;
    outcome = with_data(p, verb, pushing, g, pulling, w, weight, unwaited);
    p->section_count = p->mistake = p->put = 0;
    return outcome;
}

static int bare_request(plugml *p, const char *verb)
{
    struct reply reply;
    int outcome = ready(p);

    return outcome > 0 ? carry_out(p, verb, "", &reply) : outcome;
}

int plugml_step_w(plugml *p, const void *g, void *w, double weight) { return request(p, "step", 1, g, 1, w, weight, 0); }
int plugml_step(plugml *p, const void *g, void *w) { return request(p, "step", 1, g, 1, w, p ? p->weight : 1, 0); }
int plugml_init(plugml *p, void *w) { return request(p, "init", 1, w, 1, w, 1, 0); }
int plugml_push(plugml *p, const void *g) { return request(p, "push", 1, g, 0, NULL, p ? p->weight : 1, 0); }
int plugml_push_async(plugml *p, const void *g) { return request(p, "push", 1, g, 0, NULL, p ? p->weight : 1, 1); }
int plugml_pull(plugml *p, void *w) { return request(p, "pull", 0, NULL, 1, w, 1, 0); }
int plugml_pushpull(plugml *p, const void *g, void *w) { return request(p, "pushpull", 1, g, 1, w, p ? p->weight : 1, 0); }
int plugml_tick(plugml *p) { return bare_request(p, "clock"); }
int plugml_ping(plugml *p) { return bare_request(p, "ping"); }

/* Take `<turn> <piece> <text>` out of the line in `data`.  The text; NULL if there is none, or with the error told.  The file
 * is as long as its line; not all replies say how long that is: one that is repeated does not. */
static const char *read_piece(plugml *p)
{
    struct stat found;
    size_t length;
    char *more, *end;

    if (file(p, DATA) < 0 || fstat(file(p, DATA), &found) || !found.st_size)
        return NULL;
    length = (size_t)found.st_size;
    if (!(more = (char *)realloc(p->pieces, length + 1))) {
        fail(p, PLUGML_NOSPC, "no memory for a piece of %lu bytes", (unsigned long)length);
        return NULL;
    }
    p->pieces = more;
    if (read_all(p, DATA, more, length, 0))
        return NULL;
    more[length] = 0;
    more[strcspn(more, "\n")] = 0;
    p->turn = strtol(more, &end, 10);
    p->piece = strtol(end, &end, 10);
    if (*end == ' ')
        return end + 1;
    p->piece = -1;
    fail(p, PLUGML_INTERNAL, "the piece of input in %s/data cannot be read", p->dir);
    return NULL;
}

const char *plugml_next(plugml *p, const char *alone)
{
    struct reply reply;

    if (!p)
        return alone;
    p->piece = -1;
    return ready(p) > 0 && carry_out(p, "next", "", &reply) > 0 ? read_piece(p) : NULL;
}

long plugml_piece(const plugml *p) { return p ? p->piece : -1; }
long plugml_turn(const plugml *p) { return p ? p->turn : 0; }

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
    p->piece = -1;
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
        if (!p->tables[i].width && strcmp(p->tables[i].dtype, dtype)) {
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
int plugml_stopped(const plugml *p) { return p && p->stop; }

int plugml_bye(plugml *p)
{
    int failed;

    if (!p || p->owner != getpid()) /* A forked child that ends must not say bye for its parent. */
        return p == &broken;
    failed = p->fatal || (p->code && p->code != PLUGML_STOP);
    if (!failed) /* After an error the exit code speaks: the launcher decides whether to start the worker again. */
        failed = bare_request(p, "bye") < 0;
    plugml_close(p);
    return failed;
}

void plugml_close(plugml *p)
{
    if (!p || p->owner != getpid())
        return;
    for (int which = 0; which < FILES; which++) {
        struct stat now;
        struct held *held = &p->files[which];

        if (p->mapped[which])
            munmap(p->mapped[which], (size_t)p->nbytes);
        if (held->fd >= 0 && !fstat(held->fd, &now) && now.st_ino == held->inode && now.st_dev == held->device)
            close(held->fd);
    }
    if (p->semaphore)
        sem_close(p->semaphore);
    free(p->sections);
    free(p->pieces);
    free(p->tables);
    free(p->dir);
    free(p);
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

void plugml_weight(plugml *p, double weight)
{
    if (p)
        p->weight = weight;
}

void plugml_timeout(plugml *p, long milliseconds)
{
    if (p)
        p->timeout = milliseconds;
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
    for (int i = 0; i < plugml_tables(p); i++)
        if (table ? !strcmp(p->tables[i].name, table) : !p->tables[i].width)
            return &p->tables[i];
    return NULL;
}

/* The table, or NULL with the error told. */
static const plugml_table *table_or_error(plugml *p, const char *name)
{
    const plugml_table *table = plugml_table_named(p, name);

    if (table && table->width)
        table = NULL; /* Rows are given to plugml_rows. */
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
    p->put = 1;
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
