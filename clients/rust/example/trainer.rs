//! Multinomial logistic regression by full-batch gradient descent: a serial program.
//!
//!     rustc -O trainer.rs && ./trainer shard.txt 200 weights.txt [lr]
//!
//! Each line of the shard is `label pixel0 ... pixel63`, whole numbers, pixels from 0 to 16.  The model is w[10][65], a row of 64
//! pixels and a bias for each digit, and starts from zeros.  At the end it lies in weights.txt, one number a line.
//!
//! The lines marked "plugml" are all that was added to train it on many workers.  Without PLUGML_DIR they do nothing.
use std::error::Error;
mod plugml; // plugml

const CLASSES: usize = 10;
const WIDTH: usize = 65;

fn read_shard(name: &str) -> Result<Vec<(usize, Vec<f64>)>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for line in std::fs::read_to_string(name)?.lines() {
        let numbers = line.split_whitespace().map(|word| word.parse()).collect::<Result<Vec<usize>, _>>()?;
        if numbers.len() != WIDTH || numbers[0] >= CLASSES {
            return Err(format!("{}: a row is a digit and {} pixels", name, WIDTH - 1).into());
        }
        let pixels = numbers[1..].iter().map(|pixel| *pixel as f64 / 16.0).chain([1.0]).collect();
        rows.push((numbers[0], pixels));
    }
    Ok(rows)
}

/// Fill g with the mean gradient over all rows; give back the mean loss.
fn gradient(rows: &[(usize, Vec<f64>)], w: &[f64], g: &mut [f64]) -> f64 {
    let mut loss = 0.0;
    g.fill(0.0);
    for (label, x) in rows {
        let mut p: Vec<f64> = w.chunks(WIDTH).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect();
        let top = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        p.iter_mut().for_each(|z| *z = (*z - top).exp());
        let sum: f64 = p.iter().sum();
        loss -= (p[*label] / sum).ln();
        for (k, part) in g.chunks_mut(WIDTH).enumerate() {
            let miss = p[k] / sum - if k == *label { 1.0 } else { 0.0 };
            part.iter_mut().zip(x).for_each(|(to, pixel)| *to += miss * pixel);
        }
    }
    g.iter_mut().for_each(|number| *number /= rows.len() as f64);
    loss / rows.len() as f64
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() < 4 {
        return Err("usage: trainer SHARD STEPS WEIGHTS [LR]".into());
    }
    let rows = read_shard(&arguments[1])?;
    let steps: u64 = arguments[2].parse()?;
    let lr: f64 = arguments.get(4).map_or("1", |text| text.as_str()).parse()?;
    let (mut w, mut g) = (vec![0.0; CLASSES * WIDTH], vec![0.0; CLASSES * WIDTH]);

    let mut p = plugml::attach()?; // plugml
    for step in p.steps(&mut w, steps)? { // plugml: was 0..steps
        let loss = gradient(&rows, &w, &mut g);
        if step % 50 == 49 || step == 0 {
            println!("step {} loss {:.6}", step + 1, loss);
        }
        if !p.step_weighted(&g, &mut w, rows.len() as f64)? { // plugml
            w.iter_mut().zip(&g).for_each(|(to, slope)| *to -= lr * slope);
        }
    }
    let text: String = w.iter().map(|number| format!("{}\n", number)).collect();
    std::fs::write(&arguments[3], text)?;
    Ok(())
}
