/* plugml_shm.h: constants and the ctl page of the plugml channel.  Made by `python -m plugml.shm_protocol.generate`
 * from shm_protocol/page.py: change that table, not this file.  shm_protocol/SPEC.md says what everything means.
 */
#ifndef PLUGML_SHM_H
#define PLUGML_SHM_H

#include <stddef.h>
#include <stdint.h>

#define PLUGML_PROTOCOL_VERSION     1
#define PLUGML_MAGIC                "PLUGMLC1"
#define PLUGML_ABI_MAJOR            1
#define PLUGML_ABI_MINOR            0
#define PLUGML_ENDIAN_TAG           0x01020304u
#define PLUGML_PAGE_BYTES           4096
#define PLUGML_RECORD_BYTES         64
#define PLUGML_REQUEST_BYTES_MAX    4095
#define PLUGML_CONSTANT_BYTES       0x80
#define PLUGML_LOG_START            0x200
#define PLUGML_LOG_END              0xf80
#define PLUGML_FLAG_STOP            1u
#define PLUGML_AT_MAGIC             0x000
#define PLUGML_AT_ABI_MAJOR         0x008
#define PLUGML_AT_ABI_MINOR         0x00a
#define PLUGML_AT_ENDIAN            0x00c
#define PLUGML_AT_PAGE_LEN          0x010
#define PLUGML_AT_CRC32             0x014
#define PLUGML_AT_GEN               0x018
#define PLUGML_AT_N                 0x020
#define PLUGML_AT_CAP_GRAD          0x028
#define PLUGML_AT_CAP_PARAM         0x030
#define PLUGML_AT_CAP_IDX           0x038
#define PLUGML_AT_DTYPE             0x040
#define PLUGML_AT_INDEX_BYTES       0x041
#define PLUGML_AT_FLAGS             0x042
#define PLUGML_AT_WORKER            0x044
#define PLUGML_AT_CREATED           0x048
#define PLUGML_AT_BOOT_ID           0x050
#define PLUGML_AT_DONE_SEQ          0x080
#define PLUGML_AT_CUR_SEQ           0x088
#define PLUGML_AT_CLOCK             0x090
#define PLUGML_AT_VERSION           0x098
#define PLUGML_AT_STATUS            0x0a0
#define PLUGML_AT_STATE             0x0a4
#define PLUGML_AT_AGENT_BEAT        0x0a8
#define PLUGML_AT_AGENT_ID          0x0b0
#define PLUGML_AT_REP_WORD          0x0b8
#define PLUGML_AT_DONE_FLAGS        0x0bc
#define PLUGML_AT_COUNTERS          0x100
#define PLUGML_AT_RESULT_EVEN       0xf80
#define PLUGML_AT_RESULT_ODD        0xfc0

/* number, word, what happened, what to do */
#define PLUGML_CODES(X) \
    X(0, OK, "The request was carried out.", "Go on.") \
    X(1, SEQ, "The sequence number or the clock is not the next one.", "Send `hello` and go on at done_seq + 1.") \
    X(2, FORMAT, "The request line could not be read.", "Write `<verb> <seq> <clock> [key=value ...]` and a newline.") \
    X(3, RANGE, "A number, row or table lies outside what was declared.", "Compare the request with `info`; nothing was applied.") \
    X(4, SIZE, "A data file has not the size that `info` promises.", "Write exactly the declared bytes; nothing was applied.") \
    X(5, NONFINITE, "The push holds NaN or infinity, in a table or in a row.", "Look for an overflow in the program; nothing of the push was applied.") \
    X(6, TIMEOUT, "The answer did not come within `t=`.", "A push was accepted and is carried out later: do not send it again, `pull`.") \
    X(7, AGAIN, "There is no room for the request just now; nothing was done.", "Wait a moment and ring again with the same line.") \
    X(8, NOSERVER, "A server that holds part of the model is gone or out of reach.", "See `plugml status`; the text names the server.") \
    X(9, VERSION, "Program and agent speak different versions of the channel.", "Install the client that belongs to this plugml.") \
    X(10, PERM, "A file of the channel has another owner, type or mode than it must have.", "Let only the program and its agent touch the channel.") \
    X(11, GONE, "The agent is gone for good; whether the last request was carried out is unknown.", "End the program; run it again from the last checkpoint.") \
    X(12, NOSPC, "There is no room: in the channel root, on a server, or in the job's memory.", "Make room where the text says, or ask for less.") \
    X(13, COLLIDE, "Two string keys have the same hash; nothing was applied.", "Rename one of the two keys that the text names.") \
    X(14, STOP, "The job's stop rule has fired.", "End the training loop normally.") \
    X(15, INTERNAL, "plugml itself failed.", "Please report the text with the log of the agent.") \
    X(16, FENCED, "A newer incarnation of this worker has taken its place.", "End the program: its successor is at work.")

