import java.io.FileInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;

/**
 * Plugs a serial Java program into its channel. The JDK alone, 17 or later; Linux.
 *
 * <pre>
 * Plugml p = Plugml.attach();
 * for (long step : p.steps(w, steps)) {          // was for (long step = 0; step &lt; steps; step++)
 *     gradient(w, g);
 *     if (!p.step(g, w))                         // false: alone
 *         update(w, g);                          // your own
 * }
 * </pre>
 *
 * Without PLUGML_DIR in the environment the program runs alone: every call does nothing and gives false, 0 or null. Arrays of numbers
 * are {@code float[]}, {@code double[]} or {@code long[]} as the table's dtype; anything else is SIZE. What is refused is thrown as
 * {@link Failure}. An object belongs to one thread at a time.
 *
 * <p>The order of system calls is the protocol (shm_protocol/SPEC.md): data, then cmd, then the bell, then the wait.
 */
public final class Plugml implements AutoCloseable {
    /** What went wrong: words of SPEC.md, section 8. */
    public enum Code {
        SEQ("The sequence number or the clock is not the next one. The next request takes up the count."),
        FORMAT("The request line could not be read."),
        RANGE("A number, row or table lies outside what was declared; nothing was applied."),
        SIZE("A data file has not the size that info promises; nothing was applied."),
        NONFINITE("The push holds NaN or infinity; nothing of it was applied. Look for an overflow in the program."),
        TIMEOUT("The answer did not come in time. A push was accepted and is carried out later: do not send it again, pull."),
        AGAIN("There is no room for the request just now; nothing was done."),
        NOSERVER("A server that holds part of the model is gone or out of reach. See plugml status."),
        VERSION("Program and agent speak different versions of the channel. Use the client that belongs to this plugml."),
        PERM("A file of the channel has another owner, type or mode than it must have."),
        GONE("The agent is gone for good; whether the last request was carried out is unknown. End the program; run it again from the last checkpoint."),
        NOSPC("There is no room: in the channel root, on a server, or in the job's memory."),
        COLLIDE("Two string keys have the same hash; nothing was applied. Rename one of the two."),
        STOP("The job's stop rule has fired."),
        INTERNAL("plugml itself failed. Please report the text with the log of the agent."),
        FENCED("A newer incarnation of this worker has taken its place. End the program: its successor is at work.");

        final String meaning;

        Code(String meaning) {
            this.meaning = meaning;
        }

        static Code named(String name) {
            return Arrays.stream(values()).filter(code -> code.name().equals(name)).findFirst().orElse(INTERNAL); // a later agent has more words
        }
    }

    /** A request that was refused, or a channel that cannot be used. */
    public static final class Failure extends RuntimeException {
        private static final long serialVersionUID = 1;
        public final Code code;
        public final String text;

        Failure(Code code, String text) {
            super(code + ": " + text);
            this.code = code;
            this.text = text;
        }
    }

    /** A table of the job; a sparse one has a width above 0. Count, offset (bytes in grad and param) are of a dense one. */
    public record Table(String name, String dtype, char order, long[] shape, int count, long offset, int width, int batch, String index) {
        int size() {
            return dtype.equals("f32") ? 4 : 8;
        }
    }

    /** A piece of input: what the job's list says, its number, and the pass over all pieces, both from 0. */
    public record Piece(String text, long number, long turn) {}

    private record Reply(Code code, long seq, long clock, Map<String, String> keys) {}

    /** What the next request says of one sparse table, as bytes for the files; null: nothing. */
    private static final class Section {
        final Table table;
        int k;
        int want;
        byte[] keys;
        byte[] values;
        byte[] wanted;

        Section(Table table) {
            this.table = table;
        }
    }

    private static final double WEIGHT_MAX = 9007199254740992.0; // 2^53
    private static final byte[] NOTHING = {};

