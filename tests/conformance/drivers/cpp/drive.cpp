// Does what its arguments say with the C++ client, and prints the outcome of each: as drive.py, and after the word `rows` as rows.py.
#include "plugml.hpp"

#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

// The C client is compiled with -Dnanosleep=plugml_test_pause: its pauses take no time where UNPAUSED is set.
extern "C" int plugml_test_pause(const struct timespec *pause, struct timespec *rest) { return std::getenv("UNPAUSED") ? 0 : nanosleep(pause, rest); }

typedef std::vector<std::string> words_t;

static bool mapped;

static words_t split(const std::string &text, char mark)
{
    words_t words;
    std::string word;

    for (std::istringstream from(text); std::getline(from, word, mark);)
        words.push_back(word);
    if (!text.empty() && text.back() == mark)
        words.push_back("");
    return words;
}

template <class T> std::string shown(const T *from, std::size_t count, std::size_t width)
{
    std::string text;

    for (std::size_t i = 0; i < count; i++) {
        char number[40];

        std::snprintf(number, sizeof number, "%.9g", static_cast<double>(from[i]));
        text += (i ? (i % width ? "," : ";") : "") + std::string(number);
    }
    return text;
}

template <class T> static std::vector<T> ramp(std::size_t n, double constant)
{
    std::vector<T> g(n);

    for (std::size_t i = 0; i < n; i++)
        g[i] = static_cast<T>(constant + static_cast<double>(i));
    return g;
}

template <class F> static std::string outcome(const plug::channel &p, const std::string &verb, F action)
{
    const bool stopped = p.stopped();

    try {
        if (!action())
            return "0 OK";
    } catch (const plug::error &refused) {
        std::fprintf(stderr, "clock %ld: %s\n", p.clock(), refused.what());
        return "E " + refused.name();
    }
    return stopped && std::string(" step push async pushpull tick ").find(" " + verb + " ") != std::string::npos ? "S STOP" : "1 OK";
}

template <class T> static bool dense(plug::channel &p, const std::string &verb, const std::vector<T> &g, std::vector<T> &w)
{
    return verb == "step" ? p.step(g, w) : verb == "push" ? p.push(g) : verb == "async" ? p.push_async(g) : verb == "pull" ? p.pull(w)
         : verb == "pushpull" ? p.pushpull(g, w) : verb == "tick" ? p.tick() : p.ping();
}

// The same through the mapped files.
template <class T> static bool in_place(plug::channel &p, const std::string &verb, const std::vector<T> &g, std::vector<T> &w)
{
    const std::string name = p.tables() ? p.table(0)->name : "";
    plug::span<T> grad = p.grad<T>(name);

    for (std::size_t i = 0; i < grad.size(); i++)
        grad[i] = g[i];
    const bool plugged = verb == "step" ? p.step() : verb == "push" ? p.push() : verb == "pull" ? p.pull() : verb == "pushpull" ? p.pushpull()
                       : verb == "tick" ? p.tick() : p.ping();
    const plug::span<const T> param = p.param<T>(name);
    w.assign(param.begin(), param.end());
    return plugged;
}

template <class T> static void one(plug::channel &p, const std::string &op, std::vector<T> &w)
{
    const words_t words = split(op, ':');
    const std::vector<T> g = ramp<T>(w.size(), words.size() > 1 ? std::atof(words[1].c_str()) : 0);
    const std::string &verb = words[0];
    const char *language = std::getenv("LC_ALL");

    p.weight(words.size() > 2 ? std::atof(words[2].c_str()) : 1);
    std::setlocale(LC_ALL, language ? language : "C"); // the user's language may write a decimal comma
    const std::string told = outcome(p, verb, [&] {
        if (verb == "init") {
            if (p)
                w = g;
            return p.init(w);
        }
        if (verb == "expect")
            return p.expect<T>(static_cast<std::size_t>(std::atol(words[1].c_str())));
        return mapped ? in_place(p, verb, g, w) : dense(p, verb, g, w);
    });
    std::setlocale(LC_ALL, "C");
    std::cout << op << " " << told << " clock=" << p.clock() << " done=" << p.done() << " w=" << shown(w.data(), w.size() < 6 ? w.size() : 6, 6) << std::endl;
}

template <class T> static void drive(plug::channel &p, const words_t &ops)
{
    std::vector<T> w(p.tables() ? p.table(0)->count : 4, static_cast<T>(-1));

    for (const std::string &op : ops) {
        if (op == "bye")
            return;
        if (op == "who") {
            std::cout << "who plugged=" << p.plugged() << " main=" << p.main() << " worker=" << p.worker() << " of=" << p.workers() << " clock=" << p.clock() << std::endl;
        } else if (op == "close") {
            for (int fd = 3; fd < 256; fd++)
                close(fd);
        } else if (op == "fork") {
            const pid_t child = fork();

            if (child == 0) {
                one(p, "step:1", w);
                std::exit(p.bye());
            }
            waitpid(child, nullptr, 0);
        } else if (op.compare(0, 4, "die:") == 0) {
            p.put(p.table(0)->name, ramp<T>(w.size(), std::atof(op.c_str() + 4)));
            std::raise(SIGKILL);
        } else {
            one(p, op, w);
        }
    }
}

