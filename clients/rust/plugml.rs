//! Plug a serial Rust program into its channel.  The standard library alone, safe code alone; Linux.
//!
//! ```text
//! mod plugml;
//! let mut p = plugml::attach()?;
//! for step in p.steps(&mut w, steps)? {           // was 0..steps
//!     gradient(&w, &mut g);
//!     if !p.step(&g, &mut w)? {
//!         update(&mut w, &g);                     // your own, when alone
//!     }
//! }
//! ```
//!
//! Without PLUGML_DIR in the environment the program runs alone: every call does nothing and gives false, 0 or nothing.  The order of
//! system calls is the protocol (shm_protocol/SPEC.md): data, then `cmd`, then the bell, then the wait.
#![allow(dead_code)]

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

const O_NONBLOCK: i32 = 0o4000;
const WEIGHT_MAX: f64 = 9007199254740992.0; // 2^53

/// What went wrong, as SPEC.md, section 8, has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Seq,
    Format,
    Range,
    Size,
    Nonfinite,
    Timeout,
    Again,
    Noserver,
    Version,
    Perm,
    Gone,
    Nospc,
    Collide,
    Stop,
    Internal,
    Fenced,
}

const CODES: [(Code, &str, &str); 16] = [
    (Code::Seq, "SEQ", "The sequence number or the clock is not the next one. The next request takes up the count."),
    (Code::Format, "FORMAT", "The request line could not be read."),
    (Code::Range, "RANGE", "A number, row or table lies outside what was declared; nothing was applied."),
    (Code::Size, "SIZE", "A data file has not the size that info promises; nothing was applied."),
    (Code::Nonfinite, "NONFINITE", "The push holds NaN or infinity; nothing of it was applied. Look for an overflow in the program."),
    (Code::Timeout, "TIMEOUT", "The answer did not come in time. A push was accepted and is carried out later: do not send it again, pull."),
    (Code::Again, "AGAIN", "There is no room for the request just now; nothing was done."),
    (Code::Noserver, "NOSERVER", "A server that holds part of the model is gone or out of reach. See plugml status."),
    (Code::Version, "VERSION", "Program and agent speak different versions of the channel. Use the client that belongs to this plugml."),
    (Code::Perm, "PERM", "A file of the channel has another owner, type or mode than it must have."),
    (Code::Gone, "GONE", "The agent is gone for good; whether the last request was carried out is unknown. End the program; run it again from the last checkpoint."),
    (Code::Nospc, "NOSPC", "There is no room: in the channel root, on a server, or in the job's memory."),
    (Code::Collide, "COLLIDE", "Two string keys have the same hash; nothing was applied. Rename one of the two."),
    (Code::Stop, "STOP", "The job's stop rule has fired."),
    (Code::Internal, "INTERNAL", "plugml itself failed. Please report the text with the log of the agent."),
    (Code::Fenced, "FENCED", "A newer incarnation of this worker has taken its place. End the program: its successor is at work."),
];

impl Code {
    pub fn name(self) -> &'static str {
        CODES[self as usize].1
    }

    fn named(name: &str) -> Code {
        CODES.iter().find(|row| row.1 == name).map_or(Code::Internal, |row| row.0) // a later agent has more words
    }
}

/// A request that was refused, or a channel that cannot be used: the code, and the sentence.
#[derive(Clone, Debug)]
pub struct Error {
    pub code: Code,
    pub text: String,
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: {}", self.code.name(), self.text)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

/// The numbers of tables: f32, f64, i64.
pub trait Number: Copy {
    const DTYPE: &'static str;
    const SIZE: usize;
    fn put(self, into: &mut Vec<u8>);
    fn take(bytes: &[u8]) -> Self;
}

/// What names a row: u32 and u64 count from 0; strings.
pub trait Key {
    const INDEX: &'static str;
    fn put(&self, into: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($kind:ty, $dtype:expr, $size:expr;)*) => {$(
        impl Number for $kind {
            const DTYPE: &'static str = $dtype;
            const SIZE: usize = $size;
            fn put(self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }
            fn take(bytes: &[u8]) -> Self {
                let mut word = [0; $size];
                word.copy_from_slice(bytes);
                <$kind>::from_le_bytes(word)
            }
        }
    )*};
}
numbers! { f32, "f32", 4; f64, "f64", 8; i64, "i64", 8; }

impl Key for u32 {
    const INDEX: &'static str = "u32";
    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.to_le_bytes());
    }
}

impl Key for u64 {
    const INDEX: &'static str = "u64";
    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.to_le_bytes());
    }
}

impl Key for &str {
    const INDEX: &'static str = "str";
    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self.as_bytes());
        into.push(b'\n');
    }
}

impl Key for String {
    const INDEX: &'static str = "str";
    fn put(&self, into: &mut Vec<u8>) {
        self.as_str().put(into);
    }
}

/// A table of the job.  A sparse one has a `width` above 0.
#[derive(Clone, Debug)]
pub struct Table {
    pub name: String,
    pub dtype: String, // f32, f64 or i64
    pub order: char,   // C: the last index runs fastest; F: the first one
    pub shape: Vec<u64>,
    pub count: usize,  // elements; 0 of a sparse table
    pub offset: usize, // bytes from the start of grad and param
    pub width: usize,  // sparse: elements of a row
    pub batch: usize,  // sparse: the most rows that one request pushes, and the most that it wants
    pub index: String,
}

