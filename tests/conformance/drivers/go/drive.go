// Does what its arguments say with the Go client, and prints the outcome of each: as drive.py, and after the word `rows` as rows.py.
package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"plugml"
)

var (
	p      *plugml.Plug
	wanted []string
	mapped bool
)

func number(text string) float64 {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil && text != "" {
		panic(err)
	}
	return value
}

// An array of n numbers of a dtype, made of f(i).
func array(dtype string, n int, f func(i int) float64) any {
	small, large, whole := make([]float32, n), make([]float64, n), make([]int64, n)
	for i := 0; i < n; i++ {
		small[i], large[i], whole[i] = float32(f(i)), f(i), int64(f(i))
	}
	return map[string]any{"f32": small, "f64": large, "i64": whole}[dtype]
}

// The first numbers of an array, `width` of them between two semicolons.
func shown(values any, most, width int) string {
	var text strings.Builder
	put := func(i int, value float64) {
		if i > 0 && i < most {
			text.WriteByte(",;"[map[bool]int{true: 1}[i%width == 0]])
		}
		if i < most {
			text.WriteString(strconv.FormatFloat(value, 'g', 9, 64))
		}
	}
	switch numbers := values.(type) {
	case []float32:
		for i, value := range numbers {
			put(i, float64(value))
		}
	case []float64:
		for i, value := range numbers {
			put(i, value)
		}
	case []int64:
		for i, value := range numbers {
			put(i, float64(value))
		}
	}
	return text.String()
}

func outcome(verb string, stopped bool, err error) string {
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "clock %d: %v\n", p.Clock(), err)
		return "E " + p.Code()
	case !p.Plugged():
		return "0 OK"
	case stopped && strings.Contains(" step push async pushpull tick ", " "+verb+" "):
		return "S STOP"
	}
	return "1 OK"
}

func bit(value bool) int {
	if value {
		return 1
	}
	return 0
}

func dense(verb string, g, w any) (err error) {
	switch verb {
	case "step":
		_, err = p.Step(g, w)
	case "push":
		_, err = p.Push(g)
	case "async":
		_, err = p.PushAsync(g)
	case "pull":
		_, err = p.Pull(w)
	case "pushpull":
		_, err = p.PushPull(g, w)
	case "tick":
		_, err = p.Tick()
	case "ping":
		_, err = p.Ping()
	}
	return err
}

// The same through the mapped files, of an f64 table.
func inPlace(verb string, g, w any) error {
	if !p.Plugged() || verb == "tick" || verb == "ping" {
		return dense(verb, nil, nil)
	}
	if verb != "pull" {
		grad, err := p.Grad("")
		if err != nil {
			return err
		}
		for i, value := range g.([]float64) {
			binary.LittleEndian.PutUint64(grad[8*i:], math.Float64bits(value))
		}
	}
	err := dense(verb, nil, nil)
	param, wrong := p.Param("")
	for i := range w.([]float64) {
		if wrong == nil {
			w.([]float64)[i] = math.Float64frombits(binary.LittleEndian.Uint64(param[8*i:]))
		}
	}
	return err
}

func drive(ops []string) {
	n, dtype := 4, "f64"
	if table := p.Table(""); table != nil {
		n, dtype = table.Count, table.DType
	}
	w := array(dtype, n, func(int) float64 { return -1 })
	for _, op := range ops {
		words := strings.Split(op+"::", ":")
		constant, stopped := number(words[1]), p.Stopped()
		g := array(dtype, n, func(i int) float64 { return constant + float64(i) })
		p.SetWeight(1)
		if words[2] != "" {
			p.SetWeight(number(words[2]))
		}
		var err error
		switch words[0] {
		case "bye":
			return
		case "who":
			fmt.Printf("who plugged=%d main=%d worker=%d of=%d clock=%d\n", bit(p.Plugged()), bit(p.Main()), p.Worker(), p.Workers(), p.Clock())
			continue
		case "close":
			for fd := 3; fd < 256; fd++ { // but for those of Go's own poller, without which no Go program goes on
				if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && !strings.HasPrefix(to, "anon_inode:") {
					_ = syscall.Close(fd)
				}
			}
			continue
		case "fork":
			fmt.Println("fork -")
			continue
		case "die":
			_, _ = p.Put("", g)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "init":
			if p.Plugged() {
				w = g
				_, err = p.Init(w)
			}
		case "expect":
			_, err = p.Expect(dtype, int(constant))
		default:
			if mapped {
				err = inPlace(words[0], g, w)
			} else {
				err = dense(words[0], g, w)
			}
		}
		fmt.Printf("%s %s clock=%d done=%d w=%s\n", op, outcome(words[0], stopped, err), p.Clock(), bit(p.Done()), shown(w, 6, 6))
	}
}