    private final Path dir; // null: alone
    private final List<Table> tables = new ArrayList<>();
    private final Map<String, Section> sections = new LinkedHashMap<>();
    private final Map<String, ByteBuffer> came = new HashMap<>();
    private final Map<String, ByteBuffer> maps = new HashMap<>();
    private FileChannel req;
    private FileInputStream rep;
    private long count;
    private long nbytes;
    private long worker;
    private long workers = 1;
    private long seq;
    private long clock;
    private long lag;
    private long version;
    private double weight = 1;
    private long timeout;
    private boolean stop;
    private boolean put;
    private boolean handed;
    private Code code; // null: the last request went well
    private Failure fatal;
    private Failure mistake; // refused rows: the request that they belong to is refused, too

    private Plugml(Path dir) {
        this.dir = dir;
    }

    // ---- beginning and end ----------------------------------------------------------------------------------------

    /** Attaches to the channel that PLUGML_DIR names, and says hello; without that variable the program runs alone. */
    public static Plugml attach() {
        String dir = System.getenv("PLUGML_DIR");
        if (dir == null || dir.isEmpty()) return new Plugml(null);
        Plugml p = new Plugml(Path.of(dir));
        String clock = System.getenv("PLUGML_CLOCK");
        p.clock = clock == null || clock.isEmpty() ? 0 : Long.parseLong(clock);
        p.checkPage();
        p.readInfo();
        p.openBells();
        p.hello();
        return p;
    }

    /** Says that this worker has finished, and closes. A program that ends with exit code 0 and without it has finished, too. */
    public void bye() {
        if (dir == null) return;
        if (fatal == null && !failed()) carryOut("bye", "");
        close();
    }

    /** Closes without saying bye: a program that leaves by an exception has not finished. */
    @Override
    public void close() {
        try {
            if (req != null) req.close();
            if (rep != null) rep.close();
        } catch (IOException error) {
            throw lost("the bells", error);
        }
        if (fatal == null && dir != null) fatal = new Failure(Code.GONE, "this program has closed its channel already");
    }

    // ---- what a training loop calls -------------------------------------------------------------------------------

    /** Fills w with the values of now; the clocks from where this worker goes on to end. Alone: 0 to end. */
    public Iterable<Long> steps(Object w, long end) {
        pull(w);
        return () -> new Iterator<>() {
            private long at;

            @Override
            public boolean hasNext() {
                if (plugged()) at = clock;
                return at < end && !done();
            }

            @Override
            public Long next() {
                return at++;
            }
        };
    }

    /** Pushes g, ends this clock, and fills w with what the consistency model allows to see. false: alone. null: what was put. */
    public boolean step(Object g, Object w) {
        return request("step", true, g, true, w, "");
    }

    /** The same with a weight of its own: how many examples are behind g. */
    public boolean step(Object g, Object w, double examples) {
        double before = weight;
        weight = examples;
        try {
            return step(g, w);
        } finally {
            weight = before;
        }
    }

    /** Pushes without ending the clock: several pushes may go into one. */
    public boolean push(Object g) {
        return request("push", true, g, false, null, "");
    }

    /** Comes back when the push is accepted; what fails later is told by the next request. */
    public boolean pushAsync(Object g) {
        return request("push", true, g, false, null, " async=1");
    }

    public boolean pull(Object w) {
        return request("pull", false, null, true, w, "");
    }

    public boolean pushpull(Object g, Object w) {
        return request("pushpull", true, g, true, w, "");
    }

    /** Offers w as first values of tables with init=program; w becomes what the job took. */
    public boolean init(Object w) {
        return request("init", true, w, true, w, "");
    }

    /** Ends this clock without a push. */
    public boolean tick() {
        return bare("clock");
    }

    public boolean ping() {
        return bare("ping");
    }