impl Table {
    fn size(&self) -> usize {
        if self.dtype == "f32" { 4 } else { 8 }
    }
}

/// A piece of input: what the job's list says, its number, and the pass over all pieces, both from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub text: String,
    pub number: u64,
    pub turn: u64,
}

/// A request without arrays of its own: it takes along what was put, and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Step,
    Push,
    /// A push that is answered when it is accepted; what fails later is told by the next request.
    PushAsync,
    Pull,
    PushPull,
    /// End this clock without a push.
    Tick,
    Ping,
    Init,
    Next,
    Bye,
}

impl Ask {
    fn verb(self) -> &'static str {
        match self {
            Ask::Step => "step",
            Ask::Push | Ask::PushAsync => "push",
            Ask::Pull => "pull",
            Ask::PushPull => "pushpull",
            Ask::Tick => "clock",
            Ask::Ping => "ping",
            Ask::Init => "init",
            Ask::Next => "next",
            Ask::Bye => "bye",
        }
    }

    fn pushes(self) -> bool {
        matches!(self, Ask::Step | Ask::Push | Ask::PushAsync | Ask::PushPull | Ask::Init)
    }

    fn pulls(self) -> bool {
        matches!(self, Ask::Step | Ask::Pull | Ask::PushPull | Ask::Init)
    }

    fn may_wait(self) -> bool {
        !matches!(self, Ask::Ping | Ask::Init | Ask::Next | Ask::Bye)
    }
}

/// A program's side of one channel, or nothing at all.
pub struct Plug {
    channel: Option<Channel>,
    handed: bool,
}

struct Channel {
    dir: PathBuf,
    owner: u32,
    req: Option<Held>,
    rep: Option<Held>,
    tables: Vec<Table>,
    nbytes: usize, // of all dense tables, as they lie in grad and param
    count: usize,
    worker: u64,
    workers: u64,
    seq: u64, // of the last request that was answered
    state: Rc<State>,
    lag: u64,
    version: u64,
    weight: f64,
    timeout: Option<Duration>,
    sections: Vec<Section>,
    came: HashMap<String, Vec<u8>>,
    mistake: Option<Error>, // a refused rows() or want(): the request that they belong to is refused, too
    put: bool,
    code: Option<Code>,
    fatal: Option<Error>,
}

/// What a loop asks between two requests.
struct State {
    clock: Cell<u64>,
    stop: Cell<bool>,
    failed: Cell<bool>,
}

/// A FIFO that we hold open.  A program may close descriptors that it does not know, and the number may then belong to another file:
/// device and inode tell whether it is still ours.
struct Held {
    file: File,
    device: u64,
    inode: u64,
}

impl Held {
    fn is_ours(&self) -> bool {
        self.file.metadata().map_or(false, |now| now.dev() == self.device && now.ino() == self.inode)
    }
}

/// What the next request says of one sparse table, as bytes for the files.
struct Section {
    table: usize,
    pushed: Option<(usize, Vec<u8>, Vec<u8>)>, // rows, keys, values
    wanted: Option<(usize, Vec<u8>)>,
}

/// The clocks that are still to be done: it ends when the job's stop rule has fired or a request failed.
pub struct Steps {
    state: Option<Rc<State>>,
    next: u64,
    end: u64,
}

impl Iterator for Steps {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if let Some(state) = &self.state {
            if state.stop.get() || state.failed.get() {
                return None;
            }
            self.next = state.clock.get();
        }
        let step = self.next;
        self.next += 1;
        if step < self.end { Some(step) } else { None }
    }
}

struct Reply {
    code: Option<Code>,
    seq: u64,
    clock: u64,
    keys: HashMap<String, String>,
}

/// Attach to the channel that PLUGML_DIR names, and say hello.  Without that variable the program runs alone.
pub fn attach() -> Result<Plug> {
    let dir = match std::env::var_os("PLUGML_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => return Ok(Plug { channel: None, handed: false }),
    };
    let clock = std::env::var("PLUGML_CLOCK").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut channel = Channel {
        dir,
        owner: std::process::id(),
        req: None,
        rep: None,
        tables: Vec::new(),
        nbytes: 0,
        count: 0,
        worker: 0,
        workers: 1,
        seq: 0,
        state: Rc::new(State { clock: Cell::new(clock), stop: Cell::new(false), failed: Cell::new(false) }),
        lag: 0,
        version: 0,
        weight: 1.0,
        timeout: None,
        sections: Vec::new(),
        came: HashMap::new(),
        mistake: None,
        put: false,
        code: None,
        fatal: None,
    };
    channel.check_page()?;
    channel.read_info()?;
    channel.open_bells()?;
    channel.discard_replies()?;
    channel.hello()?;
    Ok(Plug { channel: Some(channel), handed: false })
}

impl Plug {
    // ---- what a training loop calls --------------------------------------------------------------------------------

    /// Fill `w` with the values of now, and give the clocks from where this worker goes on to `steps`.  Alone: 0 to `steps`.
    pub fn steps<T: Number>(&mut self, w: &mut [T], steps: u64) -> Result<Steps> {
        self.pull(w)?;
        let state = self.channel.as_ref().map(|channel| Rc::clone(&channel.state));
        Ok(Steps { state, next: 0, end: steps })
    }