/* number, word, meaning */
#define PLUGML_STATES(X) \
    X(1, READY, "the agent waits for the bell") \
    X(2, BUSY, "the agent works on cur_seq") \
    X(3, PARKED, "the agent waits for other workers or for a server on behalf of cur_seq") \
    X(4, CLOSED, "the channel has ended in order; no request is answered any more") \
    X(5, BROKEN, "the agent has given the channel up; `err` says why")

/* index, name, meaning */
#define PLUGML_COUNTERS(X) \
    X(0, requests, "requests answered for good (done_seq moved), refused ones among them") \
    X(1, pushes, "pushes taken and acknowledged") \
    X(2, pulls, "times that param was filled and handed over") \
    X(3, errors, "requests answered with err") \
    X(4, repeats, "replies given again") \
    X(5, bells, "times that the agent was woken by the bell") \
    X(6, empty_bells, "bells with no new request") \
    X(7, torn_reads, "reads of cmd that had to be done again because it was being written") \
    X(8, bytes_pushed, "bytes of pushes taken") \
    X(9, bytes_pulled, "bytes written to param") \
    X(10, adoptions, "times that an agent adopted the channel, the first one included") \
    X(11, refused_sequences, "lines refused with SEQ") \
    X(12, nonfinite, "pushes refused with NONFINITE") \
    X(13, kept, "pushes accepted before they were carried out (async=1, t=)") \
    X(14, pieces, "pieces of input handed out by next") \
    X(15, rows_pushed, "rows of sparse tables in pushes taken") \
    X(16, rows_pulled, "rows of sparse tables handed over")

/* The whole page; gaps are zero. */
struct plugml_ctl {
    char magic[8]; /* 0x000 the letters "PLUGMLC1" */
    uint16_t abi_major; /* 0x008 1; refuse another one */
    uint16_t abi_minor; /* 0x00a accept a greater one */
    uint32_t endian; /* 0x00c 0x01020304 as the writer stores it */
    uint32_t page_len; /* 0x010 4096 */
    uint32_t crc32; /* 0x014 CRC-32 (zlib) of bytes 0x000-0x07f with this field zero */
    uint64_t gen; /* 0x018 generation of this worker: its incarnation, from 1 */
    uint64_t n; /* 0x020 elements of all dense tables together */
    uint64_t cap_grad; /* 0x028 bytes of grad */
    uint64_t cap_param; /* 0x030 bytes of param */
    uint64_t cap_idx; /* 0x038 bytes of gidx and of want; 0 = no table has row numbers */
    uint8_t dtype; /* 0x040 1 f32, 2 f64, 3 i64; 0 = tables differ, see info */
    uint8_t index_bytes; /* 0x041 bytes of a row number, of the widest if tables differ; 0 = no table has any */
    uint16_t flags; /* 0x042 0 */
    uint32_t worker; /* 0x044 number of the worker in its job, from 0 */
    uint64_t created; /* 0x048 unix time of creation, nanoseconds */
    uint8_t boot_id[16]; /* 0x050 the host's boot id */
    uint8_t gap0[0x20];
    uint64_t done_seq; /* 0x080 seq of the last answered request; the commit word, written last */
    uint64_t cur_seq; /* 0x088 seq that the agent took up last; above done_seq = under way */
    int64_t clock; /* 0x090 clocks that the worker has finished after done_seq */
    uint64_t version; /* 0x098 version of the parameters in param */
    int32_t status; /* 0x0a0 outcome of done_seq: 0 ok, else a code */
    uint32_t state; /* 0x0a4 1 READY, 2 BUSY, 3 PARKED, 4 CLOSED, 5 BROKEN */
    uint64_t agent_beat; /* 0x0a8 CLOCK_MONOTONIC nanoseconds, renewed by a live agent each 500 ms */
    uint64_t agent_id; /* 0x0b0 random number of the agent process */
    uint32_t rep_word; /* 0x0b8 one more per reply */
    uint32_t done_flags; /* 0x0bc of done_seq: bit 0 = stop=1 */
    uint8_t gap1[0x40];
    uint64_t counters[32]; /* 0x100 names and order below; not used ones are 0 */
    uint8_t gap2[0xd80];
    uint64_t result_even[8]; /* 0xf80 what an even done_seq stands for: seq, clock, version, status and flags, weight, pushes */
    uint64_t result_odd[8]; /* 0xfc0 the same for an odd one */
};