    /** The next piece of input that this worker shall read; null: nothing is left. Alone it gives `alone`, once. */
    public Piece next(String alone) {
        if (dir == null) {
            boolean first = !handed && alone != null;
            handed |= first;
            return first ? new Piece(alone, 0, 0) : null;
        }
        bare("next");
        try {
            String[] words = Files.readString(dir.resolve("data")).split("\n", 2)[0].split(" ", 3);
            return stop && code == Code.STOP || words.length < 3 ? null : new Piece(words[2], Long.parseLong(words[1]), Long.parseLong(words[0]));
        } catch (IOException error) {
            throw lost("data", error);
        }
    }

    // ---- tables by name -------------------------------------------------------------------------------------------

    /** Writes what the next push sends of one dense table; then step(null, null). */
    public boolean put(String table, Object g) {
        return ready() && write(dense(table), g);
    }

    /** Reads one dense table after a pull. */
    public boolean get(String table, Object w) {
        return ready() && read(dense(table), w);
    }

    /** A dense table's part of grad itself, mapped: {@code p.grad("w").asDoubleBuffer().put(g)}, then step(null, null). null: alone. */
    public ByteBuffer grad(String table) {
        put = true;
        return mapped("grad", table);
    }

    /** A dense table's part of param itself, mapped. null: alone. */
    public ByteBuffer param(String table) {
        return mapped("param", table);
    }

    /**
     * With the next request pushes values[i * width ...] to row keys[i]. Keys are {@code int[]} (u32) or {@code long[]} (u64), from 0 on and
     * taken as unsigned, or {@code String[]}. A row that comes twice is added up. What is refused here refuses that request, too.
     */
    public boolean rows(String table, Object keys, Object values) {
        return ready() && named(table, section -> {
            if (section.keys != null) throw fail(Code.FORMAT, "table " + table + " has its rows for this request already: give all of them in one call");
            byte[] names = names(section.table, keys);
            fits(section.table, values, (long) length(keys) * section.table.width);
            section.k = length(keys);
            section.values = encode(values);
            section.keys = names;
        });
    }

    /** Asks for rows with the next request that pulls; {@link #came} gives them afterwards. */
    public boolean want(String table, Object keys) {
        return ready() && named(table, section -> {
            if (section.wanted != null) throw fail(Code.FORMAT, "rows of table " + table + " are wanted by this request already: name all of them in one call");
            section.wanted = names(section.table, keys);
            section.want = length(keys);
        });
    }

    /** Fills values with the rows that the last request wanted, in their order. false: it wanted none. */
    public boolean came(String table, Object values) {
        if (!ready() || !came.containsKey(table)) return false;
        ByteBuffer bytes = came.get(table).duplicate().order(ByteOrder.LITTLE_ENDIAN);
        fits(table(table), values, bytes.remaining() / table(table).size());
        decode(bytes, values);
        return true;
    }

    /** Refuses to go on unless the dense tables hold as many elements of dtype. */
    public boolean expect(String dtype, long elements) {
        if (!ready()) return false;
        for (Table table : tables)
            if (table.width == 0 && !table.dtype.equals(dtype))
                throw end(Code.SIZE, "table " + table.name + " holds " + table.dtype + " numbers, the program has " + dtype + ": declare the table so");
        if (count != elements)
            throw end(Code.SIZE, "the job's tables have " + count + " elements, the program has " + elements + ": make the shapes agree");
        return true;
    }

    // ---- who and where am I ---------------------------------------------------------------------------------------

    public boolean plugged() {
        return dir != null;
    }

    /** Alone or worker 0: prints and saves. */
    public boolean main() {
        return worker == 0;
    }

    public long worker() {
        return worker;
    }

    public long workers() {
        return workers;
    }

    /** Clocks that this worker has finished. */
    public long clock() {
        return dir == null ? 0 : clock;
    }

    /** Clocks that the slowest worker is behind this one. */
    public long lag() {
        return lag;
    }

    /** Of the values last pulled. */
    public long version() {
        return version;
    }

    /** The job's stop rule has fired. */
    public boolean stopped() {
        return stop;
    }

    /** A training loop must end now: the stop rule has fired, or the last request failed. */
    public boolean done() {
        return stop || failed();
    }

