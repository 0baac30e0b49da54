// Multinomial logistic regression by full-batch gradient descent: a serial program.
//
//     g++ -O2 -ffp-contract=off trainer.cpp plugml.c -o trainer
//     ./trainer shard.txt 200 weights.txt [lr]
//
// Each line of the shard is `label pixel0 ... pixel63`, whole numbers, pixels from 0 to 16.  The model is w[10][65], a row of 64
// pixels and a bias for each digit, and starts from zeros.  At the end it lies in weights.txt, one number a line.
//
// The lines marked "plugml" are all that was added to train it on many workers.  Without PLUGML_DIR they do nothing.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>
#include "plugml.hpp" // plugml

namespace {

const std::size_t classes = 10, width = 65;

struct row {
    std::size_t label;
    std::vector<double> pixels;
};

std::vector<row> read_shard(const char *name)
{
    std::ifstream file(name);
    std::vector<row> rows;

    for (row next; file >> next.label; rows.push_back(next)) {
        next.pixels.assign(width, 1);
        for (std::size_t j = 0; j + 1 < width && file >> next.pixels[j]; j++)
            next.pixels[j] /= 16;
        if (!file || next.label >= classes)
            break;
    }
    if (rows.empty() || !file.eof())
        throw std::runtime_error(std::string(name) + ": a row is a digit and 64 pixels");
    return rows;
}

// Fill g with the mean gradient over all rows; give back the mean loss.
double gradient(const std::vector<row> &rows, const std::vector<double> &w, std::vector<double> &g)
{
    double loss = 0;

    std::fill(g.begin(), g.end(), 0.0);
    for (const row &one : rows) {
        std::vector<double> p(classes, 0.0);
        double sum = 0;

        for (std::size_t k = 0; k < classes; k++)
            for (std::size_t j = 0; j < width; j++)
                p[k] += w[k * width + j] * one.pixels[j];
        const double top = *std::max_element(p.begin(), p.end());
        for (double &z : p)
            sum += z = std::exp(z - top);
        for (std::size_t k = 0; k < classes; k++)
            for (std::size_t j = 0; j < width; j++)
                g[k * width + j] += (p[k] / sum - (k == one.label)) * one.pixels[j];
        loss -= std::log(p[one.label] / sum);
    }
    for (double &number : g)
        number /= static_cast<double>(rows.size());
    return loss / static_cast<double>(rows.size());
}

} // namespace

int main(int argc, char **argv)
try {
    if (argc < 4)
        throw std::runtime_error("usage: trainer SHARD STEPS WEIGHTS [LR]");
    const std::vector<row> rows = read_shard(argv[1]);
    const long steps = std::stol(argv[2]);
    const double lr = argc > 4 ? std::stod(argv[4]) : 1.0;
    std::vector<double> w(classes * width), g(classes * width);

    plug::channel p; // plugml
    for (long step : p.steps(w, steps)) { // plugml: was for (long step = 0; step < steps; step++)
        const double loss = gradient(rows, w, g);

        if (step % 50 == 49 || step == 0)
            std::cout << "step " << step + 1 << " loss " << loss << std::endl;
        if (!p.step(g, w, static_cast<double>(rows.size()))) // plugml
            for (std::size_t i = 0; i < w.size(); i++)
                w[i] -= lr * g[i];
    }
    std::ofstream file(argv[3]);
    file.precision(17);
    for (double number : w)
        file << number << "\n";
    return file.flush() ? 0 : 1;
} catch (const std::exception &error) {
    std::cerr << "trainer: " << error.what() << std::endl;
    return 1;
}
