module plugml

go 1.18