    /** Of the last request; null: it went well. */
    public Code code() {
        return code;
    }

    public List<Table> tables() {
        return List.copyOf(tables);
    }

    /** null: there is none. */
    public Table table(String name) {
        return tables.stream().filter(table -> table.name.equals(name)).findFirst().orElse(null);
    }

    /** Of all following pushes: how many examples are behind them. 1 in the beginning; 0 counts for nothing. */
    public void weight(double examples) {
        weight = examples;
    }

    /** Of all following requests; 0: as long as it takes. */
    public void timeout(long milliseconds) {
        timeout = milliseconds;
    }

    // ---- requests -------------------------------------------------------------------------------------------------

    private boolean request(String verb, boolean pushes, Object g, boolean pulls, Object w, String more) {
        if (!ready()) return false;
        try {
            exchange(verb, pushes, g, pulls, w, more);
        } finally {
            sections.clear();
            mistake = null;
            put = false;
        }
        return true;
    }

    private void exchange(String verb, boolean pushes, Object g, boolean pulls, Object w, String more) {
        if (mistake != null)
            throw fail(mistake.code, "nothing was asked, since the rows that were named for this request had been refused: " + mistake.text);
        came.clear();
        // Beside rows the dense tables take part iff somebody gives them, or a place for them.
        boolean dense = sections.isEmpty() || g != null || (pushes ? put : w != null);
        if (w != null && !dense)
            throw fail(Code.FORMAT, "the dense tables are pulled where they are pushed, too: give their g beside the rows, or pull them alone");
        StringBuilder words = new StringBuilder();
        if (dense && (pushes || !sections.isEmpty())) words.append(" n=").append(count);
        if (pushes) {
            double said = verb.equals("init") ? 1 : weight;
            if (!(said >= 0) || said > WEIGHT_MAX) throw fail(Code.RANGE, "weight " + said + ": a weight is from 0 to 2^53; nothing was pushed");
            words.append(" w=").append(Double.toString(said).replace('E', 'e')).append(more);
        }
        for (Section section : sections.values()) {
            words.append(" table=").append(section.table.name);
            if (section.k > 0) words.append(" k=").append(section.k);
            if (section.want > 0) words.append(" want=").append(section.want);
        }
        if (g != null) write(only(), g);
        writeRows(dense);
        carryOut(verb, words.toString());
        if (!pulls || code == Code.STOP) return;
        if (w != null) read(only(), w);
        long at = rowsStart(dense);
        for (Section section : sections.values()) {
            int length = section.want * section.table.width * section.table.size();
            if (section.wanted != null) came.put(section.table.name, load("param", length, at));
            at = up(at + length, 8);
        }
    }

    private void writeRows(boolean dense) {
        long at = rowsStart(dense);
        long indexAt = 0;
        long wantAt = 0;
        boolean strings = false;
        java.io.ByteArrayOutputStream keys = new java.io.ByteArrayOutputStream();
        java.io.ByteArrayOutputStream wanted = new java.io.ByteArrayOutputStream();
        for (Section section : sections.values()) {
            byte[] names = section.keys == null ? NOTHING : section.keys;
            byte[] wants = section.wanted == null ? NOTHING : section.wanted;
            byte[] values = section.values == null ? NOTHING : section.values;
            store("grad", values, at);
            at = up(at + values.length, 8);
            if (section.table.index.equals("str")) {
                strings = true;
                keys.writeBytes(names);
                wanted.writeBytes(wants);
                continue;
            }
            store("gidx", names, indexAt);
            store("want", wants, wantAt);
            indexAt = up(indexAt + names.length, 8);
            wantAt = up(wantAt + wants.length, 8);
        }
        if (!strings) return;
        replace("gkey", keys.toByteArray());
        replace("wkey", wanted.toByteArray());
    }

    private boolean bare(String verb) {
        if (!ready()) return false;
        carryOut(verb, "");
        return true;
    }