    /// Push `g`, end this clock, and fill `w` with what the consistency model allows to see.  false: alone.
    pub fn step<T: Number>(&mut self, g: &[T], w: &mut [T]) -> Result<bool> {
        self.request(Ask::Step, Some(g), Some(w))
    }

    /// The same with a weight of its own: how many examples are behind `g`.
    pub fn step_weighted<T: Number>(&mut self, g: &[T], w: &mut [T], weight: f64) -> Result<bool> {
        let before = self.channel.as_ref().map_or(1.0, |channel| channel.weight);
        self.set_weight(weight);
        let outcome = self.step(g, w);
        self.set_weight(before);
        outcome
    }

    /// Push without ending the clock: several pushes may go into one.
    pub fn push<T: Number>(&mut self, g: &[T]) -> Result<bool> {
        self.request(Ask::Push, Some(g), None)
    }

    pub fn push_async<T: Number>(&mut self, g: &[T]) -> Result<bool> {
        self.request(Ask::PushAsync, Some(g), None)
    }

    pub fn pull<T: Number>(&mut self, w: &mut [T]) -> Result<bool> {
        self.request(Ask::Pull, None, Some(w))
    }

    pub fn pushpull<T: Number>(&mut self, g: &[T], w: &mut [T]) -> Result<bool> {
        self.request(Ask::PushPull, Some(g), Some(w))
    }

    /// Offer `w` as first values of tables with init=program; `w` becomes what the job took.
    pub fn init<T: Number>(&mut self, w: &mut [T]) -> Result<bool> {
        let offer = w.to_vec();
        self.request(Ask::Init, Some(&offer), Some(w))
    }

    pub fn tick(&mut self) -> Result<bool> {
        self.ask(Ask::Tick)
    }

    pub fn ping(&mut self) -> Result<bool> {
        self.ask(Ask::Ping)
    }

    /// A request without arrays: of what was put, and of rows.  get() and came() give what it brought.
    pub fn ask(&mut self, ask: Ask) -> Result<bool> {
        self.request::<f64>(ask, None, None)
    }

    /// The next piece of input that this worker shall read; None: nothing is left.  Alone it gives `alone`, once.
    pub fn next(&mut self, alone: &str) -> Result<Option<Piece>> {
        match &mut self.channel {
            Some(channel) => channel.next(),
            None if self.handed || alone.is_empty() => Ok(None),
            None => {
                self.handed = true;
                Ok(Some(Piece { text: alone.to_string(), number: 0, turn: 0 }))
            }
        }
    }

    /// Say that this worker has finished.  A program that ends with exit code 0 and without it has finished, too.
    pub fn bye(mut self) -> Result<()> {
        match &mut self.channel {
            Some(channel) if channel.owner == std::process::id() => {
                channel.ready()?;
                channel.carry_out(Ask::Bye, "")
            }
            _ => Ok(()), // a forked child that ends must not say bye for its parent
        }
    }

    // ---- dense tables by name, rows of sparse ones ------------------------------------------------------------------

    /// Write what the next push sends of one dense table; then ask(Ask::Step).
    pub fn put<T: Number>(&mut self, table: &str, g: &[T]) -> Result<bool> {
        self.with(|channel| {
            let at = channel.dense(table)?;
            channel.write(at, g)
        })
    }

    /// Read one dense table after a pull.
    pub fn get<T: Number>(&mut self, table: &str, w: &mut [T]) -> Result<bool> {
        self.with(|channel| {
            let at = channel.dense(table)?;
            channel.read(at, w)
        })
    }

    /// With the next request, push `values[i * width ..]` to row `keys[i]`.  A row that comes twice is added up.  What is refused here
    /// refuses that request, too.
    pub fn rows<K: Key, T: Number>(&mut self, table: &str, keys: &[K], values: &[T]) -> Result<bool> {
        self.with(|channel| {
            let outcome = channel.rows(table, keys, values);
            channel.mistake = outcome.as_ref().err().cloned().or(channel.mistake.take());
            outcome
        })
    }

    /// Ask for rows with the next request that pulls; came() gives them afterwards.
    pub fn want<K: Key>(&mut self, table: &str, keys: &[K]) -> Result<bool> {
        self.with(|channel| {
            let outcome = channel.want(table, keys);
            channel.mistake = outcome.as_ref().err().cloned().or(channel.mistake.take());
            outcome
        })
    }

    /// The rows that the last request wanted, one after the other; empty: it wanted none.
    pub fn came<T: Number>(&mut self, table: &str) -> Result<Vec<T>> {
        let mut values = Vec::new();
        self.with(|channel| {
            if let Some(bytes) = channel.came.get(table) {
                let wrong = channel.tables.iter().any(|known| known.name == table && known.dtype != T::DTYPE);
                if wrong {
                    return Err(channel.fail(Code::Size, format!("table {} does not hold {} numbers", table, T::DTYPE)));
                }
                values = bytes.chunks(T::SIZE).map(T::take).collect();
            }
            Ok(())
        })?;
        Ok(values)
    }

    // ---- who and where am I -----------------------------------------------------------------------------------------

