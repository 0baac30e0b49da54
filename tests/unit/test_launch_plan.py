"""job.toml and flags become a plan, or one clear sentence."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from plugml.core.errors import UsageError
from plugml.launch import words
from plugml.launch.jobfile import split_command
from plugml.launch.plan import RunPlan, default_name, make_plan
from plugml.launch.tables import parse_table

TOML = """
[job]
name = "digits"
workers = 8
command = "./trainer 'my data.csv' {worker}"
consistency = "bsp"
lr = 0.1

[[table]]
name = "w"
shape = [10, 64]
dtype = "f64"

[[table]]
name = "count"
shape = 3
dtype = "i64"
optimizer = "add"

[result]
dir = "out/{job}"
"""


def plan(text: str = "", **flags: Any) -> RunPlan:
    if "tables" not in flags and "[[table]]" not in text:
        flags["tables"] = ["w=4"]
    if "argv" not in flags and "command" not in text and "worker" not in flags:
        flags["argv"] = ["./t"]
    return make_plan(tomllib.loads(text), "job.toml", flags, "/work dir")


def refused(text: str = "", **flags: Any) -> str:
    with pytest.raises(UsageError) as caught:
        plan(text, **flags)
    return str(caught.value)


def test_a_file_alone_describes_a_run() -> None:
    made = plan(TOML)
    assert made.spec.name == "digits" and made.workers == 8 and made.name_given
    assert made.result == "/work dir/out/digits"
    assert made.arguments(3) == ["./trainer", "my data.csv", "3"]
    assert [table.settings for table in made.spec.tables] == [{"lr": 0.1}, {}]
    assert made.spec.tables[0].shape == (10, 64) and made.spec.tables[1].shape == (3,)


def test_a_flag_wins_over_the_same_key_of_the_file() -> None:
    made = plan(TOML, workers=2, seed=7, name="other", result="/elsewhere")
    assert (made.workers, made.spec.seed, made.spec.name, made.result) == (2, 7, "other", "/elsewhere")


@pytest.mark.parametrize(
    ("text", "flags", "says"),
    [
        ("[job]\nconsistancy = 'bsp'", {}, "did you mean 'consistency'?"),
        ("workers = 4", {}, "job.toml: workers stands outside of every section; put it under [job]"),
        ("[jobs]\nname = 'x'", {}, "did you mean 'job'?"),
        ("[[table]]\nname = 'w'\nshape = [3]\noptimiser = 'sgd'", {}, "did you mean 'optimizer'?"),
        ("[[worker]]\ncomand = './t'", {}, "did you mean 'command'?"),
        ("[result]\ndirectory = 'x'", {}, "unknown key 'directory'; known are dir"),
        ("", {"tables": ["w=3,lrr=1"]}, "did you mean 'lr'?"),
        ("[job]\nworkers = '4'", {}, "workers = '4' is not a whole number"),
        ("[job]\nworkers = true", {}, "workers = True is not a whole number"),
        ("[job]\nworkers = 0", {}, "from 1 to"),
        ("table = 3", {}, "two brackets"),
        ("[[job]]\nname = 'x'", {}, "one section"),
        ("", {"tables": ["w"]}, "NAME=SHAPE"),
        ("", {"tables": ["w=10x64"]}, "write 10,64"),
        ("", {"tables": ["w=0"]}, "from 1 on"),
        ("", {"tables": ["w=-3"]}, "no whole number"),
        ("", {"tables": ["w=3:f16"]}, "f16"),
        ("", {"tables": ["w=3,lr=fast"]}, "no number"),
        ("", {"tables": ["w=3,lr=nan"]}, "not finite"),
        ("", {"tables": ["w=3,lr=1,lr=2"]}, "twice"),
        ("", {"tables": ["w=3", "w=4"]}, "two tables are called 'w'"),
        ("[[table]]\nname = 'w'\nshape = 3", {"tables": ["w=4"]}, "'w' is described in job.toml and by --table; keep one"),
        ("[[table]]\nname = 'w'\nshape = 3\nlr = 0.5", {"lr": 0.1}, "lr = 0.5 and the job says 0.1"),
        ("", {"tables": ["w=3"], "optimizer": "add", "lr": 0.1}, "used by no table"),
        ("", {"tables": ["w=3,init=file"]}, "needs path="),
        ("", {"tables": ["w=3,scale=2"]}, "init=zeros does not use scale"),
        ("", {"tables": []}, "has no table"),
        ("", {"argv": []}, "nothing to run"),
        ("", {"worker": ["./a"], "argv": ["./b"]}, "given twice"),
        ("[job]\ncommand = './a'\n[[worker]]\ncommand = './b'", {}, "keep one"),
        ("[[worker]]\ncommand = './b'\ncount = 3", {"workers": 2}, "workers = 2, but 3 are described"),
        ("", {"worker": ["'open"]}, "cannot be split"),
        ("", {"worker": [""]}, "empty"),
        ("", {"cluster": "c", "servers": 2}, "has its servers already"),
        ("", {"servers": 0}, "servers = 0"),
        ("", {"servers": 1, "copies": 2}, "copies = 2, but servers = 1: each copy"),
        ("", {"servers": 2, "min_insync": 3}, "min_insync = 3, but servers = 2"),
        ("", {"copies": 4}, "copies = 4; a whole number from 0 to 3"),
        ("[job]\ncopies = 2\nmin_insync = 3", {}, "min_insync = 3 of 2 copies"),
        ("[job]\non_lost = 'stopp'", {}, "did you mean 'stop'?"),
        ("", {"grace": -1.0}, "grace"),
        ("", {"ok_exit": [300]}, "no exit code"),
        ("", {"env": ["1A=2"]}, "NAME=VALUE"),
        ("", {"env": ["tensorflow"]}, "NAME=VALUE"),
        ("", {"name": "a/b"}, "job name 'a/b'"),
        ("", {"on_worker_loss": "shrunk"}, "did you mean 'shrink'?"),
        ("", {"consistency": "bps"}, "use bsp, asp or ssp:N"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(text: str, flags: dict[str, Any], says: str) -> None:
    assert says in refused(text, **flags)


@pytest.mark.parametrize(
    ("flags", "servers", "says"),
    [
        ({}, 1, "1 copy of each range: a server that dies ends the job"),
        ({"servers": 4}, 4, "2 copies of each range: any one server may die"),
        ({"copies": 2}, 2, "2 copies of each range: any one server may die"),
        ({"min_insync": 2}, 2, "2 copies of each range: any one server may die; with fewer than 2 copies training waits for another"),
        ({"servers": 3, "copies": 3}, 3, "3 copies of each range: any two servers may die"),
        ({"servers": 3, "copies": 1}, 3, "1 copy of each range: a server that dies ends the job"),
        ({"cluster": "lab"}, 1, "copies of each range: as cluster lab has it, mostly 2 where it has two servers"),
        ({"cluster": "lab", "copies": 3}, 1, "3 copies of each range: any two servers may die"),
    ],
)
def test_copies_need_servers_and_are_told_in_a_line(flags: dict[str, Any], servers: int, says: str) -> None:
    made = plan(**flags)
    assert made.servers == servers and words.planned_copies(made) == says


@pytest.mark.parametrize(
    ("text", "flags", "says"),
    [
        ("", {"tables": ["e=sparse"]}, "needs width="),
        ("", {"tables": ["e=sparse,width=0"]}, "table 'e': width = 0"),
        ("", {"tables": ["e=sparse,width=2,rows=0"]}, "table 'e': rows = 0; from 1 on, or leave it out"),
        ("", {"tables": ["e=sparse,width=2,batch=0"]}, "table 'e': batch = 0"),
        ("", {"tables": ["e=sparse,width=x"]}, "--table e: width = 'x' is no whole number"),
        ("", {"tables": ["e=sparse,width=2,rows=4294967297,index=u32"]}, "index u32 cannot name"),
        ("", {"tables": ["e=sparse,width=2,rows=5,index=str"]}, "rows named by strings"),
        ("", {"tables": ["e=sparse,width=2,init=program"]}, "sparse one takes zeros"),
        ("", {"tables": ["e=3,width=2"]}, "both shape and width"),
        ("", {"tables": ["e=3,rows=2"]}, "both shape and rows"),
        ("", {"tables": ["e=3,index=u32"]}, "index belongs to sparse tables"),
        ("", {"tables": ["e=sparse,wide=2"]}, "did you mean 'width'?"),
        ("", {"tables": ["e=sparce,width=2"]}, "'sparce' in the shape is no whole number"),
        ("[[table]]\nname = 'e'\nrows = 4", {}, "table 'e': a sparse table needs a width"),
        ("[[table]]\nname = 'e'", {}, "needs a shape, or (sparse) a width"),
        ("[[table]]\nname = 'e'\nshape = []", {}, "table 'e': shape [] must be"),
        ("[[table]]\nname = 'e'\nshape = [3, 0]", {}, "table 'e': shape [3, 0] must be"),
        ("", {"tables": ["w=3,storage=f8"]}, "storage 'f8'"),
        ("", {"tables": ["w=3:i64,optimizer=add,storage=f32"]}, "whole numbers stay i64"),
        ("", {"tables": ["w=3,beta1=0.5"]}, "beta1"),
        ("", {"tables": ["w=3,optimizer=adam,beta1=1"]}, "from 0 to below 1"),
        ("", {"tables": ["w=3"], "optimizer": "adamm"}, "did you mean 'adam'?"),
        ("", {"lr_scale": "lineal"}, "did you mean 'linear'?"),
        ("", {"lr_warmup": 5}, "lr_warmup = 5 is the time in which lr_scale grows"),
        ("", {"tables": ["w=3,optimizer=add"], "lr_scale": "linear"}, "lr_scale = linear is used by no table"),
        ("", {"bell": "semaphore"}, "bell"),
        ("", {"memory": "2 apples"}, "write bytes with a unit, e.g. 500MB or 2GiB"),
        ("", {"memory": "0"}, "from 1 byte"),
        ("[job]\nmemory = -1", {}, "write bytes with a unit"),
        ("[job]\nprivate_dir = 'yes'", {}, "private_dir = 'yes' is not true or false"),
    ],
)
def test_tables_and_settings_that_cannot_be_are_refused(text: str, flags: dict[str, Any], says: str) -> None:
    assert says in refused(text, **flags)


def test_sparse_tables_are_written_on_the_command_line_and_in_the_file() -> None:
    made = plan("[[table]]\nname = 'a'\nwidth = 3\nindex = 'str'\noptimizer = 'adam'\nbeta1 = 0.8", tables=["b=sparse:f64,width=16,rows=1000000,batch=100,storage=f16"])
    first, second = made.spec.tables
    assert (first.kind, first.shape, first.index_name, first.setting("beta1")) == ("sparse", (0, 3), "str", 0.8)
    assert (second.kind, second.shape, second.index_name, second.batch_rows, second.storage_name) == ("sparse", (1_000_000, 16), "u32", 100, "f16")
    line = words.owner_line(second, "mean")
    assert "sparse, 1,000,000 rows of 16 f64, kept as f16, named by u32, at most 100 in a request" in line and "push gradients" in line
    assert "adam lr=0.001 beta1=0.8 beta2=0.999 eps=1e-08" in words.owner_line(first, "mean")


def test_settings_of_the_job_reach_it() -> None:
    made = plan("[job]\nlr_scale = 'sqrt'\nlr_warmup = 100\nmemory = '1.5 GiB'\nbell = 'sem'\nprivate_dir = true\nlr = 0.1", workers=4)
    spec = made.spec
    assert (spec.lr_scale, spec.lr_warmup, spec.memory_bytes, spec.bell) == ("sqrt", 100, 3 << 29, "sem")
    assert made.start_of(2) == "/work dir/plugml-runs/t/w2/dir" and plan().start_of(2) == "/work dir"
    assert words.step_line(made) == "4 workers, each step averages 4 gradients; lr 0.1 grows to 0.2 over 100 clocks (square root rule, 4 workers)"
    assert "lr 0.1 becomes 0.8 (linear rule, 8 workers)" in words.step_line(plan(workers=8, lr=0.1, lr_scale="linear"))
    assert any("'../x' starts beside" in note for note in plan(argv=["./t", "../x"], private_dir=True).notes)


def test_only_the_documented_braces_are_replaced() -> None:
    argv = ["./t", "", "a b", "it's", "x&y", "*", "$HOME", "{worker}", '{"k": 1}', "\n", "{workers}/{seed}", "{out}", "{data}", "{}"]
    made = plan(argv=argv, workers=3)
    got = made.arguments(2)
    assert got[1:7] == argv[1:7] and got[8:10] == argv[8:10]
    assert got[7] == "2" and got[10] == f"3/{made.seed(2)}" and got[11] == "/work dir/plugml-runs/t/w2" and got[12:] == ["{data}", "{}"]
    assert any("{data}" in note for note in made.notes)
    assert made.seed(0) != made.seed(1)


def test_workers_may_differ() -> None:
    made = plan(worker=["./a 1", "./b 'x y'"], workers=2)
    assert made.commands == (("./a", "1"), ("./b", "x y"))
    made = plan("[[worker]]\ncommand = ['./a', '']\n[[worker]]\ncommand = './b'\ncount = 2")
    assert made.commands == (("./a", ""), ("./b",), ("./b",))
    made = plan("[[worker]]\ncommand = './b'\ncount = 2", argv=["./c"], workers=1)
    assert made.commands == (("./c",),), "the command line as a whole wins over the file"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["./trainer", "x"], "trainer"),
        (["python3.11", "-u", "my train.py"], "my_train"),
        (["Rscript", "dir/fit.R"], "fit"),
        (["sh", "-c", "cd x; ./t.sh"], "sh"),
        (["sh", "-c", "exit 3"], "sh"),
        (["/usr/bin/env", "python"], "env"),
        (["..."], "job"),
        (["ä'$x;"], "___x_"),
        (["x" * 200], "x" * 40),
    ],
)
def test_the_command_names_the_job(command: list[str], name: str) -> None:
    assert default_name(command) == name


def test_tables_on_the_command_line() -> None:
    assert parse_table("w=10,64:f64,lr=0.5,order=F") == {"name": "w", "shape": [10, 64], "dtype": "f64", "lr": 0.5, "order": "F"}
    assert split_command("./t 'a b' $HOME *", "x") == ["./t", "a b", "$HOME", "*"]
    made = plan(tables=["w=3,lr=0.5", "b=2"], lr=0.1)
    assert [table.setting("lr") for table in made.spec.tables] == [0.5, 0.1]
    made = plan(tables=["w=3,init=file,path=w.bin"])
    assert made.spec.tables[0].init_settings == {"path": "/work dir/w.bin"}


def test_the_start_says_what_a_step_means() -> None:
    assert words.step_line(plan(workers=8, lr=0.1)) == "8 workers, each step averages 8 gradients; lr 0.1 unchanged (linear rule: 0.8)"
    assert words.step_line(plan(workers=2, lr=0.1, combine="sum")) == "2 workers, each step sums 2 gradients; lr 0.1 unchanged"
    assert "steps by 1/4" in words.step_line(plan(workers=4, consistency="asp"))
    assert words.step_line(plan(tables=["n=3:i64,optimizer=add"])) == "1 worker, each step sums 1 push"
    spec = plan(tables=["w=3", "d=3,optimizer=add", "a=2,optimizer=assign"]).spec
    lines = [words.owner_line(table, spec.combine_of(table)) for table in spec.tables]
    assert "own lr is not used" in lines[0] and "program owns the step" in lines[1] and "whole values" in lines[2]


def test_uneven_clocks_are_named() -> None:
    assert words.uneven({0: 10, 1: 3, 2: 10}) == "worker 1: 3 clocks, others 10"
    assert words.uneven({0: 10, 1: 10}) == ""
    assert words.uneven({0: 1, 1: 10}) == "worker 0: 1 clock, others 10"
