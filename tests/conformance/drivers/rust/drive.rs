//! Does what its arguments say with the Rust client, and prints the outcome of each: as drive.py, and after the word `rows` as rows.py.
mod plugml;

use plugml::{Ask, Code, Number, Plug};
use std::time::Duration;

extern "C" {
    fn close(fd: i32) -> i32;
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn kill(pid: i32, signal: i32) -> i32;
}

/// Numbers that a driver can make and show.
trait Shown: Number + std::fmt::Display {
    fn of(value: f64) -> Self;
}
impl Shown for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
}
impl Shown for f64 {
    fn of(value: f64) -> Self {
        value
    }
}
impl Shown for i64 {
    fn of(value: f64) -> Self {
        value as i64
    }
}

fn ramp<T: Shown>(n: usize, constant: f64) -> Vec<T> {
    (0..n).map(|i| T::of(constant + i as f64)).collect()
}

fn shown<T: Shown>(values: &[T], width: usize) -> String {
    let row = |row: &[T]| row.iter().map(|value| value.to_string()).collect::<Vec<_>>().join(",");
    values.chunks(width.max(1)).map(row).collect::<Vec<_>>().join(";")
}

fn told(p: &Plug, verb: &str, stopped: bool, outcome: &plugml::Result<bool>) -> String {
    match outcome {
        Err(error) => {
            eprintln!("clock {}: {}", p.clock(), error);
            format!("E {}", error.code.name())
        }
        Ok(_) if !p.plugged() => "0 OK".into(),
        Ok(_) if stopped && ["step", "push", "async", "pushpull", "tick"].contains(&verb) => "S STOP".into(),
        Ok(_) => "1 OK".into(),
    }
}

fn dense<T: Shown>(p: &mut Plug, verb: &str, g: &[T], w: &mut [T]) -> plugml::Result<bool> {
    match verb {
        "step" => p.step(g, w),
        "push" => p.push(g),
        "async" => p.push_async(g),
        "pull" => p.pull(w),
        "pushpull" => p.pushpull(g, w),
        "tick" => p.tick(),
        "ping" => p.ping(),
        _ => panic!("{}", verb),
    }
}

fn one<T: Shown>(p: &mut Plug, op: &str, n: usize, w: &mut [T]) {
    let words: Vec<&str> = op.split(':').collect();
    let number = |at: usize, otherwise: f64| words.get(at).map_or(otherwise, |word| word.parse().unwrap());
    let g: Vec<T> = ramp(n, number(1, 0.0));
    let stopped = p.stopped();
    p.set_weight(number(2, 1.0));
    let outcome = match words[0] {
        "init" => {
            if p.plugged() {
                w.copy_from_slice(&g);
            }
            p.init(w)
        }
        "expect" => p.expect::<T>(number(1, 0.0) as usize),
        verb => dense(p, verb, &g, w),
    };
    let text = told(p, words[0], stopped, &outcome);
    println!("{} {} clock={} done={} w={}", op, text, p.clock(), p.done() as i32, shown(&w[..n.min(6)], 6));
}

fn drive<T: Shown>(p: &mut Plug, ops: &[String]) {
    let n = p.tables().first().map_or(4, |table| table.count);
    let mut w = vec![T::of(-1.0); n];
    for op in ops {
        match op.as_str() {
            "bye" => return,
            "who" => println!(
                "who plugged={} main={} worker={} of={} clock={}",
                p.plugged() as i32, p.main() as i32, p.worker(), p.workers(), p.clock()
            ),
            "close" => (3..256).for_each(|fd| unsafe {
                close(fd);
            }),
            "fork" => unsafe {
                let child = fork();
                if child == 0 {
                    one(p, "step:1", n, &mut w);
                    std::process::exit(0);
                }
                waitpid(child, std::ptr::null_mut(), 0);
            },
            op if op.starts_with("die:") => {
                let table = p.tables()[0].name.clone();
                p.put(&table, &ramp::<T>(n, op[4..].parse().unwrap())).unwrap();
                unsafe { kill(std::process::id() as i32, 9) };
            }
            op => one(p, op, n, &mut w),
        }
    }
}

fn came(p: &mut Plug, table: &str) -> plugml::Result<String> {
    let (dtype, width) = p.table(table).map_or(("f64".to_string(), 1), |table| (table.dtype.clone(), table.width));
    let text = match dtype.as_str() {
        "f32" => shown(&p.came::<f32>(table)?, width),
        "f64" => shown(&p.came::<f64>(table)?, width),
        _ => shown(&p.came::<i64>(table)?, width),
    };
    Ok(if text.is_empty() { text } else { format!(" {}={}", table, text) })
}

fn name<T: Shown>(p: &mut Plug, verb: &str, table: &str, keys: &str, constant: f64) -> plugml::Result<bool> {
    let words: Vec<&str> = keys.split(',').filter(|word| !word.is_empty()).collect();
    let (index, width) = p.table(table).map_or(("u64".to_string(), 1), |table| (table.index.clone(), table.width));
    let values: Vec<T> = (0..words.len() * width).map(|i| T::of(constant + 10.0 * (i / width.max(1)) as f64 + (i % width.max(1)) as f64)).collect();
    let long: Vec<u64> = words.iter().map(|word| word.parse().unwrap_or(0)).collect();
    let small: Vec<u32> = long.iter().map(|key| *key as u32).collect();
    match (verb, index.as_str()) {
        ("want", "str") => p.want(table, &words),
        ("want", "u32") => p.want(table, &small),
        ("want", _) => p.want(table, &long),
        (_, "str") => p.rows(table, &words, &values),
        (_, "u32") => p.rows(table, &small, &values),
        _ => p.rows(table, &long, &values),
    }
}