    /** The data lie in their files: makes the request. */
    private void carryOut(String verb, String words) {
        if (code == Code.SEQ) hello(); // somebody else has used the channel: take up his count
        boolean mayWait = List.of("step", "push", "pull", "pushpull", "clock").contains(verb);
        String limit = timeout > 0 && mayWait ? " t=" + timeout : "";
        String line = verb + " " + (seq + 1) + " " + clock + limit + words + "\n";
        if (line.length() > 4096) throw fail(Code.FORMAT, "the request names too many tables for one line: make several pushes of it");
        Reply reply = ask(line, seq + 1);
        if (reply.code != Code.SEQ && reply.code != Code.AGAIN) seq++; // refused for good is answered, too
        if (reply.code != Code.AGAIN && reply.code != Code.GONE) clock = reply.clock; // after TIMEOUT a refusal moves it, too
        stop |= "1".equals(reply.keys.get("stop")) || reply.code == Code.STOP;
        if (reply.code != null && reply.code != Code.STOP) throw refused(reply.code);
        code = reply.code; // STOP is no error: the loop has come to its end
        if (reply.keys.containsKey("lag")) lag = Long.parseLong(reply.keys.get("lag"));
        if (reply.keys.containsKey("v")) version = Long.parseUnsignedLong(reply.keys.get("v"));
    }

    /** The sentence that the agent left in err, as `CODE seq=<seq>: text`. */
    private Failure refused(Code refusal) {
        String text = refusal.meaning;
        if (refusal != Code.GONE) { // The launcher says GONE, and it writes no text.
            try {
                String line = new String(Files.readAllBytes(dir.resolve("err")), StandardCharsets.UTF_8).split("[\n\0]", 2)[0];
                int colon = line.indexOf(": ");
                if (line.startsWith(refusal.name()) && colon > 0) text = line.substring(colon + 2);
            } catch (IOException error) {
                text += " (err cannot be read: " + error.getMessage() + ")";
            }
        }
        return fail(refusal, text);
    }

    /** Asks where this generation stands. */
    private void hello() {
        Reply reply = ask("hello 0 " + clock + "\n", 0);
        if (reply.code != null) throw refused(reply.code);
        seq = Long.parseLong(reply.keys.getOrDefault("done", "0"));
        clock = reply.clock;
    }

    /** Data lie in their files: writes the request, rings, waits. */
    private Reply ask(String line, long number) {
        long pause = 10;
        for (int tries = 1;; tries++) { // AGAIN: 60 times, with pauses that grow from 10 ms to a second
            store("cmd", line.getBytes(StandardCharsets.US_ASCII), 0);
            try {
                req.write(ByteBuffer.wrap(new byte[] {'\n'}));
            } catch (IOException error) {
                throw lost("req", error);
            }
            Reply reply = await(number);
            if (reply.code != Code.AGAIN || tries == 60) return reply;
            try {
                Thread.sleep(pause);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                return reply;
            }
            pause = Math.min(2 * pause, 1000);
        }
    }

    /** Sleeps until the agent has answered. Older replies come again after an agent was restarted: they are passed over. */
    private Reply await(long number) {
        while (true) {
            byte[] record = new byte[64];
            int got = 0;
            try { // plain reads: the others would seek, which a FIFO cannot
                for (int more = 0; more >= 0 && got < record.length; got += Math.max(more, 0)) more = rep.read(record, got, record.length - got);
            } catch (IOException error) {
                throw lost("rep", error);
            }
            if (got < record.length) throw fail(Code.GONE, "agent and launcher are gone; whether the last request was carried out is unknown; run the program again");
            Reply reply = parse(new String(record, StandardCharsets.ISO_8859_1));
            if (reply == null) throw end(Code.INTERNAL, "the agent's reply cannot be read: is something else writing to " + dir + "/rep?");
            if (reply.seq == number || reply.code == Code.GONE) return reply;
        }
    }

