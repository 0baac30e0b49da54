# A counter, to find out whether a push is ever lost or doubled: whole numbers that depend on worker and clock.
#
#     plugml run -n 3 --table w=1000,dtype=i64,optimizer=add -- Rscript count.R STEPS [MILLISECONDS]
#
# In clock c worker k pushes (c + 1) (k + 1) + i to element i.  At the end it prints its clock and the first and last sum.
source(Sys.getenv("PLUGML_R", "plugml.R"))

arguments <- as.numeric(commandArgs(trailingOnly = TRUE))
steps <- if (length(arguments) > 0) arguments[1] else 10
wait <- if (length(arguments) > 1) arguments[2] / 1000 else 0

p <- plugml_attach()
n <- if (plugml_plugged(p)) plugml_tables(p)[[1]]$count else 4
worker <- plugml_worker(p)
w <- plugml_pull(p, numeric(n))
step <- plugml_clock(p)
while (step < steps && !plugml_done(p)) {
  if (wait > 0) Sys.sleep(wait)
  g <- (step + 1) * (worker + 1) + seq_len(n) - 1
  step <- step + 1
  w <- plugml_step(p, g, alone = w + g)
}
cat(sprintf("count worker=%.0f clock=%.0f first=%.0f last=%.0f\n", worker, step, w[1], w[n]))
plugml_bye(p)
