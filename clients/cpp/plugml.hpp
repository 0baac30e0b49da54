/* plugml.hpp: plug a serial C++ program into its channel.  C++11 or later, over the C client, which lies beside it.
 *
 *     g++ -O2 trainer.cpp plugml.c -o trainer
 *
 *     plug::channel p;                                    // alone without PLUGML_DIR
 *     for (long step : p.steps(w, steps)) {               // was for (long step = 0; step < steps; step++)
 *         gradient(w, g);
 *         if (!p.step(g, w))                              // false: alone
 *             update(w, g);                               // your own
 *     }
 *     return p.bye();
 *
 * Arrays are std::vector, std::array, T[N] or plug::span<T>{pointer, length}, of float, double or int64_t as the table's dtype, and as
 * long as the table.  What is refused is thrown as plug::error.  The destructor closes the channel without saying bye: a
 * program that leaves by an exception has not finished.
 */
#ifndef PLUGML_HPP
#define PLUGML_HPP

#include "plugml.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace plug {

/* A request that was refused, or a channel that cannot be used. */
class error : public std::runtime_error {
public:
    error(int code, const std::string &text) : std::runtime_error(std::string(plugml_code_name(code)) + ": " + text), code_(code), text_(text) {}
    int code() const { return code_; } /* PLUGML_SIZE, PLUGML_NONFINITE ... */
    std::string name() const { return plugml_code_name(code_); }
    const std::string &text() const { return text_; }

private:
    int code_;
    std::string text_;
};

/* An array of somebody else's. */
template <class T> struct span {
    T *start;
    std::size_t length;
    typedef typename std::remove_const<T>::type value_type;
    T *data() const { return start; }
    std::size_t size() const { return length; }
    T &operator[](std::size_t at) const { return start[at]; }
    T *begin() const { return start; }
    T *end() const { return start + length; }
};

template <class C> auto span_of(C &array) -> span<typename std::remove_pointer<decltype(array.data())>::type> { return {array.data(), array.size()}; }
template <class T, std::size_t N> span<T> span_of(T (&array)[N]) { return {array, N}; }

inline const char *dtype_of(const float *) { return "f32"; }
inline const char *dtype_of(const double *) { return "f64"; }
inline const char *dtype_of(const std::int64_t *) { return "i64"; }
inline const char *dtype_of(const long long *) { return "i64"; }

inline const char *index_of(const std::uint32_t *) { return "u32"; }
inline const char *index_of(const std::uint64_t *) { return "u64"; }
inline const char *index_of(const std::string *) { return "str"; }

/* What `next` gives: what the job's list says, the number of the piece, and the pass over all pieces, both from 0. */
struct piece {
    std::string text;
    long number, turn;
};

class channel;

/* The clocks that are still to be done; it ends when the stop rule has fired. */
class clocks {
public:
    class iterator {
    public:
        iterator(const channel *p, long at, long end) : p_(p), at_(at), end_(end) {}
        long operator*() const { return at_; }
        inline iterator &operator++();
        inline bool operator!=(const iterator &) const;

    private:
        const channel *p_;
        long at_, end_;
    };

    clocks(const channel *p, long first, long end) : p_(p), first_(first), end_(end) {}
    iterator begin() const { return iterator(p_, first_, end_); }
    iterator end() const { return iterator(p_, end_, end_); }

private:
    const channel *p_;
    long first_, end_;
};

/* A program's side of one channel.  It can be moved, not copied, and belongs to one thread at a time. */
class channel {
public:
    /* Attach to the channel that PLUGML_DIR names; without that variable the program runs alone. */
    channel() : p_(plugml_attach())
    {
        plugml_quiet(p_, 1); /* exceptions speak from here on */
        if (!plugml_code(p_))
            return;
        error told(plugml_code(p_), plugml_error(p_));
        plugml_bye(p_); /* says nothing after an error */
        throw told;
    }
    channel(channel &&other) noexcept : p_(nullptr) { swap(other); }
    channel &operator=(channel &&other) noexcept
    {
        swap(other);
        return *this;
    }
    channel(const channel &) = delete;
    channel &operator=(const channel &) = delete;
    ~channel() { plugml_close(p_); }