    private static Reply parse(String record) {
        String[] words = record.trim().split(" +");
        if (!record.endsWith("\n") || words.length < 3 || !words[0].matches("ok|err") || !words[1].matches("\\d+") || !words[2].matches("\\d+")) return null;
        Map<String, String> keys = pairs(words);
        Code code = words[0].equals("ok") ? null : Code.named(keys.get("code"));
        return new Reply(code, Long.parseLong(words[1]), Long.parseLong(words[2]), keys);
    }

    /** `key=value` words; others are passed over. */
    private static Map<String, String> pairs(String... words) {
        Map<String, String> found = new HashMap<>();
        for (String word : words) {
            int sign = word.indexOf('=');
            if (sign > 0) found.put(word.substring(0, sign), word.substring(sign + 1));
        }
        return found;
    }

    // ---- errors ---------------------------------------------------------------------------------------------------

    private boolean failed() {
        return code != null && code != Code.STOP;
    }

    private Failure fail(Code what, String text) {
        Failure failure = new Failure(what, text);
        code = what;
        if (what == Code.GONE || what == Code.VERSION || what == Code.PERM || what == Code.FENCED) fatal = failure;
        return failure;
    }

    /** A failure after which no request can succeed. */
    private Failure end(Code what, String text) {
        fatal = fail(what, text);
        return fatal;
    }

    private Failure lost(String name, IOException error) {
        if (error instanceof NoSuchFileException || error instanceof java.io.FileNotFoundException)
            return fail(Code.GONE, "there is no channel in " + dir + " any more (" + name + " is missing): end the program");
        boolean full = String.valueOf(error.getMessage()).contains("No space left");
        return fail(full ? Code.NOSPC : Code.PERM, "cannot use " + name + ": " + error.getMessage());
    }

    /** May a request be made? false: alone. */
    private boolean ready() {
        if (fatal != null) throw new Failure(fatal.code, fatal.text);
        return dir != null;
    }

    // ---- tables ---------------------------------------------------------------------------------------------------

    private Table dense(String name) {
        Table table = table(name);
        if (table == null || table.width > 0) throw fail(Code.RANGE, "the job has no dense table " + name + ": see the table= lines of " + dir + "/info");
        return table;
    }

    /** The job's one dense table, which an array stands for that is given without a name. */
    private Table only() {
        for (Table table : tables) if (table.width == 0 && table.count == count) return table;
        throw fail(Code.SIZE, "an array without a name stands for the only dense table, and the job has none or several: put and get each by name");
    }

    private void fits(Table table, Object array, long elements) {
        String dtype = array instanceof float[] ? "f32" : array instanceof double[] ? "f64" : array instanceof long[] ? "i64" : "no";
        if (!dtype.equals(table.dtype)) throw fail(Code.SIZE, "table " + table.name + " holds " + table.dtype + " numbers, the program has " + dtype + ": declare the table so");
        if (length(array) != elements) throw fail(Code.SIZE, "table " + table.name + " takes " + elements + " numbers here, " + length(array) + " were given");
    }

    private boolean write(Table table, Object g) {
        fits(table, g, table.count);
        put = true;
        store("grad", encode(g), table.offset);
        return true;
    }

    private boolean read(Table table, Object w) {
        fits(table, w, table.count);
        decode(load("param", table.count * table.size(), table.offset), w);
        return true;
    }