/// put:TABLE:CONSTANT, or get:TABLE
fn by_name<T: Shown>(p: &mut Plug, table: &str, constant: Option<f64>, text: &mut String) -> plugml::Result<bool> {
    let mut numbers: Vec<T> = ramp(p.table(table).map_or(1, |table| table.count), constant.unwrap_or(0.0));
    if constant.is_some() {
        return p.put(table, &numbers);
    }
    let outcome = p.get(table, &mut numbers);
    *text = format!(" {}={}", table, shown(&numbers, numbers.len()));
    outcome
}

fn exchange(p: &mut Plug, verb: &str, rest: Option<&str>, wanted: &[String]) -> plugml::Result<String> {
    let dense_count = p.tables().iter().find(|table| table.width == 0).map(|table| table.count);
    let mut text = String::new();
    let mut w = vec![0.0f64; dense_count.unwrap_or(0)];
    let pulls = !["push", "async"].contains(&verb);
    match (rest, dense_count) {
        (Some(""), Some(_)) => {
            p.pull(&mut w)?;
        }
        (Some(constant), Some(n)) => {
            dense(p, verb, &ramp(n, constant.parse().unwrap()), &mut w)?;
        }
        _ => {
            let asks = [("step", Ask::Step), ("push", Ask::Push), ("async", Ask::PushAsync), ("pull", Ask::Pull), ("pushpull", Ask::PushPull)];
            p.ask(asks.iter().chain(&[("tick", Ask::Tick), ("ping", Ask::Ping)]).find(|ask| ask.0 == verb).unwrap().1)?;
        }
    }
    if rest.is_some() && dense_count.is_some() && pulls {
        text = format!(" w={}", shown(&w, w.len()));
    }
    for table in wanted {
        text += &came(p, table)?;
    }
    Ok(text)
}

fn rows(p: &mut Plug, ops: &[String]) {
    let mut wanted = Vec::new();
    for op in ops {
        let words: Vec<&str> = op.split(':').collect();
        let stopped = p.stopped();
        let mut text = String::new();
        let outcome = match words[0] {
            "bye" => return,
            "end" => std::process::exit(0),
            "rows" | "want" => {
                let dtype = p.table(words[1]).map_or("f64".to_string(), |table| table.dtype.clone());
                let constant = words.get(3).map_or(0.0, |word| word.parse().unwrap());
                let named = match dtype.as_str() {
                    "f32" => name::<f32>(p, words[0], words[1], words[2], constant),
                    "f64" => name::<f64>(p, words[0], words[1], words[2], constant),
                    _ => name::<i64>(p, words[0], words[1], words[2], constant),
                };
                if words[0] == "want" && named.is_ok() {
                    wanted.push(words[1].to_string());
                }
                continue;
            }
            "timeout" => {
                let limit = words[1].parse().unwrap();
                p.set_timeout(if limit > 0 { Some(Duration::from_millis(limit)) } else { None });
                continue;
            }
            "put" | "get" => {
                let constant = words.get(2).map(|word| word.parse().unwrap());
                match p.table(words[1]).map_or("f64", |table| table.dtype.as_str()) {
                    "f32" => by_name::<f32>(p, words[1], constant, &mut text),
                    "f64" => by_name::<f64>(p, words[1], constant, &mut text),
                    _ => by_name::<i64>(p, words[1], constant, &mut text),
                }
            }
            "next" => p.next("").map(|piece| {
                text = piece.map_or(" none".into(), |piece| format!(" {}:{}:{}", piece.number, piece.turn, piece.text));
                true
            }),
            verb => {
                let done = exchange(p, verb, words.get(1).copied(), &wanted);
                wanted.clear();
                done.map(|shown| {
                    text = shown;
                    true
                })
            }
        };
        let said = told(p, words[0], stopped, &outcome);
        if said.starts_with('E') || said.starts_with('S') {
            text.clear();
        }
        println!("{} {} clock={} stopped={} lag={}{}", op, said, p.clock(), p.stopped() as i32, p.lag(), text);
    }
}

fn run() -> plugml::Result<bool> {
    let mut p = plugml::attach()?;
    let mut ops: Vec<String> = std::env::args().skip(1).collect();
    if let Ok(file) = std::env::var("PLUGML_OPS") {
        ops = std::fs::read_to_string(file).unwrap().split_whitespace().map(String::from).collect();
    }
    if ops.first().map_or(false, |op| op == "rows") {
        rows(&mut p, &ops[1..]);
    } else {
        match p.tables().first().map_or("f64", |table| table.dtype.as_str()) {
            "f32" => drive::<f32>(&mut p, &ops),
            "i64" => drive::<i64>(&mut p, &ops),
            _ => drive::<f64>(&mut p, &ops),
        }
    }
    if !matches!(p.code(), None | Some(Code::Stop)) {
        return Ok(false);
    }
    p.bye().map(|()| true)
}

fn main() {
    match run() {
        Ok(true) => (),
        Ok(false) => std::process::exit(1),
        Err(error) => {
            eprintln!("{}", error);
            std::process::exit(1)
        }
    }
}