    /* Say that this worker has finished, and close.  The exit code for main(): 0, or 1 if the last request failed. */
    int bye()
    {
        int failed = mistake_ ? 1 : 0;

        if (failed)
            plugml_close(p_);
        else
            failed = plugml_bye(p_);
        p_ = nullptr;
        return failed;
    }

    /* Fill `w` with the values of now; the clocks from where this worker goes on to `end`.  Alone: 0 to `end`. */
    template <class W> clocks steps(W &w, long end)
    {
        pull(w);
        return clocks(this, clock(), end);
    }

    /* Push `g`, end this clock, and fill `w` with what the consistency model allows to see.  false: alone. */
    template <class G, class W> bool step(const G &g, W &w) { return with_arrays(&plugml_step, span_of(g), span_of(w)); }

    /* The same with a weight of its own: how many examples are behind `g`. */
    template <class G, class W> bool step(const G &g, W &w, double weight)
    {
        return with_arrays([weight](plugml *p, const void *from, void *into) { return plugml_step_w(p, from, into, weight); }, span_of(g), span_of(w));
    }

    template <class G, class W> bool pushpull(const G &g, W &w) { return with_arrays(&plugml_pushpull, span_of(g), span_of(w)); }
    template <class G> bool push(const G &g) { return with_array(&plugml_push, span_of(g)); }            /* several pushes may go into one clock */
    template <class G> bool push_async(const G &g) { return with_array(&plugml_push_async, span_of(g)); } /* what fails later is told by the next request */
    template <class W> bool pull(W &w) { return with_array(&plugml_pull, span_of(w)); }
    template <class W> bool init(W &w) { return with_array(&plugml_init, span_of(w)); } /* offer first values; `w` becomes the job's */

    /* Requests without arrays: of what was put, and of rows. */
    bool step() { return request([this] { return plugml_step(p_, nullptr, nullptr); }); }
    bool push() { return request([this] { return plugml_push(p_, nullptr); }); }
    bool push_async() { return request([this] { return plugml_push_async(p_, nullptr); }); }
    bool pull() { return request([this] { return plugml_pull(p_, nullptr); }); }
    bool pushpull() { return request([this] { return plugml_pushpull(p_, nullptr, nullptr); }); }
    bool tick() { return told(plugml_tick(p_)); } /* end this clock without a push */
    bool ping() { return told(plugml_ping(p_)); }

    /* Dense tables by name: put before a push, get after a pull. */
    template <class G> bool put(const std::string &table, const G &g)
    {
        fits(table.c_str(), span_of(g));
        return told(plugml_put(p_, table.c_str(), span_of(g).data()));
    }
    template <class W> bool get(const std::string &table, W &w)
    {
        fits(table.c_str(), span_of(w));
        return told(plugml_get(p_, table.c_str(), span_of(w).data()));
    }

    /* The files themselves, mapped: fill `grad`, step(), read `param`.  Alone: empty. */
    template <class T> span<T> grad(const std::string &table) { return mapped<T>(&plugml_grad, table); }
    template <class T> span<const T> param(const std::string &table) { return mapped<const T>(&plugml_param, table); }

    /* With the next request push values[i * width ...] to row keys[i]; keys are uint32_t or uint64_t from 0, or std::string.  Both are
     * copied.  What is refused here refuses that request, too. */
    template <class K, class G> bool rows(const std::string &table, const K &keys, const G &values)
    {
        const plugml_table *found = sparse(table, span_of(keys));
        auto numbers = span_of(values);

        if (found && (std::strcmp(found->dtype, dtype_of(numbers.data())) || numbers.size() != span_of(keys).size() * found->width))
            fail(PLUGML_SIZE, span_of(keys).size(), "rows of table " + table + " take as many times its width of " + found->dtype + " numbers");
        std::vector<char> &copy = keep(numbers.data(), numbers.size() * sizeof *numbers.data());
        return named(plugml_rows(p_, table.c_str(), span_of(keys).size(), names_of(span_of(keys)), copy.data()));
    }