    pub fn plugged(&self) -> bool {
        self.channel.is_some()
    }

    /// Alone or worker 0: prints and saves.
    pub fn main(&self) -> bool {
        self.worker() == 0
    }

    pub fn worker(&self) -> u64 {
        self.channel.as_ref().map_or(0, |channel| channel.worker)
    }

    pub fn workers(&self) -> u64 {
        self.channel.as_ref().map_or(1, |channel| channel.workers)
    }

    /// Clocks that this worker has finished.
    pub fn clock(&self) -> u64 {
        self.channel.as_ref().map_or(0, |channel| channel.state.clock.get())
    }

    /// Clocks that the slowest worker is behind this one.
    pub fn lag(&self) -> u64 {
        self.channel.as_ref().map_or(0, |channel| channel.lag)
    }

    /// Of the values last pulled.
    pub fn version(&self) -> u64 {
        self.channel.as_ref().map_or(0, |channel| channel.version)
    }

    /// The job's stop rule has fired.
    pub fn stopped(&self) -> bool {
        self.channel.as_ref().map_or(false, |channel| channel.state.stop.get())
    }

    /// A training loop must end now: the stop rule has fired, or the last request failed.
    pub fn done(&self) -> bool {
        self.stopped() || self.channel.as_ref().map_or(false, |channel| channel.state.failed.get())
    }

    /// The code of the last request; None: all was well.
    pub fn code(&self) -> Option<Code> {
        self.channel.as_ref().and_then(|channel| channel.code)
    }

    pub fn tables(&self) -> &[Table] {
        self.channel.as_ref().map_or(&[], |channel| &channel.tables)
    }

    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables().iter().find(|table| table.name == name)
    }

    /// Of all following pushes: how many examples are behind them.  1 in the beginning; 0 counts for nothing.
    pub fn set_weight(&mut self, weight: f64) {
        if let Some(channel) = &mut self.channel {
            channel.weight = weight;
        }
    }

    /// Of all following requests; None: as long as it takes.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        if let Some(channel) = &mut self.channel {
            channel.timeout = timeout;
        }
    }

    /// Refuse to go on unless the dense tables hold `count` elements of `T`.
    pub fn expect<T: Number>(&mut self, count: usize) -> Result<bool> {
        self.with(|channel| {
            if let Some(other) = channel.tables.iter().find(|table| table.width == 0 && table.dtype != T::DTYPE) {
                let text = format!("table {} holds {} numbers, the program has {}: declare the table so", other.name, other.dtype, T::DTYPE);
                return Err(channel.end(Code::Size, text));
            }
            if channel.count != count {
                let text = format!("the job's tables have {} elements, the program has {}: make the shapes agree", channel.count, count);
                return Err(channel.end(Code::Size, text));
            }
            Ok(())
        })
    }

    fn with(&mut self, action: impl FnOnce(&mut Channel) -> Result<()>) -> Result<bool> {
        match &mut self.channel {
            None => Ok(false),
            Some(channel) => {
                channel.ready()?;
                action(channel).map(|()| true)
            }
        }
    }

    fn request<T: Number>(&mut self, ask: Ask, g: Option<&[T]>, w: Option<&mut [T]>) -> Result<bool> {
        self.with(|channel| {
            let outcome = channel.exchange(ask, g, w);
            if ask.pushes() || ask.pulls() {
                channel.sections.clear();
                channel.mistake = None;
                channel.put = false;
            }
            outcome
        })
    }
}

fn up(number: usize, step: usize) -> usize {
    (number + step - 1) / step * step
}

fn encode<T: Number>(numbers: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(numbers.len() * T::SIZE);
    numbers.iter().for_each(|number| number.put(&mut bytes));
    bytes
}

/// `key=value` words; others are passed over.
fn pairs<'a>(words: impl Iterator<Item = &'a str>) -> HashMap<String, String> {
    words.filter_map(|word| word.split_once('=')).map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn number_of<N: std::str::FromStr>(keys: &HashMap<String, String>, key: &str) -> Option<N> {
    keys.get(key).and_then(|text| text.parse().ok())
}

/// CRC-32 as zlib counts it.  128 bytes once: a table would be longer than the time it saves.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (if crc & 1 == 1 { 0xedb8_8320 } else { 0 })))
}

impl Channel {
    // ---- requests ---------------------------------------------------------------------------------------------------

    fn exchange<T: Number>(&mut self, ask: Ask, g: Option<&[T]>, w: Option<&mut [T]>) -> Result<()> {
        if !ask.pushes() && !ask.pulls() {
            return self.carry_out(ask, "");
        }
        if let Some(mistake) = &self.mistake {
            let (code, text) = (mistake.code, mistake.text.clone());
            return Err(self.fail(code, format!("nothing was asked, since the rows that were named for this request had been refused: {}", text)));
        }
        self.came.clear();
        // Beside rows the dense tables take part iff somebody gives them, or a place for them.
        let dense = self.sections.is_empty() || g.is_some() || if ask.pushes() { self.put } else { w.is_some() };
        if w.is_some() && !dense {
            return Err(self.fail(Code::Format, "the dense tables are pulled where they are pushed, too: give their g beside the rows, or pull them alone".into()));
        }
        let words = self.words(ask, dense)?;
        if let Some(g) = g {
            let table = self.only()?;
            self.write(table, g)?;
        }
        self.write_rows(dense)?;
        self.carry_out(ask, &words)?;
        if !ask.pulls() || self.code == Some(Code::Stop) {
            return Ok(());
        }
        if let Some(w) = w {
            let table = self.only()?;
            self.read(table, w)?;
        }
        self.read_rows(dense)
    }

