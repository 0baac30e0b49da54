// Package plugml plugs a serial Go program into its channel.  Standard library only; Linux.
//
//	p := plugml.Must(plugml.Attach())                                                // nil: alone
//	for step := plugml.Must(p.Resume(w)); step < steps && !p.Done(); step++ {
//		gradient(w, g)
//		if !plugml.Must(p.Step(g, w)) {
//			update(w, g) // your own, when alone
//		}
//	}
//
// Without PLUGML_DIR in the environment Attach gives nil, and every method of a nil *Plug does nothing and returns false or zero.
// Errors are *plugml.Error, with the code and the sentence of SPEC.md.
//
// The order of system calls is the protocol (shm_protocol/SPEC.md): data, then cmd, then the bell, then the wait.  A Plug
// belongs to one goroutine at a time.
package plugml

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Error is a request that was refused, or a channel that cannot be used.
type Error struct {
	Code string // a word of SPEC.md, section 8: "SIZE", "NONFINITE" ...
	Text string
}

func (e *Error) Error() string { return e.Code + ": " + e.Text }

var meanings = map[string]string{
	"SEQ":       "The sequence number or the clock is not the next one. The next request takes up the count.",
	"FORMAT":    "The request line could not be read.",
	"RANGE":     "A number, row or table lies outside what was declared; nothing was applied.",
	"SIZE":      "A data file has not the size that info promises; nothing was applied.",
	"NONFINITE": "The push holds NaN or infinity; nothing of it was applied. Look for an overflow in the program.",
	"TIMEOUT":   "The answer did not come in time. A push was accepted and is carried out later: do not send it again, pull.",
	"AGAIN":     "There is no room for the request just now; nothing was done.",
	"NOSERVER":  "A server that holds part of the model is gone or out of reach. See plugml status.",
	"VERSION":   "Program and agent speak different versions of the channel. Use the client that belongs to this plugml.",
	"PERM":      "A file of the channel has another owner, type or mode than it must have.",
	"GONE":      "The agent is gone for good; whether the last request was carried out is unknown. End the program; run it again from the last checkpoint.",
	"NOSPC":     "There is no room: in the channel root, on a server, or in the job's memory.",
	"COLLIDE":   "Two string keys have the same hash; nothing was applied. Rename one of the two.",
	"STOP":      "The job's stop rule has fired.",
	"INTERNAL":  "plugml itself failed. Please report the text with the log of the agent.",
	"FENCED":    "A newer incarnation of this worker has taken its place. End the program: its successor is at work.",
}

// Table is one table of the job.  A sparse one has a Width above 0.
type Table struct {
	Name, DType string // dtype: f32, f64 or i64
	Order       byte   // C: the last index runs fastest; F: the first one
	Shape       []int
	Count       int // elements; 0 of a sparse table
	Offset      int // bytes from the start of grad and param
	Width       int // sparse: elements of a row
	Batch       int // sparse: the most rows that one request pushes, and the most that it wants
	Index       string
}

func (t *Table) size() int {
	if t.DType == "f32" {
		return 4
	}
	return 8
}

// What the next request says of one sparse table: bytes of the numbers and of the keys, ready for the files.
type section struct {
	table         *Table
	pushes, wants bool
	k, want       int
	values        []byte
	keys, wanted  []byte
}

// A FIFO that we hold open.  A program may close descriptors that it does not know, and the number may then belong to another
// file: device and inode tell whether it is still ours.
type bell struct {
	fd            int
	device, inode uint64
}

func (b bell) held() bool {
	var now syscall.Stat_t
	return b.fd >= 0 && syscall.Fstat(b.fd, &now) == nil && uint64(now.Dev) == b.device && now.Ino == b.inode
}

func (b bell) close() {
	if b.held() {
		_ = syscall.Close(b.fd)
	}
}

// Plug is a program's side of one channel.
type Plug struct {
	// Tables of the job, in the order of info.
	Tables []*Table

	weight          float64
	timeout         time.Duration
	dir             string
	req, rep        bell
	worker, workers int
	seq             uint64
	clock           int
	lag             int
	version         uint64
	nbytes, count   int
	sections        []*section
	came            map[string][]byte
	mistake, fatal  error
	failed, stop    bool
	code            string
	put             bool
	piece, turn     int
	maps            map[string][]byte
}

// Must returns v, or ends the program by a panic with the error.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ---- beginning and end ---------------------------------------------------------------------------------------------