template <class T> static void name(plug::channel &p, const words_t &words)
{
    const plugml_table *table = p.table(words[1]);
    const words_t keys = split(words.size() > 2 ? words[2] : "", ',');
    const std::size_t width = table && table->width ? table->width : 1;
    std::vector<std::uint64_t> wide;
    std::vector<std::uint32_t> narrow;
    std::vector<T> values;

    for (std::size_t i = 0; i < keys.size(); i++) {
        wide.push_back(std::strtoull(keys[i].c_str(), nullptr, 10));
        narrow.push_back(static_cast<std::uint32_t>(wide.back()));
        for (std::size_t j = 0; words.size() > 3 && j < width; j++)
            values.push_back(static_cast<T>(std::atof(words[3].c_str()) + 10 * static_cast<double>(i) + static_cast<double>(j)));
    }
    const std::string index = table ? table->index : "u64";
    const bool wants = words[0] == "want";
    outcome(p, words[0], [&] {
        if (index == "str")
            return wants ? p.want(words[1], keys) : p.rows(words[1], keys, values);
        if (index == "u32")
            return wants ? p.want(words[1], narrow) : p.rows(words[1], narrow, values);
        return wants ? p.want(words[1], wide) : p.rows(words[1], wide, values);
    });
}

template <class T> static std::string came(plug::channel &p, const std::string &table)
{
    const std::vector<T> values = p.came<T>(table);

    return values.empty() ? "" : " " + table + "=" + shown(values.data(), values.size(), p.table(table)->width);
}

// put:TABLE:CONSTANT, or get:TABLE
template <class T> static bool by_name(plug::channel &p, const words_t &words, std::string &text)
{
    const std::size_t count = p.table(words[1]) ? p.table(words[1])->count : 1;
    std::vector<T> numbers = ramp<T>(count, words.size() > 2 ? std::atof(words[2].c_str()) : 0);

    if (words[0] == "put")
        return p.put(words[1], numbers);
    const bool plugged = p.get(words[1], numbers);
    text = " " + words[1] + "=" + shown(numbers.data(), count, count);
    return plugged;
}

static bool exchange(plug::channel &p, const words_t &words, const words_t &wanted, std::string &text)
{
    const plugml_table *found = nullptr;
    const std::string &verb = words[0];
    std::vector<double> w;
    bool plugged;

    for (int number = 0; !found && number < p.tables(); number++)
        found = p.table(number)->width ? nullptr : p.table(number);
    if (found && words.size() > 1) {
        w.resize(found->count);
        plugged = words[1].empty() ? p.pull(w) : dense(p, verb, ramp<double>(w.size(), std::atof(words[1].c_str())), w);
    } else {
        plugged = verb == "step" ? p.step() : verb == "push" ? p.push() : verb == "async" ? p.push_async() : verb == "pull" ? p.pull()
                : verb == "pushpull" ? p.pushpull() : verb == "tick" ? p.tick() : p.ping();
    }
    if (!w.empty() && verb != "push" && verb != "async")
        text = " w=" + shown(w.data(), w.size(), w.size());
    for (const std::string &table : wanted) {
        const std::string dtype = p.table(table) ? p.table(table)->dtype : "f64";

        text += dtype == "f32" ? came<float>(p, table) : dtype == "f64" ? came<double>(p, table) : came<std::int64_t>(p, table);
    }
    return plugged;
}

static void rows(plug::channel &p, const words_t &ops)
{
    words_t wanted;

    for (const std::string &op : ops) {
        words_t words = split(op, ':');
        const std::string verb = words[0];
        std::string text;

        if (verb == "bye")
            return;
        if (verb == "end")
            _exit(0);
        if (verb == "rows" || verb == "want") {
            const std::string dtype = p.table(words[1]) ? p.table(words[1])->dtype : "f64";

            if (verb == "want")
                wanted.push_back(words[1]);
            dtype == "f32" ? name<float>(p, words) : dtype == "f64" ? name<double>(p, words) : name<std::int64_t>(p, words);
            continue;
        }
        if (verb == "timeout") {
            p.timeout(std::atol(words[1].c_str()));
            continue;
        }
        const std::string told = outcome(p, verb, [&] {
            if (verb == "put" || verb == "get") {
                const std::string dtype = p.table(words[1]) ? p.table(words[1])->dtype : "f64";

                return dtype == "f32" ? by_name<float>(p, words, text) : dtype == "f64" ? by_name<double>(p, words, text) : by_name<std::int64_t>(p, words, text);
            }
            if (verb != "next")
                return exchange(p, words, wanted, text);
            plug::piece piece;
            text = p.next(piece) ? " " + std::to_string(piece.number) + ":" + std::to_string(piece.turn) + ":" + piece.text : " none";
            return p.plugged();
        });
        if (verb != "next" && verb != "put" && verb != "get")
            wanted.clear();
        std::cout << op << " " << told << " clock=" << p.clock() << " stopped=" << p.stopped() << " lag=" << p.lag() << (told[0] == 'E' || told[0] == 'S' ? "" : text)
                  << std::endl;
    }
}

int main(int argc, char **argv)
try {
    words_t ops(argv + 1, argv + argc);
    plug::channel p;

    mapped = !ops.empty() && ops[0] == "-m";
    if (mapped)
        ops.erase(ops.begin());
    if (const char *file = std::getenv("PLUGML_OPS")) {
        std::ifstream from(file);

        ops.clear();
        for (std::string op; from >> op;)
            ops.push_back(op);
    }
    const std::string dtype = p.tables() ? p.table(0)->dtype : "f64";
    if (!ops.empty() && ops[0] == "rows")
        rows(p, words_t(ops.begin() + 1, ops.end()));
    else
        dtype == "f32" ? drive<float>(p, ops) : dtype == "f64" ? drive<double>(p, ops) : drive<std::int64_t>(p, ops);
    return p.bye();
} catch (const plug::error &refused) {
    std::fprintf(stderr, "%s\n", refused.what());
    return 1;
}