    /* Ask for rows with the next request that pulls; came() gives them afterwards. */
    template <class K> bool want(const std::string &table, const K &keys)
    {
        const plugml_table *found = sparse(table, span_of(keys));
        const std::size_t bytes = found ? span_of(keys).size() * found->width * (std::strcmp(found->dtype, "f32") ? 8 : 4) : 0;
        std::vector<char> into(bytes + 1); /* never empty: it has a place in memory */

        if (named(plugml_want(p_, table.c_str(), span_of(keys).size(), names_of(span_of(keys)), into.data())))
            wanted_[table] = std::move(into);
        return p_ != nullptr;
    }

    /* The rows that the last request wanted, one after the other; empty: none. */
    template <class T> std::vector<T> came(const std::string &table)
    {
        const plugml_table *found = this->table(table);
        auto bytes = came_.find(table);

        if (!found || bytes == came_.end())
            return std::vector<T>();
        if (std::strcmp(found->dtype, dtype_of(static_cast<T *>(nullptr))))
            fail(PLUGML_SIZE, 0, "table " + table + " holds " + found->dtype + " numbers");
        std::vector<T> values((bytes->second.size() - 1) / sizeof(T));
        if (!values.empty())
            std::memcpy(values.data(), bytes->second.data(), values.size() * sizeof(T));
        return values;
    }

    /* The next piece of input, into `found`; false: nothing is left.  Alone it gives `alone`, once. */
    bool next(piece &found, const std::string &alone = std::string())
    {
        if (!p_) {
            found = piece{alone, 0, 0};
            return !handed_ && (handed_ = !alone.empty());
        }
        const char *text = plugml_next(p_, nullptr);
        if (!text && plugml_code(p_) && plugml_code(p_) != PLUGML_STOP)
            throw error(plugml_code(p_), plugml_error(p_));
        if (text)
            found = piece{text, plugml_piece(p_), plugml_turn(p_)};
        mistake_ = 0;
        return text != nullptr;
    }

    /* Refuse to go on unless the dense tables hold `count` elements of T. */
    template <class T> bool expect(std::size_t count) { return told(plugml_expect(p_, dtype_of(static_cast<T *>(nullptr)), count)); }

    void weight(double weight) { plugml_weight(p_, weight); }               /* of all following pushes; 1 in the beginning */
    void timeout(long milliseconds) { plugml_timeout(p_, milliseconds); }   /* of all following requests; 0: for ever */

    bool plugged() const { return p_ != nullptr; }
    explicit operator bool() const { return plugged(); }
    bool main() const { return plugml_main(p_) != 0; } /* alone or worker 0: prints and saves */
    int worker() const { return plugml_worker(p_); }
    int workers() const { return plugml_workers(p_); }
    long clock() const { return plugml_clock(p_); }
    long lag() const { return plugml_lag(p_); } /* clocks that the slowest worker is behind */
    std::uint64_t version() const { return plugml_version(p_); }
    bool stopped() const { return plugml_stopped(p_) != 0; }            /* the job's stop rule has fired */
    bool done() const { return mistake_ || plugml_done(p_); }           /* a loop must end: so it has, or the last request failed */
    int code() const { return mistake_ ? mistake_ : plugml_code(p_); }  /* of the last request */
    int tables() const { return plugml_tables(p_); }
    const plugml_table *table(int number) const { return plugml_table_at(p_, number); }
    const plugml_table *table(const std::string &name) const { return plugml_table_named(p_, name.c_str()); }

private:
    plugml *p_;
    int mistake_ = 0; /* code of an error that was found here, before the C client was asked */
    bool handed_ = false;
    std::list<std::vector<char>> kept_; /* what the next request reads */
    std::list<std::vector<const char *>> strings_;
    std::map<std::string, std::vector<char>> wanted_, came_;

    void swap(channel &other) noexcept
    {
        std::swap(p_, other.p_);
        std::swap(mistake_, other.mistake_);
        std::swap(handed_, other.handed_);
        kept_.swap(other.kept_);
        strings_.swap(other.strings_);
        wanted_.swap(other.wanted_);
        came_.swap(other.came_);
    }

    [[noreturn]] void fail(int code, std::size_t given, const std::string &text)
    {
        mistake_ = code;
        throw error(code, text + (given ? "; " + std::to_string(given) + " were given" : "") + ": make --table and the arrays agree");
    }