// Attach to the channel that PLUGML_DIR names, and say hello.  nil and no error: there is none, the program runs alone.
func Attach() (*Plug, error) {
	dir := os.Getenv("PLUGML_DIR")
	if dir == "" {
		return nil, nil
	}
	p := &Plug{weight: 1, dir: dir, req: bell{fd: -1}, rep: bell{fd: -1}, workers: 1, piece: -1, maps: map[string][]byte{}}
	p.clock, _ = strconv.Atoi(os.Getenv("PLUGML_CLOCK"))
	for _, begin := range []func() error{p.checkPage, p.readInfo, p.openBells, p.discardReplies, p.hello} {
		if err := begin(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Bye says that this worker has finished, and closes the channel; after a failed request it only closes, and returns that error's
// like.  A program that ends with exit code 0 and without it has finished, too.
func (p *Plug) Bye() error {
	if p == nil {
		return nil
	}
	var err error
	if p.fatal == nil && !p.failed {
		_, err = p.bare("bye")
	}
	for _, mapped := range p.maps {
		_ = syscall.Munmap(mapped)
	}
	p.maps = nil
	p.req.close()
	p.rep.close()
	if p.fatal == nil {
		p.fatal = &Error{"GONE", "this program has said bye already"}
	}
	return err
}

// ---- what a training loop calls ------------------------------------------------------------------------------------

// Resume fills w with the values of now and gives back the clock to go on at.  Alone: 0, and w is not touched.
func (p *Plug) Resume(w any) (int, error) {
	_, err := p.Pull(w)
	return p.Clock(), err
}

// Step pushes g, ends this clock, and fills w with what the consistency model allows to see.  false: alone.
// g and w are []float32, []float64 or []int64 as long as the job's one dense table, or nil: see Put, Get, Grad and Param.
func (p *Plug) Step(g, w any) (bool, error) { return p.request("step", true, g, true, w, "") }

// StepWeighted is Step with its own weight: how many examples are behind g.
func (p *Plug) StepWeighted(g, w any, weight float64) (bool, error) {
	if p == nil {
		return false, nil
	}
	defer func(before float64) { p.weight = before }(p.weight)
	p.weight = weight
	return p.Step(g, w)
}

// Push sends g without ending the clock: several pushes may go into one.
func (p *Plug) Push(g any) (bool, error) { return p.request("push", true, g, false, nil, "") }

// PushAsync comes back when the push is accepted; one that fails later is told by the next request.
func (p *Plug) PushAsync(g any) (bool, error) {
	return p.request("push", true, g, false, nil, " async=1")
}

// Pull fills w with the values of now.
func (p *Plug) Pull(w any) (bool, error) { return p.request("pull", false, nil, true, w, "") }

// PushPull pushes g, then pulls w.
func (p *Plug) PushPull(g, w any) (bool, error) {
	return p.request("pushpull", true, g, true, w, "")
}

// Init offers w as first values of tables with init=program; w becomes what the job took.
func (p *Plug) Init(w any) (bool, error) { return p.request("init", true, w, true, w, "") }

// SetWeight of all following pushes: how many examples are behind them.  1 in the beginning; 0 counts for nothing.
func (p *Plug) SetWeight(weight float64) {
	if p != nil {
		p.weight = weight
	}
}

// SetTimeout of all following requests; 0: as long as it takes.
func (p *Plug) SetTimeout(timeout time.Duration) {
	if p != nil {
		p.timeout = timeout
	}
}

// Tick ends this clock without a push.
func (p *Plug) Tick() (bool, error) { return p.bare("clock") }

// Ping asks for nothing.
func (p *Plug) Ping() (bool, error) { return p.bare("ping") }

// Next gives the next piece of input that this worker shall read (a file's name, or whatever the job's list says); "": nothing is
// left.  Alone it gives `alone` back, so that one loop does for both:
//
//	for piece := plugml.Must(p.Next(path)); piece != ""; piece = plugml.Must(p.Next(""))
func (p *Plug) Next(alone string) (string, error) {
	if p == nil {
		return alone, nil
	}
	p.piece = -1
	if _, err := p.bare("next"); err != nil || p.code == "STOP" {
		return "", err
	}
	line, err := os.ReadFile(filepath.Join(p.dir, "data"))
	if err != nil {
		return "", p.lost("data", err)
	}
	if len(line) == 0 {
		return "", nil
	}
	text, _, _ := strings.Cut(string(line), "\n")
	words := strings.SplitN(text, " ", 3)
	if len(words) < 3 {
		return "", p.fail("INTERNAL", "the piece of input in %s/data cannot be read", p.dir)
	}
	p.turn, _ = strconv.Atoi(words[0])
	p.piece, _ = strconv.Atoi(words[1])
	return words[2], nil
}

// ---- who and where am I --------------------------------------------------------------------------------------------

// Plugged says whether there is a channel.
func (p *Plug) Plugged() bool { return p != nil }

// Main is true alone and for worker 0, which prints and saves.
func (p *Plug) Main() bool { return p == nil || p.worker == 0 }

// Worker is this worker's number, from 0.
func (p *Plug) Worker() int {
	if p == nil {
		return 0
	}
	return p.worker
}

// Workers is how many workers the job began with.
func (p *Plug) Workers() int {
	if p == nil {
		return 1
	}
	return p.workers
}

// Clock is the number of clocks that this worker has finished.
func (p *Plug) Clock() int {
	if p == nil {
		return 0
	}
	return p.clock
}

// Lag is the number of clocks that the slowest worker is behind this one.
func (p *Plug) Lag() int {
	if p == nil {
		return 0
	}
	return p.lag
}

// Version of the values that were last pulled.
func (p *Plug) Version() uint64 {
	if p == nil {
		return 0
	}
	return p.version
}

// Piece and Turn are the number of the piece of input, and the pass that it belongs to; -1: there was none.
func (p *Plug) Piece() int {
	if p == nil {
		return -1
	}
	return p.piece
}

// Turn is the pass over all pieces, from 0.
func (p *Plug) Turn() int {
	if p == nil {
		return 0
	}
	return p.turn
}

// Stopped: the job's stop rule has fired.
func (p *Plug) Stopped() bool { return p != nil && p.stop }

// Done: a training loop must end now, since the stop rule has fired or the last request failed.
func (p *Plug) Done() bool { return p != nil && (p.stop || p.failed) }

// Code is the word of the last outcome: OK, STOP, or an error's.
func (p *Plug) Code() string {
	if p == nil || p.code == "" {
		return "OK"
	}
	return p.code
}

// Table by name; "": the first dense one.  nil: there is none.
func (p *Plug) Table(name string) *Table {
	if p == nil {
		return nil
	}
	for _, table := range p.Tables {
		if table.Name == name || name == "" && table.Width == 0 {
			return table
		}
	}
	return nil
}

// Expect refuses to go on unless the dense tables hold `count` elements of `dtype`.
func (p *Plug) Expect(dtype string, count int) (bool, error) {
	if p == nil || p.fatal != nil {
		return false, p.ready()
	}
	for _, table := range p.Tables {
		if table.Width == 0 && table.DType != dtype {
			return false, p.end("SIZE", "table %s holds %s numbers, the program has %s: declare the table as %s", table.Name, table.DType, dtype, dtype)
		}
	}
	if p.count != count {
		return false, p.end("SIZE", "the job's tables have %d elements, the program has %d: make the shapes agree", p.count, count)
	}
	return true, nil
}

// ---- dense tables --------------------------------------------------------------------------------------------------

// Put writes what the next push sends of one dense table: Put each, then Step(nil, nil).
func (p *Plug) Put(name string, g any) (bool, error) { return p.move(name, g, p.write) }

// Get reads one dense table after a pull.
func (p *Plug) Get(name string, w any) (bool, error) { return p.move(name, w, p.read) }

func (p *Plug) move(name string, array any, how func(file string, table *Table, array any) error) (bool, error) {
	if err := p.ready(); err != nil || p == nil {
		return false, err
	}
	table, err := p.dense(name)
	if err != nil {
		return false, err
	}
	return true, how(name, table, array)
}

// Grad is a dense table's part of grad itself, mapped, as raw bytes: fill it (unsafe.Slice makes numbers of it), then Step(nil, nil).
func (p *Plug) Grad(name string) ([]byte, error) { return p.mapped("grad", name) }

// Param is a dense table's part of param itself, mapped.
func (p *Plug) Param(name string) ([]byte, error) { return p.mapped("param", name) }

func (p *Plug) mapped(file, name string) ([]byte, error) {
	if err := p.ready(); err != nil || p == nil {
		return nil, err
	}
	table, err := p.dense(name)
	if err != nil {
		return nil, err
	}
	if p.maps[file] == nil {
		opened, err := os.OpenFile(filepath.Join(p.dir, file), os.O_RDWR, 0)
		if err != nil {
			return nil, p.lost(file, err)
		}
		defer opened.Close()
		if found, err := opened.Stat(); err != nil || found.Size() < int64(p.nbytes) {
			return nil, p.fail("SIZE", "%s is shorter than info promises: it cannot be mapped", file)
		}
		p.maps[file], err = syscall.Mmap(int(opened.Fd()), 0, p.nbytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		if err != nil {
			return nil, p.fail("NOSPC", "cannot map %s: %v", file, err)
		}
	}
	if file == "grad" {
		p.put = true
	}
	return p.maps[file][table.Offset : table.Offset+table.Count*table.size()], nil
}

func (p *Plug) dense(name string) (*Table, error) {
	table := p.Table(name)
	if table == nil || table.Width > 0 {
		return nil, p.fail("RANGE", "the job has no dense table %s: see the table= lines of %s/info", name, p.dir)
	}
	return table, nil
}

// The job's one dense table, which an array stands for that is given without a name.
func (p *Plug) only() (*Table, error) {
	table := p.Table("")
	if table == nil || table.Count != p.count {
		return nil, p.fail("SIZE", "an array without a name stands for the only dense table, and the job has none or several: Put and Get each by name")
	}
	return table, nil
}

func (p *Plug) fits(table *Table, array any, count int) error {
	dtype, length := "none", 0
	switch numbers := array.(type) {
	case []float32:
		dtype, length = "f32", len(numbers)
	case []float64:
		dtype, length = "f64", len(numbers)
	case []int64:
		dtype, length = "i64", len(numbers)
	}
	if dtype != table.DType {
		return p.fail("SIZE", "table %s holds %s numbers, a %T was given: declare the table as the program has it", table.Name, table.DType, array)
	}
	if length != count {
		return p.fail("SIZE", "table %s takes %d numbers here, %d were given", table.Name, count, length)
	}
	return nil
}

func (p *Plug) write(_ string, table *Table, g any) error {
	if err := p.fits(table, g, table.Count); err != nil {
		return err
	}
	p.put = true
	return p.store("grad", encode(g), table.Offset)
}

func (p *Plug) read(_ string, table *Table, w any) error {
	if err := p.fits(table, w, table.Count); err != nil {
		return err
	}
	data, err := p.load("param", table.Count*table.size(), table.Offset)
	if err == nil {
		decode(data, w)
	}
	return err
}

// ---- rows of sparse tables -----------------------------------------------------------------------------------------

// Rows pushes, with the next request, values[i*Width ...] to row keys[i].  keys are []uint32, []uint64 or []string as the table's
// index says, numbers from 0.  A row that comes twice is added up.  What is refused here refuses that request, too.
func (p *Plug) Rows(name string, keys, values any) (bool, error) {
	return p.named(name, keys, func(s *section, k int, names []byte) error {
		if s.pushes {
			return p.fail("FORMAT", "table %s has its rows for this request already: give all of them in one call", name)
		}
		if err := p.fits(s.table, values, k*s.table.Width); err != nil {
			return err
		}
		s.pushes, s.k, s.keys, s.values = true, k, names, encode(values)
		return nil
	})
}

// Want asks, with the next request that pulls, for rows; Came gives them afterwards.
func (p *Plug) Want(name string, keys any) (bool, error) {
	return p.named(name, keys, func(s *section, k int, names []byte) error {
		if s.wants {
			return p.fail("FORMAT", "rows of table %s are wanted by this request already: name all of them in one call", name)
		}
		s.wants, s.want, s.wanted = true, k, names
		return nil
	})
}

// Came fills values with the rows that the last request wanted, in their order.
func (p *Plug) Came(name string, values any) (bool, error) {
	if err := p.ready(); err != nil || p == nil {
		return false, err
	}
	data, known := p.came[name]
	if !known {
		return false, p.fail("RANGE", "the last request wanted no rows of table %s", name)
	}
	table := p.Table(name)
	if err := p.fits(table, values, len(data)/table.size()); err != nil {
		return false, err
	}
	decode(data, values)
	return true, nil
}

func (p *Plug) named(name string, keys any, say func(s *section, k int, names []byte) error) (bool, error) {
	if err := p.ready(); err != nil || p == nil {
		return false, err
	}
	s, err := p.section(name)
	if err == nil {
		var k int
		var names []byte
		if k, names, err = p.names(s.table, keys); err == nil {
			err = say(s, k, names)
		}
	}
	if err != nil {
		p.mistake = err
	}
	return err == nil, err
}

func (p *Plug) section(name string) (*section, error) {
	table := p.Table(name)
	if table == nil || table.Width == 0 || name == "" {
		var known []string
		for _, other := range p.Tables {
			if other.Width > 0 {
				known = append(known, other.Name)
			}
		}
		if known == nil {
			known = []string{"none"}
		}
		return nil, p.fail("RANGE", "the job has no sparse table %s; it has %s", name, strings.Join(known, ", "))
	}
	for _, s := range p.sections {
		if s.table == table {
			return s, nil
		}
	}
	s := &section{table: table}
	p.sections = append(p.sections, s)
	return s, nil
}

func (p *Plug) names(table *Table, keys any) (int, []byte, error) {
	var into bytes.Buffer
	k, index := 0, ""
	switch rows := keys.(type) {
	case []uint32:
		k, index = len(rows), "u32"
		_ = binary.Write(&into, binary.LittleEndian, rows)
	case []uint64:
		k, index = len(rows), "u64"
		_ = binary.Write(&into, binary.LittleEndian, rows)
	case []string:
		k, index = len(rows), "str"
		for number, key := range rows {
			if strings.Contains(key, "\n") {
				return 0, nil, p.fail("FORMAT", "key %d of table %s holds a newline, which ends a key; nothing was applied", number+1, table.Name)
			}
			into.WriteString(key + "\n")
		}
	}
	if index != table.Index {
		return 0, nil, p.fail("SIZE", "table %s has index %s, rows were given as %T", table.Name, table.Index, keys)
	}
	if k > table.Batch {
		return 0, nil, p.fail("RANGE", "%d rows of table %s: one request takes at most %d (the table's batch=)", k, table.Name, table.Batch)
	}
	return k, into.Bytes(), nil
}

// ---- requests ------------------------------------------------------------------------------------------------------

const weightMax = 1 << 53

// One request that pushes g, fills w, and takes the rows along that were named for it.
func (p *Plug) request(verb string, pushes bool, g any, pulls bool, w any, more string) (bool, error) {
	if err := p.ready(); err != nil || p == nil {
		return false, err
	}
	err := p.exchange(verb, pushes, g, pulls, w, more)
	p.sections, p.mistake, p.put = nil, nil, false
	return true, err
}

func (p *Plug) exchange(verb string, pushes bool, g any, pulls bool, w any, more string) error {
	if p.mistake != nil {
		return p.fail(p.mistake.(*Error).Code, "nothing was asked, since the rows that were named for this request had been refused: %s", p.mistake.(*Error).Text)
	}
	p.came = nil
	// Beside rows the dense tables take part iff somebody gives them, or a place for them.
	dense := len(p.sections) == 0 || g != nil || (pushes && p.put) || (!pushes && w != nil)
	if w != nil && !dense {
		return p.fail("FORMAT", "the dense tables are pulled where they are pushed, too: give their g beside the rows, or pull them alone")
	}
	words := ""
	if dense && (pushes || len(p.sections) > 0) {
		words += " n=" + strconv.Itoa(p.count)
	}
	if pushes {
		if !(p.weight >= 0) || p.weight > weightMax {
			return p.fail("RANGE", "weight %g: a weight is from 0 to 2^53; nothing was pushed", p.weight)
		}
		weight := p.weight
		if verb == "init" {
			weight = 1
		}
		words += " w=" + strconv.FormatFloat(weight, 'g', 17, 64) + more
	}
	for _, s := range p.sections {
		words += " table=" + s.table.Name
		if s.k > 0 {
			words += " k=" + strconv.Itoa(s.k)
		}
		if s.want > 0 {
			words += " want=" + strconv.Itoa(s.want)
		}
	}
	if err := p.writeData(pushes, g, pulls, dense); err != nil {
		return err
	}
	if err := p.carryOut(verb, words); err != nil || p.code == "STOP" || !pulls {
		return err
	}
	if w != nil {
		table, err := p.only()
		if err == nil {
			err = p.read("", table, w)
		}
		if err != nil {
			return err
		}
	}
	return p.readRows(dense)
}

func (p *Plug) writeData(pushes bool, g any, pulls, dense bool) error {
	if pushes && g != nil {
		table, err := p.only()
		if err == nil {
			err = p.write("", table, g)
		}
		if err != nil {
			return err
		}
	}
	at, numbersAt, wantAt := p.rowsStart(dense), 0, 0
	var keys, wanted []byte
	strs := false
	for _, s := range p.sections {
		if err := p.store("grad", s.values, at); err != nil {
			return err
		}
		at = up(at+len(s.values), 8)
		if s.table.Index == "str" {
			strs = true
			keys, wanted = append(keys, s.keys...), append(wanted, s.wanted...)
			continue
		}
		if err := p.store("gidx", s.keys, numbersAt); err != nil {
			return err
		}
		if err := p.store("want", s.wanted, wantAt); err != nil {
			return err
		}
		numbersAt, wantAt = up(numbersAt+len(s.keys), 8), up(wantAt+len(s.wanted), 8)
	}
	if !strs {
		return nil
	}
	for name, text := range map[string][]byte{"gkey": keys, "wkey": wanted} {
		if err := os.WriteFile(filepath.Join(p.dir, name), text, 0o600); err != nil {
			return p.lost(name, err)
		}
	}
	return nil
}

func (p *Plug) readRows(dense bool) error {
	at := p.rowsStart(dense)
	p.came = map[string][]byte{}
	for _, s := range p.sections {
		length := s.want * s.table.Width * s.table.size()
		data, err := p.load("param", length, at)
		if err != nil {
			return err
		}
		if s.wants {
			p.came[s.table.Name] = data
		}
		at = up(at+length, 8)
	}
	return nil
}

func (p *Plug) bare(verb string) (bool, error) {
	if err := p.ready(); err != nil || p == nil {
		return false, err
	}
	return true, p.carryOut(verb, "")
}

// The data lie in their files: make the request.
func (p *Plug) carryOut(verb, words string) error {
	if p.code == "SEQ" { // Somebody else has used the channel: take up his count.
		if err := p.hello(); err != nil {
			return err
		}
	}
	limit := ""
	if p.timeout > 0 && strings.Contains(" step push pull pushpull clock ", " "+verb+" ") {
		limit = fmt.Sprintf(" t=%d", (p.timeout+time.Millisecond-1)/time.Millisecond)
	}
	line := fmt.Sprintf("%s %d %d%s%s\n", verb, p.seq+1, p.clock, limit, words)
	if len(line) > 4096 {
		return p.fail("FORMAT", "the request names too many tables for one line: make several pushes of it")
	}
	answer, err := p.ask(line, p.seq+1)
	if err != nil {
		return err
	}
	if answer.code != "SEQ" && answer.code != "AGAIN" {
		p.seq++ // Refused for good is answered, too.
	}
	if answer.code != "AGAIN" && answer.code != "GONE" {
		p.clock = answer.clock // After TIMEOUT a refusal moves it, too.
	}
	p.stop = p.stop || answer.keys["stop"] == "1" || answer.code == "STOP"
	if answer.code == "STOP" { // No error: the loop has come to its end.
		p.code, p.failed = "STOP", false
		return nil
	}
	if answer.code != "OK" {
		return p.refused(answer.code)
	}
	p.code, p.failed = "OK", false
	if lag, err := strconv.Atoi(answer.keys["lag"]); err == nil {
		p.lag = lag
	}
	if version, err := strconv.ParseUint(answer.keys["v"], 10, 64); err == nil {
		p.version = version
	}
	return nil
}

// Fail with the sentence that the agent left in err, as `CODE seq=<seq>: text`.
func (p *Plug) refused(code string) error {
	text := meanings[code]
	if code != "GONE" { // The launcher says GONE, and it writes no text.
		line, _ := os.ReadFile(filepath.Join(p.dir, "err"))
		line, _, _ = bytes.Cut(line, []byte("\n"))
		head, sentence, found := strings.Cut(strings.TrimRight(string(line), "\x00"), ": ")
		if found && strings.HasPrefix(head, code) && sentence != "" {
			text = sentence
		}
	}
	return p.fail(code, "%s", text)
}

// Ask where this generation stands.
func (p *Plug) hello() error {
	answer, err := p.ask(fmt.Sprintf("hello 0 %d\n", p.clock), 0)
	if err != nil {
		return err
	}
	if answer.code != "OK" {
		return p.refused(answer.code)
	}
	p.seq, _ = strconv.ParseUint(answer.keys["done"], 10, 64)
	p.clock = answer.clock
	return nil
}

// Data lie in their files: write the request, ring, wait.
func (p *Plug) ask(line string, seq uint64) (reply, error) {
	pause := 10 * time.Millisecond
	for tries := 1; ; tries++ { // AGAIN: 60 times, with pauses that grow from 10 ms to a second.
		if err := p.store("cmd", []byte(line), 0); err != nil {
			return reply{}, err
		}
		if err := p.ring(); err != nil {
			return reply{}, err
		}
		answer, err := p.wait(seq)
		if err != nil || answer.code != "AGAIN" || tries == 60 {
			return answer, err
		}
		time.Sleep(pause)
		if pause *= 2; pause > time.Second {
			pause = time.Second
		}
	}
}

func (p *Plug) ring() error {
	if err := p.openBells(); err != nil {
		return err
	}
	for {
		_, err := syscall.Write(p.req.fd, []byte("\n"))
		if err == nil || errors.Is(err, syscall.EAGAIN) { // EAGAIN: 64 KiB of rings wait already, ours would add nothing.
			return nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return p.fail("PERM", "cannot ring req: %v", err)
		}
	}
}

// Sleep until the agent has answered seq.  Older replies come again after an agent was restarted: they are passed over.
func (p *Plug) wait(seq uint64) (reply, error) {
	record := make([]byte, 64)
	for got := 0; ; {
		n, err := syscall.Read(p.rep.fd, record[got:])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return reply{}, p.fail("PERM", "cannot read rep: %v", err)
		case n == 0:
			return reply{}, p.fail("GONE", "agent and launcher are gone; whether the last request was carried out is unknown; run the program again")
		}
		if got += n; got < len(record) {
			continue
		}
		got = 0
		answer, ok := parseReply(string(record))
		if !ok {
			return reply{}, p.end("INTERNAL", "the agent's reply cannot be read: is something else writing to %s/rep?", p.dir)
		}
		if answer.seq == seq || answer.code == "GONE" {
			return answer, nil
		}
	}
}

type reply struct {
	code  string
	seq   uint64
	clock int
	keys  map[string]string
}

func parseReply(record string) (reply, bool) {
	words := strings.Fields(record)
	if len(record) != 64 || record[63] != '\n' || len(words) < 3 || (words[0] != "ok" && words[0] != "err") {
		return reply{}, false
	}
	seq, err := strconv.ParseUint(words[1], 10, 64)
	clock, wrong := strconv.Atoi(words[2])
	if err != nil || wrong != nil {
		return reply{}, false
	}
	answer := reply{"OK", seq, clock, pairs(words[3:])}
	if words[0] == "err" {
		answer.code = answer.keys["code"]
		if _, known := meanings[answer.code]; !known {
			answer.code = "INTERNAL" // A later agent has more words.
		}
	}
	return answer, true
}

// `key=value` words; others are passed over.
func pairs(words []string) map[string]string {
	found := map[string]string{}
	for _, word := range words {
		if key, value, ok := strings.Cut(word, "="); ok {
			found[key] = value
		}
	}
	return found
}

// ---- errors --------------------------------------------------------------------------------------------------------

func (p *Plug) fail(code, format string, words ...any) error {
	err := &Error{code, fmt.Sprintf(format, words...)}
	p.code, p.failed = code, true
	if code == "GONE" || code == "VERSION" || code == "PERM" || code == "FENCED" {
		p.fatal = err
	}
	return err
}

// An error after which no request can succeed.
func (p *Plug) end(code, format string, words ...any) error {
	p.fatal = p.fail(code, format, words...)
	return p.fatal
}

func (p *Plug) lost(name string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return p.fail("GONE", "there is no channel in %s any more (%s is missing): end the program", p.dir, name)
	case errors.Is(err, syscall.ENOSPC):
		return p.fail("NOSPC", "no room for %s: %v", name, err)
	}
	return p.fail("PERM", "cannot use %s: %v", name, err)
}

// May a request be made at all?  Alone: yes, and it does nothing.
func (p *Plug) ready() error {
	if p == nil {
		return nil
	}
	return p.fatal
}

// ---- files ---------------------------------------------------------------------------------------------------------

func up(number, step int) int { return (number + step - 1) / step * step }

// Where the rows begin in grad and param: behind the dense tables, if those take part.
func (p *Plug) rowsStart(dense bool) int {
	if !dense {
		return 0
	}
	return up(p.nbytes, 64)
}

// One write into a file of the channel; it is opened by name each time, since a program may close what it does not know.
func (p *Plug) store(name string, data []byte, at int) error {
	if len(data) == 0 {
		return nil
	}
	file, err := os.OpenFile(filepath.Join(p.dir, name), os.O_WRONLY, 0)
	if err != nil {
		return p.lost(name, err)
	}
	_, err = file.WriteAt(data, int64(at))
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return p.lost(name, err)
	}
	return nil
}

func (p *Plug) load(name string, length, at int) ([]byte, error) {
	file, err := os.Open(filepath.Join(p.dir, name))
	if err != nil {
		return nil, p.lost(name, err)
	}
	defer file.Close()
	data := make([]byte, length)
	if _, err := file.ReadAt(data, int64(at)); err != nil && length > 0 {
		return nil, p.fail("SIZE", "%s is shorter than info promises", name)
	}
	return data, nil
}

func encode(array any) []byte {
	var into bytes.Buffer
	_ = binary.Write(&into, binary.LittleEndian, array) // a slice of numbers always fits
	return into.Bytes()
}

func decode(data []byte, array any) {
	switch numbers := array.(type) {
	case []float32:
		for i := range numbers {
			numbers[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
	case []float64:
		for i := range numbers {
			numbers[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
		}
	case []int64:
		for i := range numbers {
			numbers[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		}
	}
}

// Open the FIFOs, if that has not been done, or if the program closed them.  They can be opened at any time; rep for reading only,
// so that its end of file tells when nobody is left.  Opening a FIFO for reading waits for a writer: for a moment we are one.
func (p *Plug) openBells() error {
	if p.req.held() && p.rep.held() {
		return nil
	}
	p.req.close()
	p.rep.close()
	p.req = p.openBell("req", syscall.O_RDWR|syscall.O_NONBLOCK)
	writer := p.openBell("rep", syscall.O_RDWR)
	if writer.fd >= 0 {
		p.rep = p.openBell("rep", syscall.O_RDONLY)
	}
	writer.close()
	return p.fatal
}

func (p *Plug) openBell(name string, flags int) bell {
	fd, err := syscall.Open(filepath.Join(p.dir, name), flags|syscall.O_CLOEXEC, 0)
	if err != nil {
		_ = p.lost(name, err)
		return bell{fd: -1}
	}
	var found syscall.Stat_t
	if err := syscall.Fstat(fd, &found); err != nil || found.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		_ = syscall.Close(fd)
		_ = p.fail("PERM", "%s/%s is not the FIFO that it must be", p.dir, name)
		return bell{fd: -1}
	}
	return bell{fd, uint64(found.Dev), found.Ino}
}

// Throw away what waits in rep: an earlier program of this generation may have died before it read its reply.
func (p *Plug) discardReplies() error {
	if err := syscall.SetNonblock(p.rep.fd, true); err != nil {
		return p.lost("rep", err)
	}
	rest := make([]byte, 4096)
	for {
		n, err := syscall.Read(p.rep.fd, rest)
		if n <= 0 && !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err := syscall.SetNonblock(p.rep.fd, false); err != nil {
		return p.lost("rep", err)
	}
	return nil
}

func (p *Plug) checkPage() error {
	page, err := p.load("ctl", 4096, 0)
	if err != nil {
		return err
	}
	little := binary.LittleEndian
	head := append([]byte(nil), page[:0x80]...)
	copy(head[0x14:0x18], make([]byte, 4))
	switch {
	case string(page[:8]) != "PLUGMLC1" || little.Uint32(page[0xc:]) != 0x01020304:
		return p.fail("VERSION", "%s/ctl is no page of a channel", p.dir)
	case little.Uint16(page[8:]) != 1:
		return p.fail("VERSION", "the channel has layout %d, this client knows 1: use the client that belongs to this plugml", little.Uint16(page[8:]))
	case crc32.ChecksumIEEE(head) != little.Uint32(page[0x14:]):
		return p.fail("VERSION", "%s/ctl is damaged: its checksum does not fit", p.dir)
	}
	return nil
}

func (p *Plug) readInfo() error {
	text, err := os.ReadFile(filepath.Join(p.dir, "info"))
	if err != nil {
		return p.lost("info", err)
	}
	head, err := p.parseInfo(string(text))
	if err != nil {
		return err
	}
	if head["version"] != "1" {
		return p.fail("VERSION", "the channel speaks version %s, this client speaks 1: use the client that belongs to this plugml", head["version"])
	}
	if head["bell"] != "fifo" {
		return p.fail("VERSION", "the channel wakes its program by bell=%s, which Go cannot wait for: run the job with bell=fifo", head["bell"])
	}
	p.worker, _ = strconv.Atoi(head["worker"])
	p.workers, _ = strconv.Atoi(head["workers"])
	return nil
}

func (p *Plug) parseInfo(text string) (map[string]string, error) {
	head := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "table=") {
			key, value, _ := strings.Cut(line, "=")
			head[key] = value
			continue
		}
		words := pairs(strings.Fields(line))
		if words["kind"] != "dense" && words["kind"] != "sparse" {
			continue
		}
		table := &Table{Name: words["table"], DType: words["dtype"], Index: words["index"]}
		for key, into := range map[string]*int{"count": &table.Count, "offset": &table.Offset, "width": &table.Width, "batch": &table.Batch} {
			number, err := strconv.Atoi(words[key])
			if words[key] != "" && err != nil {
				return nil, p.fail("FORMAT", "info holds a table that cannot be read: %s", line)
			}
			*into = number
		}
		if words["order"] != "" {
			table.Order = words["order"][0]
		}
		for _, side := range strings.Split(words["shape"], ",") {
			number, _ := strconv.Atoi(side)
			table.Shape = append(table.Shape, number)
		}
		p.Tables = append(p.Tables, table)
		p.count += table.Count
		if end := table.Offset + table.Count*table.size(); end > p.nbytes {
			p.nbytes = end
		}
	}
	return head, nil
}
