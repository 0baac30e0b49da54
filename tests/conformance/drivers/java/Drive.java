import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.BooleanSupplier;
import java.util.function.IntToDoubleFunction;

/** Does what its arguments say with the Java client, and prints the outcome of each: as drive.py, and after the word `rows` as rows.py. */
final class Drive {
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static Plugml p;
    private static boolean mapped;

    private static Object array(String dtype, int n, IntToDoubleFunction value) {
        Object made = dtype.equals("f32") ? new float[n] : dtype.equals("f64") ? new double[n] : new long[n];
        for (int i = 0; i < n; i++) {
            double number = value.applyAsDouble(i);
            if (made instanceof float[] numbers) numbers[i] = (float) number;
            else if (made instanceof double[] numbers) numbers[i] = number;
            else ((long[]) made)[i] = (long) number;
        }
        return made;
    }

    /** The first numbers of an array, `width` of them between two semicolons. */
    private static String shown(Object array, int most, int width) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < Math.min(most, java.lang.reflect.Array.getLength(array)); i++) {
            String number = java.lang.reflect.Array.get(array, i).toString();
            text.append(i == 0 ? "" : i % width == 0 ? ";" : ",").append(number.replaceFirst("\\.0$", ""));
        }
        return text.toString();
    }

    private static String outcome(String verb, BooleanSupplier action) {
        boolean stopped = p.stopped();
        try {
            if (!action.getAsBoolean()) return "0 OK";
        } catch (Plugml.Failure failure) {
            System.err.println("clock " + p.clock() + ": " + failure.getMessage());
            return "E " + failure.code;
        }
        return stopped && List.of("step", "push", "async", "pushpull", "tick").contains(verb) ? "S STOP" : "1 OK";
    }

    private static boolean dense(String verb, Object g, Object w) {
        return switch (verb) {
            case "step" -> p.step(g, w);
            case "push" -> p.push(g);
            case "async" -> p.pushAsync(g);
            case "pull" -> p.pull(w);
            case "pushpull" -> p.pushpull(g, w);
            case "tick" -> p.tick();
            case "ping" -> p.ping();
            default -> throw new IllegalArgumentException(verb);
        };
    }

    /** The same through the mapped files, of an f64 table. */
    private static boolean inPlace(String verb, Object g, Object w) {
        if (p.plugged() && List.of("step", "push", "pushpull").contains(verb)) p.grad(p.tables().get(0).name()).asDoubleBuffer().put((double[]) g);
        boolean plugged = dense(verb, null, null);
        if (plugged) p.param(p.tables().get(0).name()).asDoubleBuffer().get((double[]) w);
        return plugged;
    }

    private static int bit(boolean value) {
        return value ? 1 : 0;
    }

    private static void drive(List<String> ops) throws Exception {
        int n = p.tables().isEmpty() ? 4 : p.tables().get(0).count();
        String dtype = p.tables().isEmpty() ? "f64" : p.tables().get(0).dtype();
        Object w = array(dtype, n, i -> -1);
        for (String op : ops) {
            String[] words = (op + "::").split(":", 4);
            double constant = words[1].isEmpty() ? 0 : Double.parseDouble(words[1]);
            Object g = array(dtype, n, i -> constant + i);
            Object now = words[0].equals("init") && p.plugged() ? g : w;
            p.weight(words[2].isEmpty() ? 1 : Double.parseDouble(words[2]));
            switch (words[0]) {
                case "bye" -> {
                    return;
                }
                case "who" -> OUT.printf("who plugged=%d main=%d worker=%d of=%d clock=%d%n", bit(p.plugged()), bit(p.main()), p.worker(), p.workers(), p.clock());
                case "close", "fork" -> OUT.println(words[0] + " -");
                case "die" -> {
                    p.put(p.tables().get(0).name(), g);
                    new ProcessBuilder("kill", "-9", Long.toString(ProcessHandle.current().pid())).start().waitFor();
                }
                default -> {
                    String told = outcome(words[0], () -> switch (words[0]) {
                        case "init" -> p.init(now);
                        case "expect" -> p.expect(dtype, (long) constant);
                        default -> mapped ? inPlace(words[0], g, now) : dense(words[0], g, now);
                    });
                    w = now;
                    OUT.printf("%s %s clock=%d done=%d w=%s%n", op, told, p.clock(), bit(p.done()), shown(w, 6, 6));
                }
            }
        }
    }

    private static Object keys(Plugml.Table table, String text) {
        String[] words = text.isEmpty() ? new String[0] : text.split(",");
        return switch (table == null ? "u64" : table.index()) {
            case "str" -> words;
            case "u32" -> Arrays.stream(words).mapToInt(Integer::parseUnsignedInt).toArray();
            default -> Arrays.stream(words).mapToLong(Long::parseUnsignedLong).toArray();
        };
    }

    private static String exchange(String verb, String constant, List<String> wanted) {
        Plugml.Table table = p.tables().stream().filter(one -> one.width() == 0).findFirst().orElse(null);
        boolean takesPart = table != null && constant != null;
        Object w = takesPart ? array(table.dtype(), table.count(), i -> 0) : null;
        Object g = takesPart && !constant.isEmpty() ? array(table.dtype(), table.count(), i -> Double.parseDouble(constant) + i) : null;
        dense(verb, g, w);
        if (verb.equals("push") || verb.equals("async")) return "";
        StringBuilder text = new StringBuilder(takesPart ? " w=" + shown(w, table.count(), table.count()) : "");
        for (String each : wanted) {
            String[] parts = each.split(":");
            Plugml.Table rows = p.table(parts[0]);
            Object values = rows == null ? null : array(rows.dtype(), rows.width() * Integer.parseInt(parts[1]), i -> 0);
            if (p.came(parts[0], values)) text.append(" ").append(parts[0]).append("=").append(shown(values, Integer.MAX_VALUE, rows.width()));
        }
        return text.toString();
    }

    private static void rows(List<String> ops) {
        List<String> wanted = new ArrayList<>();
        for (String op : ops) {
            String[] words = op.split(":", 4);
            String[] text = {""};
            switch (words[0]) {
                case "bye" -> {
                    return;
                }
                case "end" -> System.exit(0);
                case "timeout" -> p.timeout(Long.parseLong(words[1]));
                case "rows", "want" -> {
                    Plugml.Table table = p.table(words[1]);
                    Object named = keys(table, words[2]);
                    int k = java.lang.reflect.Array.getLength(named);
                    int width = table == null || table.width() == 0 ? 1 : table.width();
                    outcome(words[0], () -> words[0].equals("want") ? p.want(words[1], named) && wanted.add(words[1] + ":" + k)
                        : p.rows(words[1], named, array(table == null ? "f64" : table.dtype(), k * width,
                            i -> Double.parseDouble(words[3].replace("nan", "NaN")) + 10 * (i / width) + i % width)));
                }
                default -> {
                    String told = outcome(words[0], () -> {
                        if (words[0].equals("put") || words[0].equals("get")) {
                            Plugml.Table table = p.table(words[1]);
                            Object numbers = array(table == null ? "f64" : table.dtype(), table == null ? 1 : table.count(),
                                i -> words.length > 2 ? Double.parseDouble(words[2]) + i : 0);
                            boolean plugged = words[0].equals("put") ? p.put(words[1], numbers) : p.get(words[1], numbers);
                            text[0] = words[0].equals("get") ? " " + words[1] + "=" + shown(numbers, Integer.MAX_VALUE, Integer.MAX_VALUE) : "";
                            return plugged;
                        }
                        if (words[0].equals("next")) {
                            Plugml.Piece piece = p.next(null);
                            text[0] = piece == null ? " none" : " " + piece.number() + ":" + piece.turn() + ":" + piece.text();
                        } else {
                            text[0] = exchange(words[0], words.length > 1 ? words[1] : null, wanted);
                        }
                        return p.plugged();
                    });
                    if (!List.of("next", "put", "get").contains(words[0])) wanted.clear();
                    OUT.printf("%s %s clock=%d stopped=%d lag=%d%s%n", op, told, p.clock(), bit(p.stopped()), p.lag(), told.matches("[ES].*") ? "" : text[0]);
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        // Java reads its arguments in the user's character set; these are UTF-8 in any.
        List<String> ops = new ArrayList<>(List.of(Files.readString(Path.of("/proc/self/cmdline")).split("\0")));
        ops = ops.subList(ops.indexOf("Drive") + 1, ops.size());
        mapped = !ops.isEmpty() && ops.get(0).equals("-m");
        if (mapped) ops = ops.subList(1, ops.size());
        String file = System.getenv("PLUGML_OPS");
        if (file != null) ops = Files.readAllLines(Path.of(file));
        try {
            p = Plugml.attach();
            if (!ops.isEmpty() && ops.get(0).equals("rows")) rows(ops.subList(1, ops.size()));
            else drive(ops);
            if (p.code() != null && p.code() != Plugml.Code.STOP) System.exit(1);
            p.bye();
        } catch (Plugml.Failure failure) {
            System.err.println(failure.getMessage());
            System.exit(1);
        }
    }
}