/* A negative array size says no in C99 and C++98, too, where there is no other way. */
#if defined(__cplusplus) && __cplusplus >= 201103L
#define PLUGML_STATIC_ASSERT(condition) static_assert(condition, #condition)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define PLUGML_STATIC_ASSERT(condition) _Static_assert(condition, #condition)
#else
#define PLUGML_JOINED(left, right) left##right
#define PLUGML_NAMED(line) PLUGML_JOINED(plugml_assert_, line)
#define PLUGML_STATIC_ASSERT(condition) typedef char PLUGML_NAMED(__LINE__)[(condition) ? 1 : -1]
#endif
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, magic) == PLUGML_AT_MAGIC);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, abi_major) == PLUGML_AT_ABI_MAJOR);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, abi_minor) == PLUGML_AT_ABI_MINOR);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, endian) == PLUGML_AT_ENDIAN);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, page_len) == PLUGML_AT_PAGE_LEN);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, crc32) == PLUGML_AT_CRC32);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, gen) == PLUGML_AT_GEN);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, n) == PLUGML_AT_N);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, cap_grad) == PLUGML_AT_CAP_GRAD);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, cap_param) == PLUGML_AT_CAP_PARAM);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, cap_idx) == PLUGML_AT_CAP_IDX);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, dtype) == PLUGML_AT_DTYPE);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, index_bytes) == PLUGML_AT_INDEX_BYTES);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, flags) == PLUGML_AT_FLAGS);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, worker) == PLUGML_AT_WORKER);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, created) == PLUGML_AT_CREATED);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, boot_id) == PLUGML_AT_BOOT_ID);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, done_seq) == PLUGML_AT_DONE_SEQ);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, cur_seq) == PLUGML_AT_CUR_SEQ);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, clock) == PLUGML_AT_CLOCK);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, version) == PLUGML_AT_VERSION);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, status) == PLUGML_AT_STATUS);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, state) == PLUGML_AT_STATE);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, agent_beat) == PLUGML_AT_AGENT_BEAT);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, agent_id) == PLUGML_AT_AGENT_ID);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, rep_word) == PLUGML_AT_REP_WORD);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, done_flags) == PLUGML_AT_DONE_FLAGS);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, counters) == PLUGML_AT_COUNTERS);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, result_even) == PLUGML_AT_RESULT_EVEN);
PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, result_odd) == PLUGML_AT_RESULT_ODD);
PLUGML_STATIC_ASSERT(sizeof(struct plugml_ctl) == PLUGML_PAGE_BYTES);

#endif
