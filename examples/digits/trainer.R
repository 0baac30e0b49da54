# Multinomial logistic regression by full-batch gradient descent: a serial program in base R.
#
#     Rscript trainer.R shard.txt 200 weights.txt [lr]
#
# Each line of the shard is `label pixel0 ... pixel63`, whole numbers, pixels from 0 to 16.  The model is W, a row of
# 64 pixels and a bias for each digit, and starts from zeros.  At the end it lies in weights.txt, row by row, one
# number a line.
#
# The lines marked "plugml" are all that was added to train it on many workers.  Without PLUGML_DIR they do nothing.
source(Sys.getenv("PLUGML_R", "plugml.R"))  # plugml

arguments <- commandArgs(trailingOnly = TRUE)
if (length(arguments) < 3) stop("usage: Rscript trainer.R SHARD STEPS WEIGHTS [LR]")
shard <- matrix(scan(arguments[1], quiet = TRUE), ncol = 65, byrow = TRUE)
steps <- as.integer(arguments[2])
lr <- if (length(arguments) > 3) as.numeric(arguments[4]) else 1.0

rows <- nrow(shard)
X <- cbind(shard[, -1, drop = FALSE] / 16, 1)        # rows x 65
labels <- shard[, 1] + 1                             # 1 to 10, as R counts
Y <- matrix(0, rows, 10)
Y[cbind(seq_len(rows), labels)] <- 1
W <- matrix(0, 10, 65)

p <- plugml_attach()  # plugml
W <- plugml_pull(p, W)  # plugml
step <- plugml_clock(p)  # plugml: was 0
while (step < steps && !plugml_done(p)) {  # plugml: was step < steps
  Z <- X %*% t(W)
  E <- exp(Z - apply(Z, 1, max))
  P <- E / rowSums(E)
  G <- t(P - Y) %*% X / rows
  step <- step + 1
  if (step %% 50 == 0 || step == 1) cat(sprintf("step %d loss %.6f\n", step, -mean(log(P[cbind(seq_len(rows), labels)]))))
  W <- plugml_step(p, G, weight = rows, alone = W - lr * G)  # plugml: was W <- W - lr * G
}
writeLines(sprintf("%.17g", t(W)), arguments[3])
