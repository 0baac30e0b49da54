# Does what its arguments say, with the R client, and prints the outcome of each.  See test_clients_driven.py.
source(Sys.getenv("PLUGML_R"))

p <- plugml_attach()
n <- if (plugml_plugged(p)) plugml_tables(p)[[1]]$count else 4
w <- rep(-1, n)

tell <- function(op, outcome) {
  shown <- paste(sprintf("%.9g", head(w, 6)), collapse = ",")
  cat(sprintf("%s %s %s clock=%.0f done=%d w=%s\n", op, outcome, plugml_code(p), plugml_clock(p), plugml_done(p), shown))
}

do_one <- function(op) {
  words <- strsplit(op, ":")[[1]]
  g <- (if (length(words) > 1) as.numeric(words[2]) else 0) + seq_len(n) - 1
  weight <- if (length(words) > 2) as.numeric(words[3]) else 1
  outcome <- tryCatch({
    switch(words[1],
      step = w <<- plugml_step(p, g, weight, alone = w),
      push = plugml_push(p, g, weight),
      pull = w <<- plugml_pull(p, w),
      pushpull = w <<- plugml_pushpull(p, g, weight, alone = w),
      init = w <<- if (plugml_plugged(p)) plugml_init(p, g) else w,
      tick = plugml_tick(p),
      ping = plugml_ping(p),
      expect = plugml_expect(p, as.numeric(words[2]))
    )
    if (!plugml_plugged(p)) "0" else if (plugml_code(p) == "STOP") "S" else "1"
  }, plugml_error = function(e) {
    message(conditionMessage(e))
    "E"
  })
  tell(op, outcome)
}

ops <- if (nzchar(Sys.getenv("PLUGML_OPS"))) readLines(Sys.getenv("PLUGML_OPS")) else commandArgs(trailingOnly = TRUE)  # docs/conform.md
for (op in ops) {
  word <- sub(":.*", "", op)
  if (word == "bye") break
  if (word == "who") {
    cat(sprintf("who plugged=%d main=%d worker=%.0f of=%.0f clock=%.0f\n", plugml_plugged(p), plugml_main(p), plugml_worker(p),
                plugml_workers(p), plugml_clock(p)))
  } else if (word == "fork") {
    lines <- parallel::mclapply(1:2, mc.cores = 2, function(i) if (i == 1) utils::capture.output({ do_one("step:1"); plugml_bye(p) }))
    writeLines(lines[[1]])
  } else if (word == "close") {
    closeAllConnections()
  } else if (word == "die") {
    plugml_write(p, as.numeric(sub(".*:", "", op)) + seq_len(n) - 1)
    tools::pskill(Sys.getpid(), tools::SIGKILL)
  } else {
    do_one(op)
  }
}
if (!plugml_code(p) %in% c("OK", "STOP")) quit(status = 1)
plugml_bye(p)