    /* The outcome of a request: plugged or not; STOP is no error. */
    bool told(int outcome)
    {
        if (outcome < 0 && outcome != -PLUGML_STOP)
            throw error(-outcome, plugml_error(p_));
        mistake_ = 0;
        return outcome != 0;
    }

    bool named(int outcome)
    {
        if (outcome < 0)
            throw error(-outcome, plugml_error(p_));
        return outcome != 0;
    }

    template <class F> bool request(F ask)
    {
        const int outcome = ask();

        came_.clear();
        if (outcome > 0)
            came_.swap(wanted_);
        wanted_.clear();
        kept_.clear();
        strings_.clear();
        return told(outcome);
    }

    /* The length and type of an array are those of a dense table; NULL: of the only one. */
    template <class T> void fits(const char *name, span<T> array)
    {
        const plugml_table *found = plugml_table_named(p_, name), *other;

        if (!p_ || (name && (!found || found->width)))
            return; /* the C client says it */
        for (int number = 0; !name && (other = table(number)) != nullptr; number++)
            if (!other->width && other != found)
                fail(PLUGML_SIZE, 0, "an array without a name stands for the only dense table, and the job has several: put and get each by name");
        if (!found)
            fail(PLUGML_SIZE, 0, "the job has no dense table");
        if (std::strcmp(found->dtype, dtype_of(array.data())))
            fail(PLUGML_SIZE, 0, std::string("table ") + found->name + " holds " + found->dtype + " numbers, the program has " + dtype_of(array.data()));
        if (found->count != array.size())
            fail(PLUGML_SIZE, array.size(), std::string("table ") + found->name + " has " + std::to_string(found->count) + " elements");
    }

    template <class F, class T> bool with_array(F ask, span<T> array)
    {
        fits(nullptr, array);
        return request([&] { return ask(p_, array.data()); });
    }

    template <class F, class G, class W> bool with_arrays(F ask, span<G> g, span<W> w)
    {
        fits(nullptr, g);
        fits(nullptr, w);
        return request([&] { return ask(p_, g.data(), w.data()); });
    }

    template <class T> span<T> mapped(void *(*map)(plugml *, const char *), const std::string &name)
    {
        const plugml_table *found = table(name);

        if (p_ && found && std::strcmp(found->dtype, dtype_of(static_cast<T *>(nullptr))))
            fail(PLUGML_SIZE, 0, "table " + name + " holds " + found->dtype + " numbers");
        T *start = static_cast<T *>(map(p_, name.c_str()));
        if (p_ && !start)
            throw error(plugml_code(p_), plugml_error(p_));
        return span<T>{start, start ? static_cast<std::size_t>(found->count) : 0};
    }

    /* The sparse table, if the keys are those of its index; NULL: the C client says what is wrong. */
    template <class K> const plugml_table *sparse(const std::string &name, span<K> keys)
    {
        const plugml_table *found = table(name);

        if (!found || !found->width)
            return nullptr;
        if (std::strcmp(found->index, index_of(keys.data())))
            fail(PLUGML_SIZE, 0, "table " + name + " has index " + found->index + ", rows were given as " + index_of(keys.data()));
        return found;
    }

    std::vector<char> &keep(const void *from, std::size_t bytes)
    {
        const char *start = static_cast<const char *>(from);

        kept_.emplace_back(start, start + bytes);
        return kept_.back();
    }

    template <class K> const void *names_of(span<K> keys) { return keep(keys.data(), keys.size() * sizeof *keys.data()).data(); }

    const void *names_of(span<const std::string> keys)
    {
        strings_.emplace_back();
        for (const std::string &key : keys)
            strings_.back().push_back(keep(key.c_str(), key.size() + 1).data());
        return strings_.back().data();
    }
};

/* Plugged, the channel counts: a step that failed is not counted. */
clocks::iterator &clocks::iterator::operator++()
{
    at_ = p_->plugged() ? p_->clock() : at_ + 1;
    return *this;
}

bool clocks::iterator::operator!=(const iterator &) const { return at_ < end_ && !p_->done(); }

} // namespace plug

#endif
