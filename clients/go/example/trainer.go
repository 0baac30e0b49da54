// Multinomial logistic regression by full-batch gradient descent: a serial program.
//
//	go run ./example shard.txt 200 weights.txt [lr]
//
// Each line of the shard is `label pixel0 ... pixel63`, whole numbers, pixels from 0 to 16.  The model is w[10][65], a row of 64
// pixels and a bias for each digit, and starts from zeros.  At the end it lies in weights.txt, one number a line.
//
// The lines marked "plugml" are all that was added to train it on many workers.  Without PLUGML_DIR they do nothing.
package main

import (
	"bufio"
	"fmt"
	"log"
	"math"
	"os"
	"plugml" // plugml
	"strconv"
	"strings"
)

const (
	classes = 10
	width   = 65
)

func readShard(name string) (pixels [][]float64, labels []int) {
	file, err := os.Open(name)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) != width {
			log.Fatalf("%s: a row has %d numbers, not %d", name, len(words), width)
		}
		row := make([]float64, width)
		for j, word := range words[1:] {
			pixel, err := strconv.Atoi(word)
			if err != nil {
				log.Fatal(err)
			}
			row[j] = float64(pixel) / 16
		}
		row[width-1] = 1
		label, err := strconv.Atoi(words[0])
		if err != nil || label < 0 || label >= classes {
			log.Fatalf("%s: a label is not a digit", name)
		}
		pixels, labels = append(pixels, row), append(labels, label)
	}
	return pixels, labels
}

// Fill g with the mean gradient over all rows; give back the mean loss.
func gradient(pixels [][]float64, labels []int, w, g []float64) float64 {
	loss := 0.0
	for i := range g {
		g[i] = 0
	}
	for row, x := range pixels {
		var p [classes]float64
		top, sum := math.Inf(-1), 0.0
		for k := range p {
			for j := range x {
				p[k] += float64(w[k*width+j] * x[j])
			}
			top = math.Max(top, p[k])
		}
		for k := range p {
			p[k] = math.Exp(p[k] - top)
			sum += p[k]
		}
		for k := range p {
			miss := p[k] / sum
			if k == labels[row] {
				loss -= math.Log(miss)
				miss--
			}
			for j := range x {
				g[k*width+j] += float64(miss * x[j])
			}
		}
	}
	for i := range g {
		g[i] /= float64(len(pixels))
	}
	return loss / float64(len(pixels))
}

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: trainer SHARD STEPS WEIGHTS [LR]")
	}
	pixels, labels := readShard(os.Args[1])
	steps, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	lr := 1.0
	if len(os.Args) > 4 {
		if lr, err = strconv.ParseFloat(os.Args[4], 64); err != nil {
			log.Fatal(err)
		}
	}
	w, g := make([]float64, classes*width), make([]float64, classes*width)

	p := plugml.Must(plugml.Attach())                                         // plugml
	for step := plugml.Must(p.Resume(w)); step < steps && !p.Done(); step++ { // plugml: from 0, no condition
		loss := gradient(pixels, labels, w, g)
		if step%50 == 49 || step == 0 {
			fmt.Printf("step %d loss %.6f\n", step+1, loss)
		}
		if !plugml.Must(p.StepWeighted(g, w, float64(len(pixels)))) { // plugml
			for i := range w {
				w[i] -= lr * g[i]
			}
		}
	}
	var text strings.Builder
	for _, number := range w {
		fmt.Fprintf(&text, "%.17g\n", number)
	}
	if err := os.WriteFile(os.Args[3], []byte(text.String()), 0o644); err != nil {
		log.Fatal(err)
	}
}