func keys(table *plugml.Table, text string) any {
	words := strings.Split(text, ",")
	if text == "" {
		words = nil
	}
	if table != nil && table.Index == "str" {
		return words
	}
	small, large := make([]uint32, len(words)), make([]uint64, len(words))
	for i, word := range words {
		large[i], _ = strconv.ParseUint(word, 10, 64)
		small[i] = uint32(large[i])
	}
	if table != nil && table.Index == "u32" {
		return small
	}
	return large
}

func exchange(verb string, rest []string) (string, error) {
	defer func() { wanted = nil }()
	table := p.Table("")
	var g, w any
	if table != nil && len(rest) > 0 {
		w = array(table.DType, table.Count, func(int) float64 { return 0 })
		if rest[0] != "" {
			g = array(table.DType, table.Count, func(i int) float64 { return number(rest[0]) + float64(i) })
		}
	}
	if err := dense(verb, g, w); err != nil || !p.Plugged() || verb == "push" || verb == "async" {
		return "", err
	}
	text := ""
	if w != nil {
		text = " w=" + shown(w, table.Count, table.Count)
	}
	for _, name := range wanted {
		table, k, _ := p.Table(strings.SplitN(name, ":", 2)[0]), 0, 0
		k, _ = strconv.Atoi(strings.SplitN(name, ":", 2)[1])
		values := array(table.DType, k*table.Width, func(int) float64 { return 0 })
		if _, err := p.Came(table.Name, values); err != nil {
			return "", nil // after STOP nothing came
		}
		text += " " + table.Name + "=" + shown(values, k*table.Width, table.Width)
	}
	return text, nil
}

func rows(ops []string) {
	for _, op := range ops {
		words := strings.Split(op, ":")
		verb, rest, text := words[0], words[1:], ""
		stopped := p.Stopped()
		var err error
		switch verb {
		case "bye":
			return
		case "end":
			os.Exit(0)
		case "rows", "want":
			table := p.Table(rest[0])
			named := keys(table, rest[1])
			k := bit(rest[1] != "") + strings.Count(rest[1], ",")
			if verb == "want" {
				if done, _ := p.Want(rest[0], named); done && p.Plugged() {
					wanted = append(wanted, rest[0]+":"+strconv.Itoa(k))
				}
				continue
			}
			width, dtype := 1, "f64"
			if table != nil && table.Width > 0 {
				width, dtype = table.Width, table.DType
			}
			_, _ = p.Rows(rest[0], named, array(dtype, k*width, func(i int) float64 { return number(rest[2]) + 10*float64(i/width) + float64(i%width) }))
			continue
		case "timeout":
			p.SetTimeout(time.Duration(number(rest[0])) * time.Millisecond)
			continue
		case "put", "get":
			table := p.Table(rest[0])
			if table == nil {
				table = &plugml.Table{Name: rest[0], DType: "f64", Count: 1}
			}
			if verb == "put" {
				_, err = p.Put(rest[0], array(table.DType, table.Count, func(i int) float64 { return number(rest[1]) + float64(i) }))
			} else {
				w := array(table.DType, table.Count, func(int) float64 { return 0 })
				_, err = p.Get(rest[0], w)
				text = " " + rest[0] + "=" + shown(w, table.Count, table.Count)
			}
		case "next":
			var piece string
			if piece, err = p.Next(""); piece != "" {
				text = fmt.Sprintf(" %d:%d:%s", p.Piece(), p.Turn(), piece)
			} else {
				text = " none"
			}
		default:
			text, err = exchange(verb, rest)
		}
		told := outcome(verb, stopped, err)
		if told[0] == 'E' || told[0] == 'S' {
			text = ""
		}
		fmt.Printf("%s %s clock=%d stopped=%d lag=%d%s\n", op, told, p.Clock(), bit(p.Stopped()), p.Lag(), text)
	}
}

func main() {
	var err error
	if p, err = plugml.Attach(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ops := os.Args[1:]
	if file := os.Getenv("PLUGML_OPS"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		ops = strings.Fields(string(text))
	}
	if mapped = len(ops) > 0 && ops[0] == "-m"; mapped {
		ops = ops[1:]
	}
	if len(ops) > 0 && ops[0] == "rows" {
		rows(ops[1:])
	} else {
		drive(ops)
	}
	failed := p.Code() != "OK" && p.Code() != "STOP"
	if err := p.Bye(); err != nil || failed {
		os.Exit(1)
	}
}
