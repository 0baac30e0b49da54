import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;

/**
 * Multinomial logistic regression by full-batch gradient descent: a serial program.
 *
 * <pre>
 * javac Trainer.java &amp;&amp; java Trainer shard.txt 200 weights.txt [lr]
 * </pre>
 *
 * Each line of the shard is `label pixel0 ... pixel63`, whole numbers, pixels from 0 to 16. The model is w[10][65], a row of 64 pixels and a
 * bias for each digit, and starts from zeros. At the end it lies in weights.txt, one number a line.
 *
 * <p>The lines marked "plugml" are all that was added to train it on many workers. Without PLUGML_DIR they do nothing.
 */
final class Trainer {
    private static final int CLASSES = 10;
    private static final int WIDTH = 65;

    /** Fills g with the mean gradient over all rows; gives back the mean loss. A row is a label and its pixels. */
    private static double gradient(List<double[]> rows, double[] w, double[] g) {
        double loss = 0;
        Arrays.fill(g, 0);
        for (double[] row : rows) {
            int label = (int) row[0];
            double[] p = new double[CLASSES];
            for (int k = 0; k < CLASSES; k++) {
                for (int j = 1; j < WIDTH; j++) p[k] += w[k * WIDTH + j - 1] * row[j] / 16;
                p[k] += w[k * WIDTH + WIDTH - 1];
            }
            double top = Arrays.stream(p).max().orElse(0);
            for (int k = 0; k < CLASSES; k++) p[k] = Math.exp(p[k] - top);
            double sum = Arrays.stream(p).sum();
            loss -= Math.log(p[label] / sum);
            for (int k = 0; k < CLASSES; k++) {
                double miss = p[k] / sum - (k == label ? 1 : 0);
                for (int j = 1; j < WIDTH; j++) g[k * WIDTH + j - 1] += miss * row[j] / 16;
                g[k * WIDTH + WIDTH - 1] += miss;
            }
        }
        for (int i = 0; i < g.length; i++) g[i] /= rows.size();
        return loss / rows.size();
    }

    public static void main(String[] arguments) throws IOException {
        if (arguments.length < 3) throw new IllegalArgumentException("usage: Trainer SHARD STEPS WEIGHTS [LR]");
        List<double[]> rows = Files.readAllLines(Path.of(arguments[0])).stream()
            .map(line -> Arrays.stream(line.trim().split(" +")).mapToDouble(Double::parseDouble).toArray()).toList();
        long steps = Long.parseLong(arguments[1]);
        double lr = arguments.length > 3 ? Double.parseDouble(arguments[3]) : 1;
        double[] w = new double[CLASSES * WIDTH];
        double[] g = new double[CLASSES * WIDTH];

        Plugml p = Plugml.attach(); // plugml
        for (long step : p.steps(w, steps)) { // plugml: was for (long step = 0; step < steps; step++)
            double loss = gradient(rows, w, g);
            if (step % 50 == 49 || step == 0) System.out.println("step " + (step + 1) + " loss " + loss);
            if (!p.step(g, w, rows.size())) // plugml
                for (int i = 0; i < w.length; i++) w[i] -= lr * g[i];
        }
        Files.writeString(Path.of(arguments[2]), Arrays.stream(w).mapToObj(number -> number + "\n").collect(Collectors.joining()));
    }
}