    private ByteBuffer mapped(String name, String tableName) {
        if (!ready()) return null;
        Table table = dense(tableName);
        if (!maps.containsKey(name)) {
            try (FileChannel file = FileChannel.open(dir.resolve(name), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
                if (file.size() < nbytes) throw fail(Code.SIZE, name + " is shorter than info promises: it cannot be mapped");
                maps.put(name, file.map(FileChannel.MapMode.READ_WRITE, 0, nbytes));
            } catch (IOException error) {
                throw lost(name, error);
            }
        }
        return maps.get(name).slice((int) table.offset, table.count * table.size()).order(ByteOrder.LITTLE_ENDIAN);
    }

    private interface Say {
        void of(Section section);
    }

    private boolean named(String name, Say say) {
        try {
            Table table = table(name);
            if (table == null || table.width == 0) {
                String known = String.join(", ", tables.stream().filter(other -> other.width > 0).map(Table::name).toList());
                throw fail(Code.RANGE, "the job has no sparse table " + name + "; it has " + (known.isEmpty() ? "none" : known));
            }
            say.of(sections.computeIfAbsent(name, unknown -> new Section(table)));
            return true;
        } catch (Failure failure) {
            mistake = failure;
            throw failure;
        }
    }

    private byte[] names(Table table, Object keys) {
        String index = keys instanceof int[] ? "u32" : keys instanceof long[] ? "u64" : keys instanceof String[] ? "str" : "no";
        if (!index.equals(table.index)) throw fail(Code.SIZE, "table " + table.name + " has index " + table.index + ", rows were given as " + index);
        if (length(keys) > table.batch)
            throw fail(Code.RANGE, length(keys) + " rows of table " + table.name + ": one request takes at most " + table.batch + " (the table's batch=)");
        if (!(keys instanceof String[] strings)) return encode(keys);
        StringBuilder text = new StringBuilder();
        for (String key : strings) {
            if (key.indexOf('\n') >= 0) throw fail(Code.FORMAT, "a key of table " + table.name + " holds a newline, which ends a key; nothing was applied");
            text.append(key).append('\n');
        }
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static int length(Object array) {
        return array == null ? 0 : java.lang.reflect.Array.getLength(array);
    }

    private static byte[] encode(Object array) {
        int size = array instanceof float[] || array instanceof int[] ? 4 : 8;
        ByteBuffer bytes = ByteBuffer.allocate(length(array) * size).order(ByteOrder.LITTLE_ENDIAN);
        if (array instanceof float[] numbers) bytes.asFloatBuffer().put(numbers);
        else if (array instanceof double[] numbers) bytes.asDoubleBuffer().put(numbers);
        else if (array instanceof long[] numbers) bytes.asLongBuffer().put(numbers);
        else bytes.asIntBuffer().put((int[]) array);
        return bytes.array();
    }

    private static void decode(ByteBuffer bytes, Object array) {
        if (array instanceof float[] numbers) bytes.asFloatBuffer().get(numbers);
        else if (array instanceof double[] numbers) bytes.asDoubleBuffer().get(numbers);
        else bytes.asLongBuffer().get((long[]) array);
    }

    private static long up(long number, long step) {
        return (number + step - 1) / step * step;
    }

    /** Where the rows begin in grad and param: behind the dense tables, if those take part. */
    private long rowsStart(boolean dense) {
        return dense ? up(nbytes, 64) : 0;
    }

    // ---- files ----------------------------------------------------------------------------------------------------

    private void store(String name, byte[] bytes, long at) {
        if (bytes.length == 0) return;
        try (FileChannel file = FileChannel.open(dir.resolve(name), StandardOpenOption.WRITE)) {
            ByteBuffer rest = ByteBuffer.wrap(bytes);
            while (rest.hasRemaining()) file.write(rest, at + rest.position());
        } catch (IOException error) {
            throw lost(name, error);
        }
    }

    /** The whole of a file of keys: nothing may lie behind them. */
    private void replace(String name, byte[] bytes) {
        try {
            Files.write(dir.resolve(name), bytes, StandardOpenOption.WRITE, StandardOpenOption.TRUNCATE_EXISTING);
        } catch (IOException error) {
            throw lost(name, error);
        }
    }

    private ByteBuffer load(String name, int length, long at) {
        ByteBuffer bytes = ByteBuffer.allocate(length).order(ByteOrder.LITTLE_ENDIAN);
        try (FileChannel file = FileChannel.open(dir.resolve(name), StandardOpenOption.READ)) {
            while (bytes.hasRemaining())
                if (file.read(bytes, at + bytes.position()) < 0) throw fail(Code.SIZE, name + " is shorter than info promises");
        } catch (IOException error) {
            throw lost(name, error);
        }
        return bytes.flip();
    }

    /**
     * Opens the FIFOs. That can be done at any time; rep for reading only, so that its end of file tells when nobody is left. Opening a FIFO
     * for reading waits for a writer: for a moment we are one. What lies in rep is thrown away: an earlier program of this generation
     * may have died before it read its reply.
     */
    @SuppressWarnings("try") // the writer is there to be open
    private void openBells() {
        for (String name : List.of("req", "rep"))
            if (Files.isRegularFile(dir.resolve(name))) throw fail(Code.PERM, dir + "/" + name + " is not the FIFO that it must be");
        try (FileChannel writer = FileChannel.open(dir.resolve("rep"), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            req = FileChannel.open(dir.resolve("req"), StandardOpenOption.READ, StandardOpenOption.WRITE);
            rep = new FileInputStream(dir.resolve("rep").toString());
            for (int more = rep.available(); more > 0; more = rep.available()) more = rep.read(new byte[more]);
        } catch (IOException error) {
            throw lost("the bells", error);
        }
    }

    private void checkPage() {
        ByteBuffer page = load("ctl", 4096, 0);
        CRC32 sum = new CRC32();
        byte[] head = Arrays.copyOf(page.array(), 0x80);
        Arrays.fill(head, 0x14, 0x18, (byte) 0);
        sum.update(head);
        if (!new String(page.array(), 0, 8, StandardCharsets.ISO_8859_1).equals("PLUGMLC1") || page.getInt(0xc) != 0x01020304)
            throw fail(Code.VERSION, dir + "/ctl is no page of a channel");
        if (page.getShort(8) != 1)
            throw fail(Code.VERSION, "the channel has layout " + page.getShort(8) + ", this client knows 1: use the client that belongs to this plugml");
        if (page.getInt(0x14) != (int) sum.getValue()) throw fail(Code.VERSION, dir + "/ctl is damaged: its checksum does not fit");
    }

    private void readInfo() {
        List<String> lines;
        try {
            lines = Files.readAllLines(dir.resolve("info"));
        } catch (IOException error) {
            throw lost("info", error);
        }
        Map<String, String> head = pairs(lines.stream().filter(line -> !line.startsWith("table=")).toArray(String[]::new));
        if (!"1".equals(head.get("version")))
            throw fail(Code.VERSION, "the channel speaks version " + head.get("version") + ", this client speaks 1: use the client that belongs to this plugml");
        if (!"fifo".equals(head.get("bell")))
            throw fail(Code.VERSION, "the channel wakes its program by bell=" + head.get("bell") + ", which Java cannot wait for: run the job with bell=fifo");
        worker = Long.parseLong(head.getOrDefault("worker", "0"));
        workers = Long.parseLong(head.getOrDefault("workers", "1"));
        for (String line : lines) {
            Map<String, String> words = pairs(line.split(" "));
            if (!line.startsWith("table=") || !List.of("dense", "sparse").contains(words.getOrDefault("kind", ""))) continue;
            try {
                Table table = new Table(
                    words.get("table"), words.get("dtype"), words.get("order").charAt(0),
                    Arrays.stream(words.get("shape").split(",")).mapToLong(Long::parseLong).toArray(), Integer.parseInt(words.get("count")),
                    Long.parseLong(words.get("offset")), Integer.parseInt(words.getOrDefault("width", "0")),
                    Integer.parseInt(words.getOrDefault("batch", "0")), words.getOrDefault("index", ""));
                tables.add(table);
                count += table.count;
                nbytes = Math.max(nbytes, table.offset + (long) table.count * table.size());
            } catch (NumberFormatException | NullPointerException error) {
                throw fail(Code.FORMAT, "info holds a table that cannot be read, or one of more than 2^31 numbers: " + line);
            }
        }
    }
}