    /// What follows verb, seq and clock in the line.
    fn words(&mut self, ask: Ask, dense: bool) -> Result<String> {
        let mut words = String::new();
        if dense && (ask.pushes() || !self.sections.is_empty()) {
            words += &format!(" n={}", self.count);
        }
        if ask.pushes() {
            let weight = if ask == Ask::Init { 1.0 } else { self.weight };
            if !(weight >= 0.0) || weight > WEIGHT_MAX {
                return Err(self.fail(Code::Range, format!("weight {}: a weight is from 0 to 2^53; nothing was pushed", weight)));
            }
            words += &if weight > 0.0 && weight < 1e-5 { format!(" w={:e}", weight) } else { format!(" w={}", weight) };
        }
        if ask == Ask::PushAsync {
            words += " async=1";
        }
        for section in &self.sections {
            words += &format!(" table={}", self.tables[section.table].name);
            match &section.pushed {
                Some((k, _, _)) if *k > 0 => words += &format!(" k={}", k),
                _ => (),
            }
            match &section.wanted {
                Some((k, _)) if *k > 0 => words += &format!(" want={}", k),
                _ => (),
            }
        }
        Ok(words)
    }

    /// The data lie in their files: make the request.
    fn carry_out(&mut self, ask: Ask, words: &str) -> Result<()> {
        if self.code == Some(Code::Seq) {
            self.hello()?; // somebody else has used the channel: take up his count
        }
        let limit = match self.timeout {
            Some(timeout) if ask.may_wait() => format!(" t={}", timeout.as_millis().max(1)),
            _ => String::new(),
        };
        let line = format!("{} {} {}{}{}\n", ask.verb(), self.seq + 1, self.state.clock.get(), limit, words);
        if line.len() > 4096 {
            return Err(self.fail(Code::Format, "the request names too many tables for one line: make several pushes of it".into()));
        }
        let reply = self.ring_and_wait(&line, self.seq + 1)?;
        if !matches!(reply.code, Some(Code::Seq | Code::Again)) {
            self.seq += 1; // refused for good is answered, too
        }
        if !matches!(reply.code, Some(Code::Again | Code::Gone)) {
            self.state.clock.set(reply.clock); // after TIMEOUT a refusal moves it, too
        }
        if reply.keys.get("stop").map_or(false, |stop| stop == "1") || reply.code == Some(Code::Stop) {
            self.state.stop.set(true);
        }
        match reply.code {
            None | Some(Code::Stop) => (), // STOP is no error: the loop has come to its end
            Some(code) => return Err(self.refused(code)),
        }
        self.code = reply.code;
        self.state.failed.set(false);
        self.lag = number_of(&reply.keys, "lag").unwrap_or(self.lag);
        self.version = number_of(&reply.keys, "v").unwrap_or(self.version);
        Ok(())
    }

    /// The sentence that the agent left in err, as `CODE seq=<seq>: text`.
    fn refused(&mut self, code: Code) -> Error {
        let mut text = CODES[code as usize].2.to_string();
        if code != Code::Gone {
            // The launcher says GONE, and it writes no text.
            let found = std::fs::read(self.dir.join("err")).unwrap_or_default();
            let line = String::from_utf8_lossy(&found);
            let line = line.split(|c| c == '\n' || c == '\0').next().unwrap_or("");
            match line.split_once(": ") {
                Some((head, sentence)) if head.starts_with(code.name()) && !sentence.is_empty() => text = sentence.to_string(),
                _ => (),
            }
        }
        self.fail(code, text)
    }

    /// Ask where this generation stands.
    fn hello(&mut self) -> Result<()> {
        let reply = self.ring_and_wait(&format!("hello 0 {}\n", self.state.clock.get()), 0)?;
        if let Some(code) = reply.code {
            return Err(self.refused(code));
        }
        self.seq = number_of(&reply.keys, "done").unwrap_or(0);
        self.state.clock.set(reply.clock);
        Ok(())
    }

