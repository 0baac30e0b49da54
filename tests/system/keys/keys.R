# Pushes i to the i-th of many keys, again and again, and reads them all: keys.R KEYS.txt PUSHES
source(Sys.getenv("PLUGML_R"))
words <- commandArgs(trailingOnly = TRUE)
rows <- readLines(words[1])
g <- matrix(as.numeric(seq_along(rows)), ncol = 1)
p <- plugml_attach()
for (push in seq_len(as.integer(words[2]))) {
  values <- plugml_step(p, list(e = list(rows, g)), want = list(e = rows))
  stopifnot(values$e >= push * g)
}
plugml_bye(p)