    fn ring_and_wait(&mut self, line: &str, seq: u64) -> Result<Reply> {
        let mut pause = Duration::from_millis(10);
        for tries in 1.. {
            // AGAIN: 60 times, with pauses that grow from 10 ms to a second.
            self.store("cmd", line.as_bytes(), 0)?;
            self.ring()?;
            let reply = self.wait(seq)?;
            if reply.code != Some(Code::Again) || tries == 60 {
                return Ok(reply);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        unreachable!()
    }

    fn ring(&mut self) -> Result<()> {
        self.open_bells()?;
        let rung = self.req.as_mut().map_or(Ok(()), |req| req.file.write_all(b"\n"));
        match rung {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(self.lost("req", &error)),
            _ => Ok(()), // would block: 64 KiB of rings wait already, ours would add nothing
        }
    }

    /// Sleep until the agent has answered `seq`.  Older replies come again after an agent was restarted: they are passed over.
    fn wait(&mut self, seq: u64) -> Result<Reply> {
        loop {
            let mut record = [0; 64];
            let outcome = self.rep.as_mut().map_or(Ok(()), |rep| rep.file.read_exact(&mut record));
            match outcome {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    let text = "agent and launcher are gone; whether the last request was carried out is unknown; run the program again";
                    return Err(self.fail(Code::Gone, text.into()));
                }
                Err(error) => return Err(self.lost("rep", &error)),
                Ok(()) => (),
            }
            match parse_reply(&record) {
                Some(reply) if reply.seq == seq || reply.code == Some(Code::Gone) => return Ok(reply),
                Some(_) => (),
                None => {
                    let text = format!("the agent's reply cannot be read: is something else writing to {}/rep?", self.dir.display());
                    return Err(self.end(Code::Internal, text));
                }
            }
        }
    }

    fn next(&mut self) -> Result<Option<Piece>> {
        self.ready()?;
        self.carry_out(Ask::Next, "")?;
        let bytes = std::fs::read(self.dir.join("data")).map_err(|error| self.lost("data", &error))?;
        if bytes.is_empty() || self.code == Some(Code::Stop) {
            return Ok(None);
        }
        let line = String::from_utf8_lossy(&bytes);
        let mut words = line.split('\n').next().unwrap_or("").splitn(3, ' ');
        let turn = words.next().and_then(|word| word.parse().ok());
        let number = words.next().and_then(|word| word.parse().ok());
        match (turn, number, words.next()) {
            (Some(turn), Some(number), Some(text)) => Ok(Some(Piece { text: text.to_string(), number, turn })),
            _ => Err(self.fail(Code::Internal, format!("the piece of input in {}/data cannot be read", self.dir.display()))),
        }
    }

    // ---- tables -----------------------------------------------------------------------------------------------------

    fn dense(&mut self, name: &str) -> Result<usize> {
        let found = self.tables.iter().position(|table| table.name == name && table.width == 0);
        found.ok_or_else(|| self.fail(Code::Range, format!("the job has no dense table {}: see the table= lines of {}/info", name, self.dir.display())))
    }

    /// The job's one dense table, which an array stands for that is given without a name.
    fn only(&mut self) -> Result<usize> {
        let found = self.tables.iter().position(|table| table.width == 0 && table.count == self.count);
        found.ok_or_else(|| {
            let text = "an array without a name stands for the only dense table, and the job has none or several: put and get each by name";
            self.fail(Code::Size, text.into())
        })
    }

    fn fits<T: Number>(&mut self, table: usize, length: usize, count: usize) -> Result<()> {
        let Table { name, dtype, .. } = &self.tables[table];
        if dtype != T::DTYPE {
            let text = format!("table {} holds {} numbers, the program has {}: declare the table so", name, dtype, T::DTYPE);
            return Err(self.fail(Code::Size, text));
        }
        if length != count {
            let text = format!("table {} takes {} numbers here, {} were given", name, count, length);
            return Err(self.fail(Code::Size, text));
        }
        Ok(())
    }

    fn write<T: Number>(&mut self, table: usize, g: &[T]) -> Result<()> {
        let (count, offset) = (self.tables[table].count, self.tables[table].offset);
        self.fits::<T>(table, g.len(), count)?;
        self.put = true;
        self.store("grad", &encode(g), offset)
    }

    fn read<T: Number>(&mut self, table: usize, w: &mut [T]) -> Result<()> {
        let (count, offset) = (self.tables[table].count, self.tables[table].offset);
        self.fits::<T>(table, w.len(), count)?;
        let bytes = self.load("param", count * T::SIZE, offset)?;
        w.iter_mut().zip(bytes.chunks(T::SIZE)).for_each(|(number, bytes)| *number = T::take(bytes));
        Ok(())
    }

    fn rows<K: Key, T: Number>(&mut self, name: &str, keys: &[K], values: &[T]) -> Result<()> {
        let at = self.section(name)?;
        if self.sections[at].pushed.is_some() {
            return Err(self.fail(Code::Format, format!("table {} has its rows for this request already: give all of them in one call", name)));
        }
        let table = self.sections[at].table;
        self.fits::<T>(table, values.len(), keys.len() * self.tables[table].width)?;
        let names = self.names(table, keys)?;
        self.sections[at].pushed = Some((keys.len(), names, encode(values)));
        Ok(())
    }

    fn want<K: Key>(&mut self, name: &str, keys: &[K]) -> Result<()> {
        let at = self.section(name)?;
        if self.sections[at].wanted.is_some() {
            return Err(self.fail(Code::Format, format!("rows of table {} are wanted by this request already: name all of them in one call", name)));
        }
        let names = self.names(self.sections[at].table, keys)?;
        self.sections[at].wanted = Some((keys.len(), names));
        Ok(())
    }

    fn section(&mut self, name: &str) -> Result<usize> {
        let table = match self.tables.iter().position(|table| table.name == name && table.width > 0) {
            Some(table) => table,
            None => {
                let known: Vec<&str> = self.tables.iter().filter(|table| table.width > 0).map(|table| table.name.as_str()).collect();
                let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
                return Err(self.fail(Code::Range, format!("the job has no sparse table {}; it has {}", name, known)));
            }
        };
        if let Some(at) = self.sections.iter().position(|section| section.table == table) {
            return Ok(at);
        }
        self.sections.push(Section { table, pushed: None, wanted: None });
        Ok(self.sections.len() - 1)
    }

    fn names<K: Key>(&mut self, table: usize, keys: &[K]) -> Result<Vec<u8>> {
        let Table { name, index, batch, .. } = self.tables[table].clone();
        if index != K::INDEX {
            return Err(self.fail(Code::Size, format!("table {} has index {}, rows were given as {}", name, index, K::INDEX)));
        }
        if keys.len() > batch {
            let text = format!("{} rows of table {}: one request takes at most {} (the table's batch=)", keys.len(), name, batch);
            return Err(self.fail(Code::Range, text));
        }
        let mut bytes = Vec::new();
        keys.iter().for_each(|key| key.put(&mut bytes));
        if K::INDEX == "str" && bytes.iter().filter(|byte| **byte == b'\n').count() != keys.len() {
            return Err(self.fail(Code::Format, format!("a key of table {} holds a newline, which ends a key; nothing was applied", name)));
        }
        Ok(bytes)
    }

    /// Where the rows begin in grad and param: behind the dense tables, if those take part.
    fn rows_start(&self, dense: bool) -> usize {
        if dense { up(self.nbytes, 64) } else { 0 }
    }

    fn write_rows(&mut self, dense: bool) -> Result<()> {
        let sections = std::mem::take(&mut self.sections);
        let (mut at, mut index_at, mut want_at) = (self.rows_start(dense), 0, 0);
        let (mut keys, mut wanted, mut strings) = (Vec::new(), Vec::new(), false);
        for section in &sections {
            let none = Vec::new();
            let (names, values) = section.pushed.as_ref().map_or((&none, &none), |pushed| (&pushed.1, &pushed.2));
            let wants = section.wanted.as_ref().map_or(&none, |wanted| &wanted.1);
            self.store("grad", values, at)?;
            at = up(at + values.len(), 8);
            if self.tables[section.table].index == "str" {
                strings = true;
                keys.extend_from_slice(names);
                wanted.extend_from_slice(wants);
                continue;
            }
            self.store("gidx", names, index_at)?;
            self.store("want", wants, want_at)?;
            index_at = up(index_at + names.len(), 8);
            want_at = up(want_at + wants.len(), 8);
        }
        self.sections = sections;
        if strings {
            for (name, text) in [("gkey", keys), ("wkey", wanted)] {
                let written = OpenOptions::new().write(true).truncate(true).open(self.dir.join(name)).and_then(|mut file| file.write_all(&text));
                written.map_err(|error| self.lost(name, &error))?;
            }
        }
        Ok(())
    }

    fn read_rows(&mut self, dense: bool) -> Result<()> {
        let mut at = self.rows_start(dense);
        for number in 0..self.sections.len() {
            let k = match &self.sections[number].wanted {
                Some((k, _)) => *k,
                None => continue,
            };
            let table = self.tables[self.sections[number].table].clone();
            let length = k * table.width * table.size();
            let bytes = self.load("param", length, at)?;
            self.came.insert(table.name, bytes);
            at = up(at + length, 8);
        }
        Ok(())
    }

    // ---- errors -----------------------------------------------------------------------------------------------------

    fn fail(&mut self, code: Code, text: String) -> Error {
        let error = Error { code, text };
        self.code = Some(code);
        self.state.failed.set(true);
        if matches!(code, Code::Gone | Code::Version | Code::Perm | Code::Fenced) {
            self.fatal = Some(error.clone());
        }
        error
    }

    /// An error after which no request can succeed.
    fn end(&mut self, code: Code, text: String) -> Error {
        let error = self.fail(code, text);
        self.fatal = Some(error.clone());
        error
    }

    fn lost(&mut self, name: &str, error: &std::io::Error) -> Error {
        match error.raw_os_error() {
            Some(2) => self.fail(Code::Gone, format!("there is no channel in {} any more ({} is missing): end the program", self.dir.display(), name)),
            Some(28) => self.fail(Code::Nospc, format!("no room for {}: {}", name, error)),
            _ => self.fail(Code::Perm, format!("cannot use {}: {}", name, error)),
        }
    }

    /// May a request be made at all?
    fn ready(&mut self) -> Result<()> {
        if let Some(error) = &self.fatal {
            return Err(error.clone());
        }
        if self.owner != std::process::id() {
            let text = format!("this is a forked child of process {}, which owns the channel: call plugml from there", self.owner);
            return Err(Error { code: Code::Perm, text });
        }
        Ok(())
    }

    // ---- files ------------------------------------------------------------------------------------------------------

    /// One write into a file of the channel; it is opened by name each time.
    fn store(&mut self, name: &str, bytes: &[u8], at: usize) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let written = OpenOptions::new().write(true).open(self.dir.join(name)).and_then(|file| file.write_all_at(bytes, at as u64));
        written.map_err(|error| self.lost(name, &error))
    }

    fn load(&mut self, name: &str, length: usize, at: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        match File::open(self.dir.join(name)).and_then(|file| file.read_exact_at(&mut bytes, at as u64)) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(self.fail(Code::Size, format!("{} is shorter than info promises", name))),
            Err(error) => Err(self.lost(name, &error)),
            Ok(()) => Ok(bytes),
        }
    }

    /// Open the FIFOs, if that has not been done, or if the program closed them.  They can be opened at any time; rep for reading only,
    /// so that its end of file tells when nobody is left.  Opening a FIFO for reading waits for a writer: for a moment we are one.
    fn open_bells(&mut self) -> Result<()> {
        if self.req.as_ref().map_or(false, Held::is_ours) && self.rep.as_ref().map_or(false, Held::is_ours) {
            return Ok(());
        }
        for lost in [self.req.take(), self.rep.take()].into_iter().flatten() {
            if !lost.is_ours() {
                std::mem::forget(lost); // its number is not ours to close
            }
        }
        self.req = Some(self.open_bell("req", true, O_NONBLOCK)?);
        let _writer = self.open_bell("rep", true, 0)?;
        self.rep = Some(self.open_bell("rep", false, 0)?);
        Ok(())
    }

    fn open_bell(&mut self, name: &str, write: bool, flags: i32) -> Result<Held> {
        let opened = OpenOptions::new().read(true).write(write).custom_flags(flags).open(self.dir.join(name));
        let found = opened.and_then(|file| file.metadata().map(|data| (file, data)));
        let (file, data) = found.map_err(|error| self.lost(name, &error))?;
        if !data.file_type().is_fifo() {
            return Err(self.fail(Code::Perm, format!("{}/{} is not the FIFO that it must be", self.dir.display(), name)));
        }
        Ok(Held { file, device: data.dev(), inode: data.ino() })
    }

    /// Throw away what waits in rep: an earlier program of this generation may have died before it read its reply.
    fn discard_replies(&mut self) -> Result<()> {
        let mut rep = self.open_bell("rep", false, O_NONBLOCK)?;
        let mut rest = [0; 4096];
        while rep.file.read(&mut rest).map_or(false, |got| got > 0) {}
        Ok(())
    }

    fn check_page(&mut self) -> Result<()> {
        let page = self.load("ctl", 4096, 0)?;
        let word = |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
        let mut head = page[..0x80].to_vec();
        head[0x14..0x18].fill(0);
        if &page[..8] != b"PLUGMLC1" || word(0xc) != 0x0102_0304 {
            return Err(self.fail(Code::Version, format!("{}/ctl is no page of a channel", self.dir.display())));
        }
        if word(8) & 0xffff != 1 {
            let text = format!("the channel has layout {}, this client knows 1: use the client that belongs to this plugml", word(8) & 0xffff);
            return Err(self.fail(Code::Version, text));
        }
        if word(0x14) != crc32(&head) {
            return Err(self.fail(Code::Version, format!("{}/ctl is damaged: its checksum does not fit", self.dir.display())));
        }
        Ok(())
    }

    fn read_info(&mut self) -> Result<()> {
        let text = std::fs::read_to_string(self.dir.join("info")).map_err(|error| self.lost("info", &error))?;
        let head = pairs(text.lines().filter(|line| !line.starts_with("table=")));
        let of = |key: &str| head.get(key).cloned().unwrap_or_default();
        if of("version") != "1" {
            let text = format!("the channel speaks version {}, this client speaks 1: use the client that belongs to this plugml", of("version"));
            return Err(self.fail(Code::Version, text));
        }
        if of("bell") != "fifo" {
            let text = format!("the channel wakes its program by bell={}, which std cannot wait for: run the job with bell=fifo", of("bell"));
            return Err(self.fail(Code::Version, text));
        }
        self.worker = number_of(&head, "worker").unwrap_or(0);
        self.workers = number_of(&head, "workers").unwrap_or(1);
        for line in text.lines().filter(|line| line.starts_with("table=")) {
            let words = pairs(line.split(' '));
            let of = |key: &str| words.get(key).cloned().unwrap_or_default();
            if of("kind") != "dense" && of("kind") != "sparse" {
                continue;
            }
            let (count, offset) = match (number_of(&words, "count"), number_of(&words, "offset")) {
                (Some(count), Some(offset)) => (count, offset),
                _ => return Err(self.fail(Code::Format, format!("info holds a table that cannot be read: {}", line))),
            };
            let table = Table {
                name: of("table"),
                dtype: of("dtype"),
                order: of("order").chars().next().unwrap_or('C'),
                shape: of("shape").split(',').filter_map(|side| side.parse().ok()).collect(),
                count,
                offset,
                width: number_of(&words, "width").unwrap_or(0),
                batch: number_of(&words, "batch").unwrap_or(0),
                index: of("index"),
            };
            self.count += count;
            self.nbytes = self.nbytes.max(offset + count * table.size());
            self.tables.push(table);
        }
        Ok(())
    }
}

fn parse_reply(record: &[u8; 64]) -> Option<Reply> {
    let text = std::str::from_utf8(record).ok().filter(|text| text.ends_with('\n'))?;
    let mut words = text.split_ascii_whitespace();
    let state = words.next().filter(|state| *state == "ok" || *state == "err")?;
    let (seq, clock) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let keys = pairs(words);
    let code = if state == "ok" { None } else { Some(Code::named(keys.get("code").map_or("", |code| code.as_str()))) };
    Some(Reply { code, seq, clock, keys })
}
